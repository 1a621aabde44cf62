"""The user data that machines are launched with, booted on a local host: it must arm the dead-man switch there too."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters import userdata
from cloudtrain.provisioner.localcloud import cloudinit, hostfiles
from cloudtrain.provisioner.localcloud.hosts import HostSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


def _boot(root: Path, *, deadline_at: float) -> tuple[hostfiles.HostFiles, dict[str, str]]:
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
    spec = HostSpec("i-1", "cloud", root, text)
    files = hostfiles.create(spec)
    env = hostfiles.environment(spec, files)
    cloudinit.run_script("bootcmd", config.bootcmd, env=env, home=files.home, console=files.console)
    return files, env


def test_the_switch_is_armed_at_its_time(tmp_path: Path) -> None:
    at = int(time.time()) + 3600
    files, _ = _boot(tmp_path / "host", deadline_at=at)
    assert list(files.timers().values()) == [at], files.console.read_text()
    assert not files.poweroff_requested()


def test_the_switch_moves_when_it_is_told(tmp_path: Path) -> None:
    at = int(time.time()) + 3600
    files, env = _boot(tmp_path / "host", deadline_at=at)
    command = userdata.extend_command(at + 60)
    cloudinit.run_script("extend", command, env=env, home=files.home, console=files.console)
    assert list(files.timers().values()) == [at + 60], files.console.read_text()


def test_a_deadline_that_has_passed_ends_the_host_at_once(tmp_path: Path) -> None:
    files, _ = _boot(tmp_path / "host", deadline_at=time.time() - 1)
    assert files.poweroff_requested(), files.console.read_text()
