"""ParamikoRemote against a real SSH server on loopback: results, bounds, pinned keys, broken connections."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest

from cloudtrain.provisioner.adapters.keys import KeyPair, ed25519_pair
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.model import Endpoint
from cloudtrain.provisioner.ports import Target

from .remote_server import FreezingProxy, SilentPeer, SshServer, private_key


@dataclass
class Site:
    home: Path
    server: SshServer
    target: Target
    host: KeyPair
    client: KeyPair


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    host, client = ed25519_pair("host"), ed25519_pair("client")
    home = tmp_path / "home"
    home.mkdir()
    server = SshServer(home, host, client)
    key = private_key(client, tmp_path, "id")
    target = Target(Endpoint("127.0.0.1", server.port), "ubuntu", (host.public,), key)
    yield Site(home, server, target, host, client)
    server.close()


def test_a_command_gives_code_and_both_outputs(site: Site, remote: ParamikoRemote) -> None:
    result = remote.run(site.target, "printf 'é%s' out; printf err >&2; exit 7", timeout_s=10)
    assert (result.exit_code, result.stdout, result.stderr) == (7, "éout".encode(), b"err")


def test_stdin_is_streamed_to_its_end(site: Site, remote: ParamikoRemote) -> None:
    data = bytes(range(256)) * 40_000  # 10 MB: five windows
    result = remote.run(site.target, "cat > got; wc -c < got", stdin=io.BytesIO(data), timeout_s=60)
    assert result.stdout.split() == [b"10240000"]
    assert (site.home / "got").read_bytes() == data


def test_output_that_comes_while_stdin_is_sent_blocks_nobody(site: Site, remote: ParamikoRemote) -> None:
    data = b"x" * 6_000_000
    result = remote.run(site.target, "tee /dev/stderr", stdin=io.BytesIO(data), timeout_s=60)
    assert result.stdout == data
    assert result.stderr == data


def test_a_command_that_reads_none_of_its_stdin_still_answers(site: Site, remote: ParamikoRemote) -> None:
    result = remote.run(site.target, "echo no >&2; exit 3", stdin=io.BytesIO(b"x" * 8_000_000), timeout_s=30)
    assert (result.exit_code, result.stderr) == (3, b"no\n")


def test_read_pages_through_a_file_byte_by_byte(site: Site, remote: ParamikoRemote) -> None:
    name = "日志 it's $HOME `x`\n.log"
    text = "训练 loss\r0.5\n".encode()
    (site.home / name).write_bytes(text)
    got = b"".join(remote.read(site.target, name, offset=i, limit=1, timeout_s=10) for i in range(len(text)))
    assert got == text  # cut inside characters: bytes are bytes
    assert remote.read(site.target, name, offset=len(text), limit=10, timeout_s=10) == b""
    assert remote.read(site.target, name, offset=3, limit=1000, timeout_s=10) == text[3:]


@pytest.mark.parametrize("name", ["no-such-file", "-n", "a/b/c"])
def test_read_of_a_missing_file_is_empty(site: Site, remote: ParamikoRemote, name: str) -> None:
    assert remote.read(site.target, name, offset=0, limit=10, timeout_s=10) == b""


def test_one_connection_serves_all_calls(site: Site, remote: ParamikoRemote) -> None:
    threads = [
        threading.Thread(target=remote.run, args=(site.target, "true"), kwargs={"timeout_s": 20}) for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remote.run(site.target, "true", timeout_s=10).exit_code == 0
    assert site.server.connections == 1
    assert len(site.server.commands) == 5


def test_another_host_key_is_refused_before_any_log_in(site: Site, remote: ParamikoRemote) -> None:
    target = replace(site.target, host_keys=(ed25519_pair("other").public,))
    with pytest.raises(RemoteError, match="not the one pinned at launch") as caught:
        remote.run(target, "true", timeout_s=10)
    assert "\n" not in str(caught.value)
    assert site.server.auth_attempts == []
    assert site.server.commands == []


def test_no_pinned_key_means_no_connection(site: Site, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match="no host key is pinned"):
        remote.run(replace(site.target, host_keys=()), "true", timeout_s=10)
    assert site.server.connections == 0


def test_any_of_several_pinned_keys_is_accepted(site: Site, remote: ParamikoRemote) -> None:
    target = replace(site.target, host_keys=(ed25519_pair("old").public, site.host.public))
    assert remote.run(target, "true", timeout_s=10).exit_code == 0


def test_another_client_key_is_one_line(site: Site, remote: ParamikoRemote, tmp_path: Path) -> None:
    target = replace(site.target, client_key=private_key(ed25519_pair("stranger"), tmp_path, "other"))
    with pytest.raises(RemoteError, match="refused our key"):
        remote.run(target, "true", timeout_s=10)


def test_a_missing_client_key_is_named(site: Site, remote: ParamikoRemote, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="gone is missing"):
        remote.run(replace(site.target, client_key=tmp_path / "gone"), "true", timeout_s=10)


def test_nobody_listening_is_one_line(site: Site, remote: ParamikoRemote) -> None:
    site.server.close()
    with pytest.raises(RemoteError, match=r"not connected .*refused"):
        remote.run(site.target, "true", timeout_s=10)


def test_a_peer_that_never_speaks_is_given_up_in_time(site: Site, remote: ParamikoRemote) -> None:
    peer = SilentPeer()
    started = time.monotonic()
    with pytest.raises(RemoteError, match="within"):
        remote.run(replace(site.target, endpoint=Endpoint("127.0.0.1", peer.port)), "true", timeout_s=0.5)
    assert time.monotonic() - started < 3
    peer.close()


def test_a_server_that_never_answers_the_request_is_given_up_in_time(site: Site, remote: ParamikoRemote) -> None:
    site.server.stall.set()
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"no answer within 0\.5 s"):
        remote.run(site.target, "true", timeout_s=0.5)
    assert time.monotonic() - started < 3


def test_a_command_that_takes_too_long_is_given_up_and_not_repeated(site: Site, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match=r"no answer within 0\.5 s"):
        remote.run(site.target, "sleep 3", timeout_s=0.5)
    assert len(site.server.commands) == 1


def test_a_network_that_swallows_everything_is_given_up_while_sending(site: Site, remote: ParamikoRemote) -> None:
    proxy = FreezingProxy(site.server.port)
    target = replace(site.target, endpoint=Endpoint("127.0.0.1", proxy.port))
    assert remote.run(target, "true", timeout_s=10).exit_code == 0
    proxy.frozen.set()
    started = time.monotonic()
    with pytest.raises(RemoteError, match="within"):
        remote.run(target, "cat", stdin=io.BytesIO(b"x" * 30_000_000), timeout_s=1)
    assert time.monotonic() - started < 5
    proxy.close()


def test_a_broken_connection_is_made_again(site: Site, remote: ParamikoRemote) -> None:
    assert remote.run(site.target, "sleep 0.2", timeout_s=10).exit_code == 0  # paramiko loses one that ends at once
    site.server.cut()
    assert remote.run(site.target, "echo back", timeout_s=10).stdout == b"back\n"
    assert site.server.connections == 2


def test_a_connection_that_breaks_during_a_command_says_so_and_repeats_nothing(
    site: Site, remote: ParamikoRemote
) -> None:
    threading.Timer(0.3, site.server.cut).start()
    with pytest.raises(RemoteError, match="connection lost"):
        remote.run(site.target, "sleep 5", timeout_s=10)
    assert len(site.server.commands) == 1
    assert remote.run(site.target, "true", timeout_s=10).exit_code == 0


def test_a_command_that_died_by_a_signal_is_no_success(site: Site, remote: ParamikoRemote) -> None:
    with pytest.raises(RemoteError, match="ended without an exit status"):
        remote.run(site.target, "kill -9 $$", timeout_s=10)


def test_forget_closes_the_connection(site: Site, remote: ParamikoRemote) -> None:
    remote.run(site.target, "true", timeout_s=10)
    remote.forget(site.target)
    remote.forget(site.target)
    remote.run(site.target, "true", timeout_s=10)
    assert site.server.connections == 2


def test_weak_algorithms_are_refused(site: Site, remote: ParamikoRemote) -> None:
    def weaken(transport: paramiko.Transport) -> None:
        transport.get_security_options().ciphers = ("aes128-cbc", "3des-cbc")

    site.server.configure = weaken
    with pytest.raises(RemoteError, match="offers no algorithm that is safe"):
        remote.run(site.target, "true", timeout_s=10)
    assert site.server.auth_attempts == []


def test_aes_gcm_is_what_two_willing_sides_use(site: Site, remote: ParamikoRemote) -> None:
    seen: list[paramiko.Transport] = []
    site.server.configure = seen.append
    remote.run(site.target, "true", timeout_s=10)
    assert vars(seen[0])["remote_cipher"] == "aes128-gcm@openssh.com"


def test_a_machine_gone_mad_does_not_fill_our_memory(
    site: Site, remote: ParamikoRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.provisioner.adapters.ssh.OUTPUT_LIMIT", 1_000_000)
    with pytest.raises(RemoteError, match="wrote more than"):
        remote.run(site.target, "cat /dev/zero", timeout_s=20)


def test_a_key_pair_hides_its_private_half_and_reads_back(tmp_path: Path) -> None:
    pair = ed25519_pair("job abc")
    assert pair.public.startswith("ssh-ed25519 ")
    assert pair.public.endswith(" job abc")
    assert "PRIVATE" not in repr(pair)
    key = paramiko.PKey.from_path(private_key(pair, tmp_path, "k"))
    assert key.get_base64() == pair.public.split()[1]
    with pytest.raises(ValueError, match="one line"):
        ed25519_pair("a\nb")
