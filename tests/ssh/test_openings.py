"""What a person opens on a local host: a terminal, and connections to its own loopback, and to nowhere else."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.localcloud import client as local_client
from cloudtrain.provisioner.localcloud import cloudinit, netns
from cloudtrain.provisioner.localcloud.bastion import Bastion
from cloudtrain.provisioner.localcloud.host_sshd import find_sshd
from cloudtrain.provisioner.localcloud.hosts import HostSpec, start_host
from tests.ssh.hostkit import KINDS, Rig, eventually, require, user_data


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    require(request.param)
    made = Rig(request.param, tmp_path / "host")
    yield made
    made.close()


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that gives back what it gets, in capitals, and ends when its peer does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data.upper())

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def forward(rig: Rig, host: str, port: int) -> paramiko.Channel:
    transport = rig.connect().get_transport()
    assert transport is not None
    return transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=10)


def read_all(channel: paramiko.Channel) -> bytes:
    channel.settimeout(20)
    got = b""
    while data := channel.recv(65536):
        got += data
    return got


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_of_its_own_loopback_is_reached_both_ways_to_the_end(rig: Rig, echo: int, host: str) -> None:
    channel = forward(rig, host, echo)
    data = b"abc" * 300_000

    def send() -> None:
        channel.sendall(data)
        channel.shutdown_write()

    threading.Thread(target=send, daemon=True).start()
    assert read_all(channel) == data.upper()


def test_several_at_once_do_not_mix(rig: Rig, echo: int) -> None:
    transport = rig.connect().get_transport()
    assert transport is not None
    channels = [transport.open_channel("direct-tcpip", ("127.0.0.1", echo), ("127.0.0.1", 0)) for _ in range(5)]
    for number, channel in enumerate(channels):
        channel.sendall(f"word{number}".encode())
        channel.shutdown_write()
    assert [read_all(channel) for channel in channels] == [f"WORD{number}".encode() for number in range(5)]


def test_a_port_where_nobody_listens_is_refused(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(paramiko.ChannelException, match="Connect failed"):
        forward(rig, "127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "169.254.169.254", "example.com"])
def test_no_other_place_is_reached_through_it(rig: Rig, host: str) -> None:
    with pytest.raises(paramiko.ChannelException, match="Administratively prohibited"):
        forward(rig, host, 80)


def test_a_terminal_is_one(rig: Rig) -> None:
    transport = rig.connect().get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty("vt100", width=91, height=33)
    channel.exec_command("tty >/dev/null && stty size && echo $TERM && read line && echo got $line && exit 5")
    channel.sendall(b"hello\n")
    said = read_all(channel).replace(b"\r\n", b"\n").split(b"\n")
    assert {b"33 91", b"vt100", b"got hello"} <= set(said)
    assert channel.recv_exit_status() == 5


def test_a_terminal_that_is_closed_ends_what_runs_on_it(rig: Rig) -> None:
    transport = rig.connect().get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty()
    channel.exec_command("echo $$ > pid; sleep 600")
    process = Path("/proc") / str(rig.pid())
    assert process.exists()
    channel.close()
    assert eventually(lambda: not process.exists() or "Z" in (process / "stat").read_text().rpartition(")")[2][:3])


def test_a_host_in_a_network_of_its_own_is_reached_through_its_bastion_alone(
    tmp_path: Path, echo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the guard against the network: a namespace's address lies on this computer
    why = netns.trouble()
    if why is not None:
        pytest.skip(f"no network namespaces: {why}")
    require("sshd")
    sshd = find_sshd()
    assert sshd is not None
    client, key = cloudinit.load_host_key(None), cloudinit.load_host_key(None)
    bastion = Bastion(tmp_path / "bastion", "cloud-of-a-test", sshd)
    spec = HostSpec("i-1", "cloud-of-a-test", tmp_path / "host", user_data(client, key), {}, 0, bastion.network(echo))
    host = start_host("netns", spec)
    try:
        address, port = host.endpoint
        (tmp_path / "key").write_text(client.private)
        (tmp_path / "key").chmod(0o600)
        (tmp_path / "known").write_text(f"{address} {key.public}\n")
        through = f"ssh -F {bastion.about().ssh_config} -o BatchMode=yes -W {address}:{port} cloudtrain-bastion"
        options = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "-i", str(tmp_path / "key")]
        options += ["-o", f"UserKnownHostsFile={tmp_path / 'known'}"]
        line = (
            f"hostname; exec 3<>/dev/tcp/127.0.0.1/{echo}; echo seen >&3; head -c 4 <&3; ls /sys/class/net >/dev/null"
        )
        command = ["ssh", *options, "-o", f"ProxyCommand={through}", f"root@{address}", line]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert said == f"ip-{address.replace('.', '-')}\nSEEN"
        straight = subprocess.run(
            ["ssh", *options, f"root@{address}", "true"], capture_output=True, timeout=60, check=False
        )
        assert straight.returncode == 255
        inside = ["ssh", "-F", bastion.about().ssh_config, "cloudtrain-bastion", "id"]
        refused = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
        assert (refused.returncode, refused.stdout) == (1, "")
    finally:
        host.kill(grace_s=0)
        bastion.close()
    assert not (tmp_path / "host" / "home").exists()


def test_namespaces_are_refused_before_anything_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="no network namespace can be made here: they need root; use --hosts sshd"):
        local_client.ensure_up(home / "local", hosts="netns")
    assert local_client.find(home / "local") is None
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(netns, "_SBIN", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert netns.trouble() == "`unshare` is not installed: install util-linux"
