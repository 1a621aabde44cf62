"""One machine: an overlay on the tree, booted by systemd-nspawn in a network of its own, reached over SSH."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.adapters.userdata import cloud_config
from cloudtrain.provisioner.shipping.bundle import bundle, ship_command
from cloudtrain.trainer.contract import AgentConfig, AgentStatus, status_from_json

USER = "debian"  # the login user of Debian's own cloud-init
BOOT_LIMIT_S = 180.0
REBOOT = 133  # systemd-nspawn's exit code under --keep-unit for a machine that wants to be started again
HANG = (
    "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\nExecStop=sleep infinity\nTimeoutStopSec=infinity\n"
)
REPOSITORY = Path(__file__).parents[3]


class Box:
    """A machine that was given its user data and runs. Times are Unix seconds."""

    def __init__(self, tree: Path, folder: Path, *, boot: float, hard: float | None = None) -> None:
        """``boot``, ``hard``: the deadlines, as ``cloud_config`` takes them."""
        self.folder = folder
        self.root = folder / "root"
        self.console = folder / "console.log"
        for name in ("root", "upper", "work"):
            (folder / name).mkdir(parents=True)
        layers = f"lowerdir={tree},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)], check=True)
        self._client, host = ed25519_pair("client"), ed25519_pair("host")
        seed = self.root / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True)
        (seed / "meta-data").write_text(f"instance-id: i-{folder.name}\nlocal-hostname: {folder.name}\n")
        (seed / "user-data").write_text(
            cloud_config(
                client_public_key=self._client.public,
                host_private_key=host.private_openssh,
                host_public_key=host.public,
                boot_deadline_at=boot,
                hard_deadline_at=hard,
            )
        )
        self._key = folder / "key"
        self._key.write_text(self._client.private_openssh)
        self._key.chmod(0o600)
        self.pin(host.public)
        self._site: subprocess.Popen[str] | None = None
        self._nspawn: subprocess.Popen[bytes] | None = None
        self.began = time.time()
        self.ended: float | None = None

    def listen_by_socket(self) -> None:
        """Let systemd listen for sshd, as on Ubuntu since 22.10. Before it boots."""
        units = self.root / "etc/systemd/system"
        (units / "sockets.target.wants").mkdir(parents=True, exist_ok=True)
        (units / "sockets.target.wants/ssh.socket").symlink_to("/lib/systemd/system/ssh.socket")
        (units / "multi-user.target.wants/ssh.service").unlink(missing_ok=True)

    def pin(self, public: str) -> None:
        """Accept this host key alone."""
        (self.folder / "known_hosts").write_text(f"127.0.0.1 {public}\n")

    def power_on(self) -> None:
        """Boot; returns at once."""
        # --register=no and --keep-unit: no systemd of this computer's is asked, so there need not be one.
        options = ["--boot", "--register=no", "--keep-unit", "--private-network", "--link-journal=no", "--quiet"]
        command = ["systemd-nspawn", f"--directory={self.root}", f"--machine=dm-{self.folder.name}", *options]
        with self.console.open("ab") as output:
            self._nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def off(self) -> bool:
        """Whether it has powered off; ``ended`` says when that was seen."""
        assert self._nspawn is not None
        code = self._nspawn.poll()
        if code == REBOOT:
            self.power_on()
        if code in (None, REBOOT):
            return False
        self.ended = self.ended or time.time()
        return True

    def until(self, true: Callable[[], bool], what: str, limit_s: float = BOOT_LIMIT_S) -> None:
        """Wait for it while the machine lives. Raises AssertionError."""
        deadline = time.monotonic() + limit_s
        while not true():
            assert not self.off, f"the machine went off before: {what}"
            assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
            time.sleep(0.2)

    def until_off(self, limit_s: float) -> float:
        """Wait until it has powered off; returns when. Raises AssertionError."""
        deadline = time.monotonic() + limit_s
        while not self.off:
            assert time.monotonic() < deadline, f"still on after {limit_s:g} s"
            time.sleep(0.1)
        assert self.ended is not None
        return self.ended

    def stays_on(self, for_s: float, why: str) -> None:
        """Raises AssertionError where it goes off meanwhile."""
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            assert not self.off, f"it went off: {why}"
            time.sleep(0.2)

    def leader(self) -> str:
        """The pid of the machine's init."""
        assert self._nspawn is not None
        for child in Path(f"/proc/{self._nspawn.pid}/task").glob("*/children"):
            pids = child.read_text().split()
            if pids:
                return pids[0]
        raise OSError("the machine has no init now")

    def root_run(self, *argv: str) -> str:
        """A command as root, from outside; its output, "" where it could not be run (yet)."""
        try:
            enter = ["nsenter", f"--target={self.leader()}", "--all", "--", *argv]
            return subprocess.run(enter, capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.TimeoutExpired):
            return ""

    def ssh(self, script: str, *, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[bytes]:
        """The login user's shell, over SSH, with the host key of the user data pinned."""
        options = [
            f"-oUserKnownHostsFile={self.folder / 'known_hosts'}",
            "-oStrictHostKeyChecking=yes",
            "-oBatchMode=yes",
        ]
        command = ["ssh", f"-i{self._key}", *options, "-oConnectTimeout=10", f"{USER}@127.0.0.1", script]
        enter = ["nsenter", f"--target={self.leader()}", "--net", "--", *command]
        return subprocess.run(enter, stdin=stdin or subprocess.DEVNULL, capture_output=True, timeout=120)

    def until_reachable(self) -> None:
        """Wait for SSH, which comes after the switch."""

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return self.ssh("true").returncode == 0
            return False

        self.until(answers, "SSH answers")

    def reboot(self) -> None:
        """As a person would, or an upgrade; returns once another init runs. Raises AssertionError."""
        init = self.leader()
        self.root_run("systemctl", "--no-block", "reboot")
        self.until(lambda: self._boots_after(init), "another init")

    def _boots_after(self, init: str) -> bool:
        try:
            return self.leader() != init
        except OSError:
            return False

    def deadline(self) -> int | None:
        """What the switch says; None while there is none."""
        said = self.root_run("/var/lib/cloudtrain/arm", "show").strip()
        return int(said) if said.isdigit() else None

    def timers(self) -> list[int]:
        """When the armed timers fire."""
        shown = self.root_run("systemctl", "show", "--property=NextElapseUSecRealtime", "cloudtrain-deadline-*.timer")
        times = [line.partition("=")[2] for line in shown.splitlines() if line.endswith(" UTC")]
        return [int(datetime.strptime(f"{text} +0000", "%a %Y-%m-%d %H:%M:%S UTC %z").timestamp()) for text in times]

    def watches(self) -> bool:
        """Whether the watch runs."""
        listed = self.root_run(
            "systemctl", "list-units", "--plain", "--no-legend", "--state=running", "cloudtrain-watch-*"
        )
        return "cloudtrain-watch-" in listed

    def ship(self, run: str, **more: Any) -> None:
        """What the controller sends: agent, libraries and configuration, over SSH; the agent runs then."""
        endpoints = self._start_site()
        for name, value in endpoints.items():
            self.root_run("systemctl", "set-environment", f"{name}={value}")
        config = AgentConfig("job-1", 1, "bucket", "us-east-1", "jobs/job-1", run, login_user=USER, **more)
        stream = bundle(config, None, with_deps=True)
        fifo = self.folder / "stream"
        with stream, fifo.open("wb") as file:
            shutil.copyfileobj(stream, file)
        with fifo.open("rb") as file:
            done = self.ssh(ship_command(None), stdin=file)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-600:]

    def status(self) -> AgentStatus | None:
        """The agent's, read from outside."""
        try:
            return status_from_json((self.root / f"home/{USER}/cloudtrain/run/status.json").read_bytes())
        except (OSError, ValueError):
            return None

    def agent_pid(self) -> str:
        """In the machine; "0" where there is none."""
        return self.root_run("systemctl", "show", "--property=MainPID", "--value", "cloudtrain-agent").strip()

    def notice(self, in_s: float) -> None:
        """EC2 announces, in the machine's metadata, that it takes the machine."""
        assert self._site is not None and self._site.stdin is not None
        self._site.stdin.write(f"{in_s}\n")
        self._site.stdin.flush()

    def _start_site(self) -> dict[str, str]:
        """A bucket and a metadata service in the machine's network; the variables that lead there."""
        command = [
            "nsenter",
            f"--target={self.leader()}",
            "--net",
            "--",
            sys.executable,
            "-m",
            "tests.faults.deadman.site",
        ]
        pipe = subprocess.PIPE
        self._site = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY)
        assert self._site.stdout is not None
        variables: dict[str, str] = json.loads(self._site.stdout.readline())
        return variables

    def words(self) -> str:
        """The end of what it printed, for a person."""
        return self.console.read_text(errors="replace")[-1500:]

    def destroy(self) -> None:
        """Cut its power and remove what it was."""
        if self._site is not None:
            self._site.kill()
            self._site.wait()
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.send_signal(signal.SIGTERM)
            try:
                self._nspawn.wait(5)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        subprocess.run(["umount", "--lazy", str(self.root)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
