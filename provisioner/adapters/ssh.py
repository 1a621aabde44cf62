"""The Remote port on paramiko: pinned host keys, strong algorithms, and no wait without an end.

paramiko waits for ever in several places when the peer falls silent (its keep-alive does not notice either), so each
call carries a watchdog that closes the connection when the call's time is up: whatever was waiting then fails at once.
"""

from __future__ import annotations

import logging
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import paramiko
from paramiko.ssh_exception import AuthenticationException, IncompatiblePeer, SSHException

from cloudtrain.provisioner.adapters.proxied import ProxySocket
from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.ports import RunResult, Target

CONNECT_S = 20.0  # TCP or proxy, banner, key exchange and log-in together; also bounded by the call's own time
OUTPUT_LIMIT = 64 * 1024 * 1024  # bytes of one command's output; a machine gone mad must not fill our memory
CHUNK = 64 * 1024
TURN_S = 0.2  # how long one direction may block before the other one is served

# No CBC, no SHA-1, no MD5, no ssh-rsa. AES-GCM first: it needs half the time of paramiko's own first choice.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
KEX = (
    "curve25519-sha256@libssh.org",
    "mlkem768x25519-sha256",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group16-sha512",
)
SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # key type -> signatures accepted, where they differ

# paramiko logs tracebacks for each lost connection; without any handler Python prints them on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(slots=True)
class _Link:
    """One target's connection, and the lock under which it is made."""

    lock: threading.Lock
    transport: paramiko.Transport | None = None


class ParamikoRemote:
    """Remote over paramiko. One connection per target, kept, shared by threads, made again when it broke."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._links: dict[Target, _Link] = {}

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        """Run a shell command, feeding it stdin to its end; at most timeout_s in all, connecting included.

        Nothing is repeated once the command was sent: when the connection breaks later, its fate is unknown.
        """
        deadline = time.monotonic() + timeout_s
        transport, channel = self._session(target, deadline)
        try:
            with _watchdog(transport, deadline), closing(channel):
                channel.settimeout(TURN_S)
                channel.exec_command(command)
                return _talk(channel, stdin, deadline)
        except (SSHException, OSError, EOFError) as error:
            self._drop(target, transport)
            raise _lost(target, error, deadline, timeout_s) from error

    def read(self, target: Target, path: str, *, offset: int, limit: int, timeout_s: float) -> bytes:
        """At most ``limit`` bytes of a file from ``offset``; b"" at its end or where there is no file."""
        command = f"tail -c +{offset + 1} -- {shlex.quote(path)} 2>/dev/null | head -c {limit}"
        return self.run(target, command, timeout_s=timeout_s).stdout

    def forget(self, target: Target) -> None:
        """Close the connection to the target, if there is one."""
        with self._guard:
            link = self._links.pop(target, None)
        if link is not None and link.transport is not None:
            link.transport.close()

    def close(self) -> None:
        """Close every connection."""
        with self._guard:
            targets = list(self._links)
        for target in targets:
            self.forget(target)

    def _session(self, target: Target, deadline: float) -> tuple[paramiko.Transport, paramiko.Channel]:
        """An open channel, on a new connection where the kept one turns out to be broken."""
        timeout_s = deadline - time.monotonic()
        for last in (False, True):
            transport, fresh = self._connected(target, deadline)
            try:
                with _watchdog(transport, deadline):
                    left_s = max(deadline - time.monotonic(), 0.01)
                    return transport, transport.open_session(timeout=left_s)
            except (SSHException, OSError, EOFError) as error:
                self._drop(target, transport)
                if last or fresh or time.monotonic() >= deadline:
                    raise _lost(target, error, deadline, timeout_s) from error
        raise AssertionError("unreachable")

    def _connected(self, target: Target, deadline: float) -> tuple[paramiko.Transport, bool]:
        """The target's connection, and whether it was made just now."""
        with self._guard:
            link = self._links.setdefault(target, _Link(threading.Lock()))
        timeout_s = deadline - time.monotonic()
        if not link.lock.acquire(timeout=max(timeout_s, 0)):
            raise RemoteError(f"{_name(target)}: no connection within {timeout_s:.1f} s; it is tried again")
        try:
            if link.transport is not None and link.transport.is_active():
                return link.transport, False
            link.transport = _connect(target, deadline)
            return link.transport, True
        finally:
            link.lock.release()

    def _drop(self, target: Target, transport: paramiko.Transport) -> None:
        """Forget a broken connection, unless another thread has already replaced it."""
        with self._guard:
            link = self._links.get(target)
            if link is not None and link.transport is transport:
                link.transport = None
        transport.close()


def _name(target: Target) -> str:
    return f"SSH to {target.user}@{target.endpoint.host}:{target.endpoint.port}"


def _lost(target: Target, error: Exception, deadline: float, timeout_s: float) -> RemoteError:
    if time.monotonic() >= deadline:
        return RemoteError(f"{_name(target)}: no answer within {timeout_s:.1f} s; it is tried again")
    words = " ".join(str(error).split()) or type(error).__name__
    return RemoteError(f"{_name(target)}: connection lost ({words}); it is tried again")


@contextmanager
def _watchdog(transport: paramiko.Transport, deadline: float) -> Iterator[None]:
    timer = threading.Timer(max(deadline - time.monotonic(), 0), transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connect(target: Target, deadline: float) -> paramiko.Transport:
    """A logged-in connection to the target, whose host key is one of the pinned ones. Raises RemoteError."""
    started = time.monotonic()
    deadline = min(deadline, started + CONNECT_S)
    pinned = [_parse_key(line) for line in target.host_keys]
    if not pinned:
        raise RemoteError(f"{_name(target)}: no host key is pinned, so the machine cannot be known; not connected")
    transport, sock = None, None
    try:
        client_key = paramiko.PKey.from_path(target.client_key)
        sock = _open(target, deadline)
        transport = paramiko.Transport(sock)
        _harden(transport, [name for name, _ in pinned])
        left_s = max(deadline - time.monotonic(), 0.01)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = left_s
        with _watchdog(transport, deadline):
            transport.start_client(timeout=left_s)
            _check_host_key(target, transport.get_remote_server_key(), pinned)
            transport.auth_publickey(target.user, client_key)
        return transport
    except RemoteError:
        _close(transport, sock)
        raise
    except (SSHException, OSError, EOFError, ValueError) as error:
        late = time.monotonic() >= deadline
        said = sock.words() if isinstance(sock, ProxySocket) else ""
        _close(transport, sock)
        raise _not_connected(target, error, late=late, waited_s=deadline - started, said=said) from error


def _open(target: Target, deadline: float) -> socket.socket:
    """The connection that SSH is to run on."""
    if target.proxy_command is not None:
        try:
            return ProxySocket(target.proxy_command)
        except FileNotFoundError as error:
            program = target.proxy_command.split()[0]
            raise RemoteError(
                f"{_name(target)}: its proxy needs `{program}`, which is not on PATH; install it"
            ) from error
    address = (target.endpoint.host, target.endpoint.port)
    sock = socket.create_connection(address, timeout=max(deadline - time.monotonic(), 0.01))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _close(transport: paramiko.Transport | None, sock: socket.socket | None) -> None:
    if transport is not None:
        transport.close()
    if sock is not None:
        sock.close()  # a transport that was never active leaves it open


def _not_connected(target: Target, error: Exception, *, late: bool, waited_s: float, said: str) -> RemoteError:
    if isinstance(error, AuthenticationException) and not late:
        return RemoteError(f"{_name(target)}: the machine refused our key; it may still be booting")
    if said:
        return RemoteError(f"{_name(target)}: not connected, its proxy says: {said}; it is tried again")
    if isinstance(error, FileNotFoundError) and error.filename:
        return RemoteError(f"{_name(target)}: our key {error.filename} is missing; `cloudtrain down` ends the job")
    if late or isinstance(error, TimeoutError):
        return RemoteError(f"{_name(target)}: no connection within {waited_s:.1f} s; it is tried again")
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, IncompatiblePeer):
        return RemoteError(
            f"{_name(target)}: refused, as it offers no algorithm that is safe ({words}): take an image whose sshd is "
            "set up as OpenSSH 7.4 or later comes"
        )
    return RemoteError(f"{_name(target)}: not connected ({words}); it is tried again")


def _parse_key(line: str) -> tuple[str, str]:
    """Type and base64 body of a public key line, without its comment."""
    parts = line.split()
    if len(parts) < 2:
        raise RemoteError(f"not a public key: {line[:80]!r} (want 'ssh-ed25519 AAAA…')")
    return parts[0], parts[1]


def _harden(transport: paramiko.Transport, key_types: list[str]) -> None:
    """Offer strong algorithms only, and host key types that are pinned: the server then shows the key we know."""
    options = transport.get_security_options()
    signatures = [s for name in key_types for s in SIGNATURES.get(name, (name,))]
    options.ciphers = tuple(c for c in CIPHERS if c in options.ciphers)
    options.digests = tuple(m for m in MACS if m in options.digests)
    options.kex = tuple(k for k in KEX if k in options.kex)
    options.key_types = tuple(dict.fromkeys(s for s in signatures if s in options.key_types))


def _check_host_key(target: Target, shown: paramiko.PKey, pinned: list[tuple[str, str]]) -> None:
    if (shown.get_name(), shown.get_base64()) in pinned:
        return
    raise RemoteError(
        f"{_name(target)}: it shows the host key {shown.fingerprint}, not the one pinned at launch; "
        "not logged in: it is another machine, or somebody stands in between"
    )


def _talk(channel: paramiko.Channel, stdin: BinaryIO | None, deadline: float) -> RunResult:
    """Feed stdin and gather both outputs in turns, so that neither side waits for the other for ever."""
    out, err = bytearray(), bytearray()
    if stdin is not None:
        _feed(channel, stdin, out, err, deadline)
    channel.shutdown_write()
    while True:
        _drain(channel, out, err)
        try:
            chunk = channel.recv(CHUNK)
        except TimeoutError:
            _check_time(deadline)
            continue
        if not chunk:
            break
        out += chunk
        _check_size(out)
    while chunk := _stderr(channel, deadline):
        err += chunk
        _check_size(err)
    if not channel.status_event.wait(max(deadline - time.monotonic(), 0)):
        raise TimeoutError("no exit status")
    code = channel.recv_exit_status()
    if code < 0:  # paramiko's word for a channel that closed without one: cut off, or the command died by a signal
        raise SSHException("the command ended without an exit status")
    return RunResult(code, bytes(out), bytes(err))


def _feed(channel: paramiko.Channel, stdin: BinaryIO, out: bytearray, err: bytearray, deadline: float) -> None:
    while chunk := stdin.read(CHUNK):
        while chunk:
            try:
                sent = channel.send(chunk)
            except TimeoutError:
                _check_time(deadline)
                sent = 0
            except OSError:  # closed: the command left without reading all, and its exit code says why
                return
            if sent == 0 and (channel.closed or channel.eof_received):
                return
            chunk = chunk[sent:]
            _drain(channel, out, err)


def _drain(channel: paramiko.Channel, out: bytearray, err: bytearray) -> None:
    """Take what has already arrived. A side that is not read fills the window that both outputs share."""
    while channel.recv_ready():
        out += channel.recv(CHUNK)
        _check_size(out)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(CHUNK)
        _check_size(err)


def _stderr(channel: paramiko.Channel, deadline: float) -> bytes:
    while True:
        try:
            return channel.recv_stderr(CHUNK)
        except TimeoutError:
            _check_time(deadline)


def _check_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise TimeoutError("no answer in time")


def _check_size(data: bytearray) -> None:
    if len(data) > OUTPUT_LIMIT:
        raise SSHException(f"the command wrote more than {OUTPUT_LIMIT >> 20} MiB")
