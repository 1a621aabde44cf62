"""The user data that machines are launched with, booted on a local host: it must arm the dead-man switch there too."""

from __future__ import annotations

import itertools
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters import userdata
from cloudtrain.provisioner.localcloud import cloudinit, guardian, hostfiles, processes
from cloudtrain.provisioner.localcloud.hosts import HostSpec
from cloudtrain.trainer.agent.headway import Headway, Seen
from cloudtrain.trainer.agent.host import LocalHost

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


@pytest.fixture(autouse=True)
def cloud_id() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    guardian.sweep(name)  # the watch goes on


def _boot(root: Path, cloud_id: str, *, deadline_at: float) -> tuple[hostfiles.HostFiles, dict[str, str]]:
    client, key = cloudinit.load_host_key(None), cloudinit.load_host_key(None)
    text = userdata.cloud_config(
        client_public_key=client.public,
        host_private_key=key.private,
        host_public_key=key.public,
        boot_deadline_at=deadline_at,
    )
    config = cloudinit.parse(text)
    assert config.authorized_keys == (client.public,)
    assert config.host_key == key.private
    spec = HostSpec("i-1", cloud_id, root, text)
    files = hostfiles.create(spec)
    env = hostfiles.environment(spec, files)
    cloudinit.run_script("bootcmd", config.bootcmd, env=env, home=files.home, console=files.console)
    return files, env


def test_the_switch_is_armed_at_its_time(tmp_path: Path, cloud_id: str) -> None:
    at = int(time.time()) + 3600
    files, _ = _boot(tmp_path / "host", cloud_id, deadline_at=at)
    assert list(files.timers().values()) == [at], files.console.read_text()
    assert not files.poweroff_requested()


def test_the_switch_moves_when_it_is_told(tmp_path: Path, cloud_id: str) -> None:
    at = int(time.time()) + 3600
    files, env = _boot(tmp_path / "host", cloud_id, deadline_at=at)
    command = userdata.extend_command(at + 60)
    cloudinit.run_script("extend", command, env=env, home=files.home, console=files.console)
    assert list(files.timers().values()) == [at + 60], files.console.read_text()


def test_a_deadline_that_has_passed_ends_the_host_at_once(tmp_path: Path, cloud_id: str) -> None:
    files, _ = _boot(tmp_path / "host", cloud_id, deadline_at=time.time() - 1)
    assert files.poweroff_requested(), files.console.read_text()


def test_the_watch_is_kept_and_looks_where_the_agent_marks_its_work(
    tmp_path: Path, cloud_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(userdata, "CHECK_S", 0.05)
    files, env = _boot(tmp_path / "host", cloud_id, deadline_at=time.time() + 3600)
    assert processes.marked("CLOUDTRAIN_LOCAL_CLOUD", cloud_id), "it ends with the host's other processes"
    headway = Headway(LocalHost(env).work_file, files.home / "cloudtrain/run/progress.json", 0.0)
    ends = time.monotonic() + 2.5
    for turn in itertools.count():
        if time.monotonic() > ends:
            break
        headway.look(Seen("running", trains=True), turn * 30.0)
        assert not files.poweroff_requested(), files.console.read_text()
        time.sleep(0.02)
    while not files.poweroff_requested():  # no more work
        assert time.monotonic() < ends + 20, files.console.read_text()
        time.sleep(0.02)
    assert "its work has stood still" in files.console.read_text()
