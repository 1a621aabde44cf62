"""A real sshd that offers only what is broken is refused, by our own connection and by ssh with our configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.cli import sshing
from cloudtrain.provisioner.errors import CloudtrainError, RemoteError
from cloudtrain.provisioner.localcloud import host_sshd
from cloudtrain.provisioner.model import Attempt, Endpoint, Phase
from cloudtrain.provisioner.ports import Target
from tests.ssh.hostkit import Rig, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts read /proc")

ATTEMPT = Attempt(
    1, Pool("local", "us-east-1", "use1-az1", "g4dn.xlarge", CapacityType.SPOT), "token", Phase.WORKING, 0.0
)
STRONG = "Ciphers aes128-ctr\nMACs hmac-sha2-256\nKexAlgorithms curve25519-sha256@libssh.org"
WEAK = {
    "cipher": "Ciphers aes128-cbc,3des-cbc",
    "mac": "Ciphers aes128-ctr\nMACs hmac-sha1,hmac-md5",
    "key exchange": "KexAlgorithms diffie-hellman-group14-sha1,diffie-hellman-group1-sha1",
    "host key": "HostKeyAlgorithms ssh-rsa",
}


@pytest.fixture
def weakened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Target]]:
    require("sshd")
    made: list[Rig] = []
    rsa = tmp_path / "rsa"
    plain = host_sshd._CONFIG

    def start(lines: str) -> Target:
        config = plain
        if lines == WEAK["host key"]:
            subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", rsa], check=True)
            config = plain.replace('HostKey "{host_key}"', f'HostKey "{rsa}"')
        monkeypatch.setattr(host_sshd, "_CONFIG", f"{config}{lines}\n")
        try:
            rig = Rig("sshd", tmp_path / "host")
        except CloudtrainError as error:
            pytest.skip(f"this sshd has given it up altogether: {error}")
        made.append(rig)
        key = tmp_path / "id"
        key.write_text(rig.client_key.private)
        key.chmod(0o600)
        pinned = rsa.with_suffix(".pub").read_text() if rsa.exists() else rig.host_key.public
        return Target(Endpoint(*rig.host.endpoint), rig.host.user, (pinned,), key)

    yield start
    for rig in made:
        rig.close()


def by_ssh(target: Target, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / sshing.KNOWN_HOSTS).write_text(sshing._known_hosts("j", ATTEMPT, target))
    config = folder / "config"
    config.write_text(sshing._entry("j", ATTEMPT, target, folder))
    command = ["ssh", "-F", str(config), sshing.alias("j"), "echo", "in"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("kind", list(WEAK))
def test_refused_in_one_line(kind: str, weakened: Callable[[str], Target], tmp_path: Path) -> None:
    target, remote = weakened(WEAK[kind]), ParamikoRemote()
    with pytest.raises(RemoteError, match="offers no algorithm that is safe") as caught:
        remote.run(target, "touch was-here", timeout_s=20)
    assert "\n" not in str(caught.value)
    remote.close()
    done = by_ssh(target, tmp_path)
    assert done.returncode == 255 and "no matching" in done.stderr, done
    assert not (tmp_path / "host/home/was-here").exists()


def test_strong_ones_are_enough(weakened: Callable[[str], Target], tmp_path: Path) -> None:
    target, remote = weakened(STRONG), ParamikoRemote()
    assert remote.run(target, "echo in", timeout_s=20).stdout == b"in\n"
    remote.close()
    done = by_ssh(target, tmp_path)
    assert (done.returncode, done.stdout) == (0, "in\n"), done


def test_the_configuration_leaves_nothing_weak(tmp_path: Path) -> None:
    target = Target(Endpoint("127.0.0.1", 22), "someone", ("ssh-ed25519 AAAA",), tmp_path / "id")
    entry = sshing._entry("j", ATTEMPT, replace(target, host_keys=("ssh-ed25519 A", "ssh-rsa B")), tmp_path)
    (tmp_path / "config").write_text(entry)
    shown = subprocess.run(
        ["ssh", "-F", str(tmp_path / "config"), "-G", sshing.alias("j")], capture_output=True, text=True, check=True
    ).stdout
    offered = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    assert offered["hostkeyalgorithms"] == "ssh-ed25519,rsa-sha2-512,rsa-sha2-256"
    names = ",".join(offered[kind] for kind in ("ciphers", "macs", "kexalgorithms")).split(",")
    assert len(names) > 10
    assert [n for n in names if any(bad in n for bad in ("cbc", "sha1", "md5", "arcfour", "group1-"))] == []
