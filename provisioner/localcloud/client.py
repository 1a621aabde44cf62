"""How other processes find, start and steer the embedded cloud. Standard library only: every command may load this.

One daemon per local home. It holds an exclusive lock on ``daemon.lock`` for as long as it lives, and says in
``daemon.json`` how to reach it; both are checked, so neither a stale file nor a reused process id is trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.provisioner.errors import CloudtrainError, NotFound, UsageError

ACCOUNT = "123456789012"
"""The account that moto pretends to be."""
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
_CALL_TIMEOUT_S = 15.0
DAEMON_FILE = "daemon.json"
LOCK_FILE = "daemon.lock"
LOG_FILE = "daemon.log"
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_BEGIN = ("LC_", "PYTHON", "COVERAGE_")  # what Python itself may need to start as this one did


@dataclass(frozen=True, slots=True)
class LocalCloud:
    """A running embedded cloud. ``id`` is new with every start; machines and objects live as long as it does."""

    id: str
    port: int
    pid: int
    secret: str
    hosts: str
    boot_s: float
    account: str = "ready"
    ssh_probe_port: int = 0

    @property
    def ssh_probe(self) -> tuple[str, int]:
        """What stands for a public SSH server, to find out whether this network lets SSH out: address and port."""
        return ("127.0.0.1", self.ssh_probe_port)

    @property
    def endpoint_url(self) -> str:
        """Where the AWS API is. A secret: whoever knows it may start machines, which run with the user's rights."""
        return f"http://127.0.0.1:{self.port}/{self.secret}"


def find(local_home: Path) -> LocalCloud | None:
    """The embedded cloud of a local home, or None where none runs. Reads two files; makes no connection."""
    try:
        text = json.loads((local_home / DAEMON_FILE).read_text())
        pid, started = int(text["pid"]), text["process_started"]
        cloud = LocalCloud(
            text["id"],
            int(text["port"]),
            pid,
            text["secret"],
            text["hosts"],
            float(text["boot_s"]),
            text["account"],
            int(text["ssh_probe_port"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    alive = _locked(local_home / LOCK_FILE) and process_started(pid) == started
    return cloud if alive else None


def ensure_up(
    local_home: Path, *, hosts: str | None = None, boot_s: float | None = None, account: str | None = None
) -> LocalCloud:
    """The embedded cloud of a local home, started where none runs. Blocks up to 20 s, about one when it starts.

    ``hosts`` ("embedded" | "sshd" | "netns"), ``boot_s`` and ``account`` ("ready" | "empty") say how it is to be; None
    leaves it as it is. Raises UsageError where it runs otherwise or its extra is not installed, CloudtrainError where
    it does not come up.
    """
    cloud = find(local_home)
    if cloud is None:
        with _one_starter(local_home):
            cloud = find(local_home) or _start(local_home, hosts or "embedded", boot_s or 0.0, account or "ready")
    wanted = (hosts or cloud.hosts, cloud.boot_s if boot_s is None else boot_s, account or cloud.account)
    if wanted != (cloud.hosts, cloud.boot_s, cloud.account):
        now = f"--hosts {cloud.hosts} --boot {cloud.boot_s:g}s --account {cloud.account}"
        raise UsageError(f"the local cloud already runs with {now}: end it first with `cloudtrain local down`")
    return cloud


def down(local_home: Path) -> bool:
    """End the embedded cloud with all its machines and objects; whether one ran. Blocks up to 20 s."""
    cloud = find(local_home)
    if cloud is None:
        return False
    started = process_started(cloud.pid)
    with contextlib.suppress(CloudtrainError):
        call(cloud, "POST", "stop")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while started is not None and process_started(cloud.pid) == started and _locked(local_home / LOCK_FILE):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(cloud.pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)
    return True


def status(cloud: LocalCloud) -> dict[str, Any]:
    """What the cloud says of itself: id, pid, options, machines, interrupts, faults."""
    return call(cloud, "GET", "status")


def interrupt(
    cloud: LocalCloud,
    job: str,
    *,
    at_step: int | None = None,
    notice_s: float | None = 120.0,
    rebalance: bool = False,
) -> bool:
    """Ask for an interruption of a job's machine; whether it has one now (if not, the request waits for it).

    ``job``: id, unique beginning of one, or name. ``at_step``: not before the job has reported that step. ``notice_s``
    0: the machine is lost at once, without notice; None: only the rebalance recommendation. Raises UsageError.
    """
    body = {"job": job, "at_step": at_step, "notice_s": notice_s, "rebalance": rebalance}
    return bool(call(cloud, "POST", "interrupt", body)["machine_known"])


def fault_add(cloud: LocalCloud, action: str, code: str, **options: Any) -> dict[str, Any]:
    """Inject an error into calls of an action; options: match, status, message, times, delay_s, lost, share
    (faults.Fault)."""
    return call(cloud, "POST", "faults", {"action": action, "code": code, **options})


def fault_list(cloud: LocalCloud) -> list[dict[str, Any]]:
    """The injected errors, each with ``met`` (how many calls) and ``calls`` (which)."""
    found: list[dict[str, Any]] = call(cloud, "GET", "faults")["faults"]
    return found


def fault_clear(cloud: LocalCloud, fault_id: int | None = None) -> int:
    """Drop one injected error, or all; returns how many."""
    return int(call(cloud, "DELETE", "faults", {"id": fault_id})["cleared"])


def plant(cloud: LocalCloud, name: str, region: str | None = None) -> None:
    """Plant an account fault (``plants.PLANTS``), in one region or in all. Raises UsageError."""
    call(cloud, "POST", "plants", {"name": name, "region": region})


def plant_clear(cloud: LocalCloud) -> int:
    """Take all account faults away, and put back what they took; returns how many there were."""
    return int(call(cloud, "DELETE", "plants")["cleared"])


def cutoff(cloud: LocalCloud, job: str, *, cut: bool = True) -> list[str]:
    """Cut the network to a job's machine, or join it again; returns the instance ids. Raises UsageError."""
    found: list[str] = call(cloud, "POST", "cutoff", {"job": job, "cut": cut})["instance_ids"]
    return found


def call(cloud: LocalCloud, method: str, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One control call. Blocks up to 15 s. Raises NotFound where the cloud, or what is named, is gone, UsageError where
    it refuses."""
    import http.client  # noqa: PLC0415 - `ls` only wants to find the cloud, and must be quick

    connection = http.client.HTTPConnection("127.0.0.1", cloud.port, timeout=_CALL_TIMEOUT_S)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, f"/{cloud.secret}/_local/{name}", payload)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotFound(f"the local cloud does not answer ({error}): see `cloudtrain local status`") from error
    finally:
        connection.close()
    if response.status == 404 and "error" in answer:
        raise NotFound(str(answer["error"]))
    if response.status == 409:
        raise UsageError(str(answer["error"]))
    if response.status != 200:
        raise CloudtrainError(f"the local cloud refused {name}: {answer.get('error')}")
    return answer


def process_started(pid: int) -> str | None:
    """When a process was started, in the system's own words; None where there is none. Tells a reused id apart."""
    try:
        # Fields 3 (state) and 22 of proc(5)'s stat, counted behind the command's name, which may hold blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    import subprocess  # noqa: PLC0415 - as in _start

    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    return result.stdout.strip() or None


def _locked(path: Path) -> bool:
    """Whether a process holds the daemon's lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def _one_starter(local_home: Path) -> Iterator[None]:
    """Of several that find none running, one starts it and the others find it then. A second daemon that was still
    loading when the first one ended would otherwise take its place, unasked."""
    local_home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (local_home / "start.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as long as one start takes, 20 s at most
        yield


def _start(local_home: Path, hosts: str, boot_s: float, account: str) -> LocalCloud:
    import subprocess  # noqa: PLC0415 - for this alone, and `find` must be quick

    if hosts == "netns":
        from cloudtrain.provisioner.localcloud import netns  # noqa: PLC0415 - for this alone

        why = netns.trouble()
        if why is not None:
            raise UsageError(f"--hosts netns: no network namespace can be made here: {why}; use --hosts sshd")
    if importlib.util.find_spec("moto") is None:
        raise UsageError("the local cloud needs its extra: pip install 'cloudtrain[local]'")
    log = local_home / LOG_FILE
    module = "cloudtrain.provisioner.localcloud.daemon"
    command = [sys.executable, "-m", module, "--home", str(local_home), "--hosts", hosts, "--boot", str(boot_s)]
    command += ["--account", account]
    # It outlives the command that starts it, and sees neither the user's keys nor a job's secrets; nor the mark of a
    # host that this may itself run on: its cloud would end the daemon with it.
    environment = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_BEGIN)}
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    # Reaped when it ends, should this process live so long; it needs no other care.
    threading.Thread(target=process.wait, name="local cloud", daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        cloud = find(local_home)
        if cloud is not None:
            call(cloud, "GET", "health")
            return cloud
        code = process.poll()
        if code not in (None, ALREADY_RUNNING):  # another process may have started it at the same moment
            raise CloudtrainError(f"the local cloud did not start: {_last_line(log, begin)} (log: {log})")
        time.sleep(0.02)
    process.kill()
    raise CloudtrainError(f"the local cloud did not come up in {START_TIMEOUT_S:g} s: see {log}")


ALREADY_RUNNING = 3
"""The daemon's exit code where another one holds the lock."""


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
