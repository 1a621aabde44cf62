"""What a cloud's processes meet when its daemon dies, and whom nobody may touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.localcloud import guardian, processes
from tests.ssh.hostkit import KINDS, alive, eventually, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_DAEMON = """
import json, sys, time
from pathlib import Path
from cloudtrain.provisioner.localcloud import cloudinit, guardian
from cloudtrain.provisioner.localcloud.hosts import HostSpec, start_host

kind, cloud_id, root = sys.argv[1:]
keep = guardian.spawn(cloud_id, log=None)
train = "trap : TERM; echo $$ > pid; while :; do sleep 0.1; done"
data = "#cloud-config\\n" + json.dumps({"runcmd": [f"setsid sh -c '{train}' &"]})
host = start_host(kind, HostSpec("i-1", cloud_id, Path(root), data))
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def cloud_id() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    guardian.sweep(name)


def _start(cloud_id: str, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, "CLOUDTRAIN_LOCAL_CLOUD": cloud_id}, start_new_session=True)


def test_closing_the_pipe_sweeps_the_cloud_and_nothing_else(cloud_id: str) -> None:
    mine, other = _start(cloud_id, "sleep", "60"), _start(cloud_id + "x", "sleep", "60")
    try:
        pipe = guardian.spawn(cloud_id, log=None)
        assert mine.poll() is None
        os.close(pipe)
        assert mine.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_guardian_leaves_when_it_is_done_and_not_before(cloud_id: str) -> None:
    pipe = guardian.spawn(cloud_id, log=None)
    assert eventually(lambda: len(_guards(cloud_id)) == 1)
    guards = _guards(cloud_id)
    assert eventually(lambda: os.getsid(guards[0]) == guards[0]), "a session of its own"
    assert eventually(lambda: _ignores(guards[0], signal.SIGTERM))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guards[0], number)
    assert alive(guards[0])
    os.close(pipe)
    assert eventually(lambda: not alive(guards[0]))


def _guards(cloud_id: str) -> list[int]:
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and path.read_bytes().endswith(cloud_id.encode() + b"\0") and b"guardian" in path.read_bytes()
    ]


def _ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigIgn:")[1].split()[0], 16)
    return bool(mask >> (number - 1) & 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_daemon_killed_outright_leaves_nothing_running(kind: str, cloud_id: str, tmp_path: Path) -> None:
    require(kind)
    root = tmp_path / "host"
    daemon = subprocess.Popen([sys.executable, "-c", _DAEMON, kind, cloud_id, str(root)], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    with daemon.stdout:
        try:
            assert daemon.stdout.readline() == b"up\n"
            pid_file = root / "home" / "pid"
            assert eventually(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
            pids = processes.marked("CLOUDTRAIN_LOCAL_CLOUD", cloud_id)
            assert int(pid_file.read_text()) in pids
            assert len(processes.named(pids, "sshd")) == (1 if kind == "sshd" else 0)
        finally:
            daemon.kill()
            daemon.wait()
    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert eventually(lambda: not processes.marked("CLOUDTRAIN_LOCAL_CLOUD", cloud_id))  # one that started meanwhile


def test_the_log_gets_what_the_guardian_says(cloud_id: str, tmp_path: Path) -> None:
    log = tmp_path / "guardian.log"
    os.close(guardian.spawn(cloud_id, log=log))
    assert eventually(lambda: not _guards(cloud_id))
    assert log.read_text() == ""


def test_sweeping_a_cloud_without_processes_is_fine(cloud_id: str) -> None:
    guardian.sweep(cloud_id)


def test_a_sweep_spares_the_one_who_sweeps(cloud_id: str) -> None:
    code = f"from cloudtrain.provisioner.localcloud import guardian as g; g.sweep({cloud_id!r}); print('alive')"
    env = {**os.environ, "CLOUDTRAIN_LOCAL_CLOUD": cloud_id}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_psutil_sees_what_proc_shows(cloud_id: str) -> None:
    # Where there is no /proc the other scan is used; here both can be asked.
    process = _start(cloud_id, "sh", "-c", "env -i sleep 60; true")
    try:
        assert eventually(lambda: len(processes.descendants(process.pid)) == 1)
        child = processes.descendants(process.pid)
        by_psutil, parents = processes._scan_psutil("CLOUDTRAIN_LOCAL_CLOUD", cloud_id)
        assert by_psutil == {process.pid}
        assert {pid for pid in child if parents[pid] == process.pid} == child
        assert processes.marked("CLOUDTRAIN_LOCAL_CLOUD", cloud_id) == {process.pid, *child}
    finally:
        guardian.sweep(cloud_id)
        process.wait()
