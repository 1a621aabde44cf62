"""Reaching a machine as a person does: a shell, a command, a port, an entry for other programs, a bastion between."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cloudtrain.provisioner.localcloud import client, netns, processes
from cloudtrain.provisioner.localcloud.hosts import ENV_CLOUD
from tests.e2e.story import Person, digits_job, until
from tests.ssh.hostkit import KINDS, require

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("e2e-reaching"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh"),
]

EPOCHS = 6
INSIDE = 18765  # a port that only the machine's own loopback has
SERVED = f"""\
python -m http.server --bind 127.0.0.1 {{port}} & server=$!
until [ -e go ] || [ "$CLOUDTRAIN_ATTEMPT" != 1 ]; do sleep 0.1; done
python -m cloudtrain.trainer --epochs {EPOCHS} --seed 7; code=$?
kill $server; exit $code"""
WAITING = "python -m http.server --bind 127.0.0.1 {port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def networks(cloud_id: str) -> set[int]:
    """The networks of their own that processes of a local cloud are in."""
    found = set()
    for pid in processes.marked(ENV_CLOUD, cloud_id):
        with suppress(OSError):
            found.add(Path(f"/proc/{pid}/ns/net").stat().st_ino)
    return found - {Path("/proc/self/ns/net").stat().st_ino}


@contextmanager
def person_at(home: Path, kind: str) -> Iterator[Person]:
    """Somebody whose own ssh knows the way through the bastion, as `local status` says it."""
    folder = home / "bin"
    folder.mkdir(parents=True)
    known = home / "local" / "bastion" / "ssh_config"
    real = shutil.which("ssh")
    # ssh reads ~/.ssh/config of the account, wherever HOME points: a test can't have one of its own but so.
    (folder / "ssh").write_text(
        f'#!/bin/sh\ncase " $* " in *" -F "*) exec {real} "$@";; esac\n[ -f {known} ] || exec {real} "$@"\n'
        f'exec {real} -F {known} "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    user = home / "user"
    user.mkdir()
    extra = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(user)}
    someone = Person(home, cwd=home, extra=extra)
    someone.ok("local", "up", "--hosts", kind)
    try:
        yield someone
    finally:
        someone.run("down", "--all", "--yes")
        someone.leave()


@contextmanager
def tunnel(person: Person, job: str, remote: int) -> Iterator[str]:
    """The URL of a tunnel that is up."""
    process = person.start("tunnel", job, f"{free_port()}:{remote}")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), (line, process.stderr.read() if process.stderr else "")
        yield line.split()[0]
        process.send_signal(signal.SIGINT)
        said = person.wait(process)
        assert said.code == 0, said
    finally:
        process.kill()
        process.wait()


def fetched(url: str) -> bytes:
    """What is served there; b"" while nothing is."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def running(person: Person, job: str) -> bool:
    """Whether the job's machine can be opened."""
    up = any(row["name"] == job and row["status"] == "RUNNING" for row in person.rows())  # a look costs far less
    return up and person.run("ssh", job, "--", "true").code == 0


def test_a_namespace_host_behind_a_bastion_trains_is_interrupted_and_opens(tmp_path: Path) -> None:
    why = netns.trouble()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")
    require("sshd")
    with person_at(tmp_path / "home", "netns") as person:
        cloud_id = person.cloud().id
        said = person.ok("local", "status").out
        assert "ssh_proxy: root@cloudtrain-bastion" in said
        plain = digits_job(tmp_path / "plain.yaml")
        refused = person.run("launch", str(plain), "--cloud", "local", "--yes")
        assert (refused.code, "behind its bastion" in refused.err) == (2, True)
        job = digits_job(tmp_path / "job.yaml", run=SERVED.format(port=INSIDE))
        job.write_text(
            job.read_text().replace("memory: 16+}", "memory: 16+, aws: {ssh_proxy: root@cloudtrain-bastion}}")
        )
        job_id = person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach").out.strip()
        until(lambda: running(person, "digits"), "the machine opens")
        (machine,) = [m for m in person.machines() if m["state"] == "running"]
        name = person.ok("ssh", "digits", "--", "hostname").out.strip()
        assert name == f"ip-{machine['endpoint'].replace('.', '-')}"
        assert person.ok("ssh", "digits", "--", "pwd").out.strip().endswith("/cloudtrain/work")
        with tunnel(person, "digits", INSIDE) as url:
            until(lambda: b"Directory listing" in fetched(url), "the machine's own port answers here")
        assert b"Directory listing" not in fetched(f"http://127.0.0.1:{INSIDE}")  # the network is its own
        client.interrupt(person.cloud(), "digits", at_step=60, notice_s=4)
        person.ok("ssh", "digits", "--", "touch", "go")
        until(lambda: person.rows()[0]["status"] in ("SUCCEEDED", "FAILED", "CANCELLED"), "the end of the job")
        report = person.ok("show", job_id, "-o", "json").json()
        assert (report["status"], report["lost_steps"], report["interruptions"]) == ("SUCCEEDED", 0, 1)
        assert [a["end_reason"] for a in report["attempts"]] == ["interrupted", "succeeded"]
        assert report["attempts"][1]["start_step"] >= 60
        gone = person.run("ssh", "digits", "--", "true")
        assert (gone.code, "has no machine now" in gone.err) == (3, True)
    until(lambda: networks(cloud_id) == set(), "no namespace is left")


def test_a_killed_cloud_leaves_no_network(tmp_path: Path) -> None:
    why = netns.trouble()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")
    require("sshd")
    with person_at(tmp_path / "home", "netns") as person:
        job = digits_job(tmp_path / "job.yaml", run="sleep 600")
        job.write_text(
            job.read_text().replace("memory: 16+}", "memory: 16+, aws: {ssh_proxy: root@cloudtrain-bastion}}")
        )
        person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach")
        until(lambda: running(person, "digits"), "the machine opens")
        cloud = person.cloud()
        assert len(networks(cloud.id)) == 2  # the machine's, and the bastion's
        os.kill(cloud.pid, signal.SIGKILL)
        until(lambda: networks(cloud.id) == set(), "no namespace is left")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shell_a_command_and_a_port(kind: str, tmp_path: Path) -> None:
    require(kind)
    with person_at(tmp_path / "home", kind) as person:
        port = free_port()
        job = digits_job(tmp_path / "job.yaml", run=WAITING.format(port=port))
        job_id = person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach").out.strip()
        until(lambda: running(person, "digits"), "the machine opens")
        said = person.run("ssh", "digits", "--", 'echo "a  b"; echo no >&2; exit 7')
        assert (said.code, said.out, said.err.strip()) == (7, "a  b\n", "no")
        assert person.ok("ssh", "digits", "--", "printf", "%s|", "a b", "$HOME", "it's").out == "a b|$HOME|it's|"
        command = [*person.command, "ssh", "digits", "--attempt", "1", "--", "cat"]
        piped = subprocess.run(
            command, input=b"x" * 300_000, capture_output=True, env=person.env, timeout=60, check=True
        )
        assert piped.stdout == b"x" * 300_000
        with tunnel(person, "digits", port) as url:
            until(lambda: b"Directory listing" in fetched(url), "the machine's own port answers here")
        taken = person.run("tunnel", "digits", str(port))
        assert (taken.code, f"port {port} of this computer is taken" in taken.err) == (2, True)
        _entry_for_other_programs(person, job_id)
        person.ok("down", "digits", "--yes")
        over = person.run("ssh", "digits", "--config")
        assert (over.code, "removed 1 ssh entry" in over.err) == (3, True)
        assert list((person.home / "user" / ".ssh" / "cloudtrain").iterdir()) == []


def _entry_for_other_programs(person: Person, job_id: str) -> None:
    ssh_dir = person.home / "user" / ".ssh"
    ssh_dir.mkdir()
    (ssh_dir / "config").write_text("Host mine\n  User me\n")
    (ssh_dir / "config").chmod(0o640)
    printed = person.ok("ssh", "digits", "--config").out
    assert printed.startswith(f"Host cloudtrain-{job_id}\n  HostName 127.0.0.1\n")
    assert not (ssh_dir / "cloudtrain").exists()
    for _ in range(2):  # the line comes once
        assert person.ok("ssh", "digits", "--config", "--write").out == f"cloudtrain-{job_id}\n"
    text = (ssh_dir / "config").read_text()
    assert text == "Include cloudtrain/*.conf\n\nHost mine\n  User me\n"
    assert (ssh_dir / "config").stat().st_mode & 0o777 == 0o640
    entry = ssh_dir / "cloudtrain" / f"{job_id}.conf"
    assert entry.read_text() == printed
    assert entry.stat().st_mode & 0o777 == 0o600
    real = ["ssh", "-F", str(entry), f"cloudtrain-{job_id}", "echo in"]
    assert subprocess.run(real, capture_output=True, text=True, timeout=60, check=True).stdout == "in\n"
    known = person.home / "jobs" / job_id / "known_hosts"
    known.write_text(known.read_text().replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAJ"))
    assert subprocess.run(real, capture_output=True, timeout=60, check=False).returncode == 255  # another machine
    assert person.ok("ssh", "digits", "--", "true").code == 0  # which writes the pinned key anew
