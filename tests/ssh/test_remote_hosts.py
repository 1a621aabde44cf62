"""ParamikoRemote against both kinds of local host: what is shipped arrives, a cut network costs nothing but time."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.model import Endpoint
from cloudtrain.provisioner.ports import Target
from cloudtrain.provisioner.shipping.bundle import bundle
from cloudtrain.provisioner.shipping.snapshot import take
from cloudtrain.trainer.contract import AgentConfig
from tests.ssh.hostkit import KINDS, Rig, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    require(request.param)
    made = Rig(request.param, tmp_path / "host")
    yield made
    made.close()


@pytest.fixture
def target(rig: Rig, tmp_path: Path) -> Target:
    key = tmp_path / "id_ed25519"
    key.write_text(rig.client_key.private)
    key.chmod(0o600)
    return Target(Endpoint(*rig.host.endpoint), rig.host.user, (rig.host_key.public,), key)


def test_run_and_read(rig: Rig, target: Target, remote: ParamikoRemote) -> None:
    result = remote.run(target, "cat > 'a 日志'; echo no >&2; exit 4", stdin=io.BytesIO(b"0123456789"), timeout_s=20)
    assert (result.exit_code, result.stdout, result.stderr) == (4, b"", b"no\n")
    assert remote.read(target, "a 日志", offset=3, limit=4, timeout_s=20) == b"3456"
    assert remote.read(target, "a 日志", offset=10, limit=4, timeout_s=20) == b""
    assert remote.read(target, "nothing", offset=0, limit=4, timeout_s=20) == b""


def test_a_bundle_arrives_byte_for_byte(rig: Rig, target: Target, remote: ParamikoRemote, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "big").write_bytes(os.urandom(9_000_000))
    (work / "数据 it's").write_bytes(b"x")
    shot = take(work, tmp_path / "job")
    config = AgentConfig("j", 1, "b", "us-east-1", "jobs/j", "true")
    with bundle(config, tmp_path / "job", with_deps=False) as stream:
        command = "mkdir -p cloudtrain && cd cloudtrain && tar -xf - && sha256sum incoming/snapshot.tar"
        result = remote.run(target, command, stdin=stream, timeout_s=60)
    assert result.stdout.split()[0].decode() == shot.sha256
    assert (rig.root / "home" / "cloudtrain" / "agent" / "cloudtrain" / "trainer" / "agent" / "bootstrap.py").exists()


def test_another_machine_on_the_same_port_is_refused(rig: Rig, target: Target, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match="not the one pinned at launch"):
        remote.run(replace(target, host_keys=(ed25519_pair("other").public,)), "touch was-here", timeout_s=20)
    assert not (rig.root / "home" / "was-here").exists()


def test_a_cut_network_is_given_up_in_time_and_joined_again(rig: Rig, target: Target, remote: ParamikoRemote) -> None:
    assert remote.run(target, "true", timeout_s=20).exit_code == 0
    rig.host.set_cut(True)
    started = time.monotonic()
    for _ in range(2):  # on the old connection, then on a new one
        with pytest.raises(RemoteError):
            remote.run(target, "true", timeout_s=0.7)
    assert time.monotonic() - started < 6
    rig.host.set_cut(False)
    assert remote.run(target, "echo back", timeout_s=20).stdout == b"back\n"


def test_a_dead_machine_is_one_line(rig: Rig, target: Target, remote: ParamikoRemote) -> None:
    assert remote.run(target, "true", timeout_s=20).exit_code == 0
    rig.host.kill(grace_s=0)
    with pytest.raises(RemoteError) as caught:
        remote.run(target, "true", timeout_s=5)
    assert str(caught.value).startswith(f"SSH to {target.user}@127.0.0.1:")
    assert "\n" not in str(caught.value)
