"""SSH over a command: it works, it is bounded, and a proxy leaves neither a process nor a descriptor behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from cloudtrain.provisioner.adapters import proxied
from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.adapters.proxied import ProxySocket, require_bastion, require_programs
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.errors import AccessError, RemoteError, UsageError
from cloudtrain.provisioner.model import Endpoint
from cloudtrain.provisioner.ports import Target
from tests.ssh.hostkit import eventually
from tests.ssh.remote_server import SshServer, private_key

PIPE = """\
import os, socket, sys, threading
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def out():
    while data := s.recv(65536): os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536): s.sendall(data)
"""


@dataclass
class Site:
    server: SshServer
    target: Target  # behind the proxy: its own address leads nowhere
    folder: Path


_others: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied, "GRACE_S", 0.05)
    _others.clear()
    _others.update(psutil.Process().children(recursive=True))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    host, client = ed25519_pair("host"), ed25519_pair("client")
    home = tmp_path / "home"
    home.mkdir()
    server = SshServer(home, host, client)
    key = private_key(client, tmp_path, "id")
    (tmp_path / "pipe.py").write_text(PIPE)
    command = f"{sys.executable} -S {tmp_path / 'pipe.py'} {server.port}"
    target = Target(Endpoint("10.255.255.1", 22), "ubuntu", (host.public,), key, command)
    yield Site(server, target, tmp_path)
    server.close()


def children() -> list[psutil.Process]:
    """Of this process, dead ones that nobody has waited for included; but for those that other tests have left."""
    found = [p for p in psutil.Process().children(recursive=True) if p not in _others]
    return [p for p in found if "multiprocessing" not in " ".join(_words(p))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def nothing_left() -> bool:
    return not children()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def script(site: Site, text: str) -> Target:
    path = site.folder / "proxy.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return replace(site.target, proxy_command=str(path))


def test_a_command_and_its_stdin_pass_through(site: Site, remote: ParamikoRemote) -> None:
    data = os.urandom(3_000_000)
    result = remote.run(site.target, "wc -c; echo no >&2; exit 4", stdin=io.BytesIO(data), timeout_s=30)
    assert (result.exit_code, result.stdout.split(), result.stderr) == (4, [b"3000000"], b"no\n")
    assert remote.run(site.target, "true", timeout_s=10).exit_code == 0
    assert site.server.connections == 1
    remote.close()
    assert eventually(nothing_left)


def test_the_host_key_is_pinned_behind_a_proxy_too(site: Site, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match="not the one pinned at launch"):
        remote.run(replace(site.target, host_keys=(ed25519_pair("other").public,)), "true", timeout_s=10)
    assert site.server.commands == []
    assert eventually(nothing_left)


def test_a_proxy_that_ends_says_why_in_one_line(site: Site, remote: ParamikoRemote) -> None:
    target = script(
        site, "echo 'connecting' >&2; printf 'An error occurred (TargetNotConnected):\\r\\n i-1 \\r\\n' >&2; exit 254"
    )
    with pytest.raises(RemoteError) as caught:
        remote.run(target, "true", timeout_s=10)
    assert str(caught.value).endswith("not connected, its proxy says: i-1; it is tried again")
    assert eventually(nothing_left)


def test_a_proxy_that_hangs_is_given_up_in_time_and_ended(site: Site, remote: ParamikoRemote) -> None:
    target = script(site, "trap '' TERM; sleep 600 & exec sleep 600")  # with a child, and both deaf to SIGTERM
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"no connection within 0\.\d s"):
        remote.run(target, "true", timeout_s=0.7)
    assert time.monotonic() - started < 5
    assert eventually(nothing_left)


def test_a_proxy_that_dies_is_made_again(site: Site, remote: ParamikoRemote) -> None:
    assert remote.run(site.target, "true", timeout_s=10).exit_code == 0
    for process in children():
        process.send_signal(signal.SIGKILL)
    assert eventually(nothing_left)  # reaped though nobody closed it
    assert remote.run(site.target, "echo back", timeout_s=10).stdout == b"back\n"
    assert site.server.connections == 2


def test_many_connections_leave_no_descriptor(site: Site, remote: ParamikoRemote) -> None:
    remote.run(site.target, "true", timeout_s=10)
    remote.forget(site.target)
    assert eventually(nothing_left)
    before = descriptors()
    for _ in range(5):
        remote.run(site.target, "true", timeout_s=10)
        remote.forget(site.target)
    assert eventually(nothing_left)
    assert eventually(lambda: descriptors() <= before)


def test_a_missing_program_is_named(site: Site, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match="its proxy needs `no-such-program`"):
        remote.run(replace(site.target, proxy_command="no-such-program -W x"), "true", timeout_s=5)


def test_closing_twice_is_closing_once() -> None:
    sock = ProxySocket("cat")
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    sock.close()
    sock.close()
    assert eventually(nothing_left)


def test_what_is_missing_here_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    def nothing(name: str) -> str | None:
        return None

    require_programs(None, nothing)
    with pytest.raises(UsageError, match=r"needs `ssh`, which is not on PATH: install OpenSSH"):
        require_programs("me@bastion", nothing)
    with pytest.raises(UsageError, match="needs `session-manager-plugin`"):
        require_programs("ssm", lambda name: "/bin/aws" if name == "aws" else None)
    old = tmp_path / "aws"
    old.write_text("#!/bin/sh\necho aws-cli/1.44.2 Python/3.11\n")
    old.chmod(0o755)
    require_programs("ssm", lambda name: str(old))
    with pytest.raises(UsageError, match=r"needs version 2 of the AWS CLI: `aws --version` says aws-cli/1\.44\.2"):
        require_programs("instance-connect", lambda name: str(old))


@pytest.mark.parametrize(
    ("code", "stderr", "refused"),
    [
        (0, "", False),
        (1, "This account is currently not available.", False),
        (255, "exec request failed on channel 0", False),
        (255, "Host key verification failed.", True),
        (255, "", True),
    ],
)
def test_a_bastion_is_one_that_lets_us_in(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, refused: bool
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, code, "", f"debug\n{stderr}\n")

    monkeypatch.setattr(subprocess, "run", run)
    require_bastion("ssm")
    assert asked == []
    if refused:
        with pytest.raises(AccessError, match="make `ssh me@bastion` work"):
            require_bastion("me@bastion:2200")
    else:
        require_bastion("me@bastion:2200")
    assert asked[0][:2] == ["ssh", "-T"]
