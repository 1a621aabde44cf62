"""A local host whose SSH server is paramiko's, in threads of the daemon: it needs nothing but Python.

It serves what the provisioner uses of SSH and what OpenSSH does there: public keys only, ``exec`` with its exit
status, both outputs apart, standard input to its end, several commands per connection, commands that go on when the
connection is lost, terminals, and forwarding to its own loopback. No SFTP.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

import paramiko
from paramiko import common

from cloudtrain.provisioner.localcloud import hostfiles, shims
from cloudtrain.provisioner.localcloud.cloudinit import HostKey
from cloudtrain.provisioner.localcloud.host_base import BaseHost
from cloudtrain.provisioner.localcloud.hosts import HostSpec
from cloudtrain.provisioner.localcloud.terminal import Terminal

_CHUNK_BYTES = 64 * 1024
_BACKLOG = 64
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CONNECT_S = 5.0
_LOST = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises, anywhere, when the connection is gone
_LOG_CHANNEL = "cloudtrain.localcloud.ssh"

# paramiko logs a traceback for every port scan and every client that leaves early; without a handler it goes to stderr.
_logger = logging.getLogger(_LOG_CHANNEL)
_logger.addHandler(logging.NullHandler())
_logger.propagate = False


class EmbeddedHost(BaseHost):
    """A host of kind "embedded"."""

    def __init__(self, spec: HostSpec) -> None:
        self._link = _Link()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._transports: set[_Transport] = set()
        self._lock = threading.Lock()
        try:
            super().__init__(spec)
        except BaseException:
            self._listener.close()
            raise

    def set_cut(self, cut: bool) -> None:
        """Cut the host off, or join it again: connections hang and go on later, new ones are never answered."""
        self._link.set_cut(cut)

    def run(
        self, command: bytes, channel: paramiko.Channel, replied: threading.Event, terminal: Terminal | None
    ) -> None:
        """Start a command ("": a shell) for a channel; returns at once. Raises OSError where no process can start."""
        if self._closing.is_set():
            raise OSError("the host is going down")
        if terminal is not None:
            terminal.start(
                [hostfiles.shell(), *(["-c", command.decode()] if command else ["-i"])], self._env, self._files.home
            )
            _start_thread(terminal.serve, channel, replied)
            return
        process = subprocess.Popen(  # noqa: S603 - running what the client asks is what an SSH server is for
            [hostfiles.shell().encode(), b"-c", command],
            cwd=self._files.home,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        _start_thread(_serve_process, process, channel, replied)

    def _serve(self, key: HostKey, authorized_keys: tuple[str, ...]) -> int:
        self._server_key = paramiko.Ed25519Key.from_private_key(io.StringIO(key.private))
        allowed = {tuple(line.split()[:2]) for line in authorized_keys}
        _start_thread(self._accept, allowed)
        return int(self._listener.getsockname()[1])

    def _reload(self) -> None:
        """As sshd at a SIGHUP: read the host key again, once it was asked for; connections that are open go on."""
        asked = self._files.control / shims.SSH_RELOAD
        if asked.exists():
            asked.unlink()
            self._server_key = paramiko.Ed25519Key.from_private_key_file(str(self._files.host_key))

    def _accept(self, allowed: set[tuple[str, ...]]) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed by _stop_listening
                return
            self._link.wait_joined()
            try:
                # As OpenSSH does: an answer is many small packets, and each would wait 40 ms for the one before.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport = _Transport(_CutSocket(connection, self._link))  # type: ignore[arg-type] # as much of a socket as paramiko uses
                transport.set_log_channel(_LOG_CHANNEL)
                self._reload()
                transport.add_server_key(self._server_key)
                # With an event it does not wait for the client, who may never say a word.
                transport.start_server(event=threading.Event(), server=_Server(self, allowed))
            except _LOST as error:
                _logger.info("connection lost at its start: %s", error)
                connection.close()
                continue
            with self._lock:
                self._transports = {other for other in self._transports if other.is_active()} | {transport}

    def _stop_listening(self) -> None:
        self._closing.set()
        self._link.set_cut(False)  # whoever waits for the network must see the end
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone does not wake accept() on Linux
        self._listener.close()

    def _close(self) -> None:
        with self._lock:
            transports, self._transports = self._transports, set()
        for transport in transports:
            with contextlib.suppress(*_LOST):
                transport.close()


class _Server(paramiko.ServerInterface):
    """What one connection may do."""

    def __init__(self, host: EmbeddedHost, allowed: set[tuple[str, ...]]) -> None:
        self._host = host
        self._allowed = allowed
        self._terminals: dict[int, Terminal] = {}  # channel id -> what was asked for
        self._forwards: dict[int, socket.socket] = {}  # channel id -> the connection that it stands for
        self._forwarding = False

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = (key.get_name(), key.get_base64()) in self._allowed
        return common.AUTH_SUCCESSFUL if known else common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return common.OPEN_SUCCEEDED if kind == "session" else common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        transport = channel.get_transport()
        assert isinstance(transport, _Transport)
        try:
            self._host.run(command, channel, transport.next_reply(), self._terminals.pop(channel.get_id(), None))
        except OSError as error:
            _logger.warning("cannot run a command: %s", error)
            return False
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self.check_channel_exec_request(channel, b"")

    def check_channel_pty_request(self, channel: paramiko.Channel, term: bytes, *size: Any) -> bool:
        columns, rows = size[:2]
        self._terminals[channel.get_id()] = Terminal(term.decode("ascii", "replace"), rows, columns)
        return True

    def check_channel_window_change_request(self, channel: paramiko.Channel, *size: Any) -> bool:
        return False  # a terminal keeps the size that it came with

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        if destination[0] not in _LOOPBACK:
            return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        try:
            self._forwards[chanid] = socket.create_connection(("127.0.0.1", destination[1]), timeout=_CONNECT_S)
        except OSError:
            return common.OPEN_FAILED_CONNECT_FAILED
        if not self._forwarding:
            self._forwarding = True
            _start_thread(self._forward, threading.current_thread())
        return common.OPEN_SUCCEEDED

    def _forward(self, transport: paramiko.Transport) -> None:
        """Serve the connection's forwards. One thread for all: every channel comes by, and two waiting miss some."""
        while transport.is_active():
            channel = transport.accept(_CONNECT_S)
            connection = None if channel is None else self._forwards.pop(channel.get_id(), None)
            if connection is not None:
                _start_thread(_join, channel, connection)


class _Transport(paramiko.Transport):
    """Tells when the answer to a request has left, which the server interface has no hook for.

    A command may end before the client was told that it started; its exit status would then overtake the answer,
    and paramiko's client calls that a closed channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._reply: threading.Event | None = None

    def next_reply(self) -> threading.Event:
        """An event that is set once the answer to the request being served is sent. Called on this thread only."""
        self._reply = threading.Event()
        return self._reply

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc] # not in the stubs
        if self._reply is not None and threading.current_thread() is self:
            self._reply.set()
            self._reply = None


class _Link:
    """The network between a host and its clients."""

    def __init__(self) -> None:
        self._joined = threading.Event()
        self._joined.set()

    def set_cut(self, cut: bool) -> None:
        if cut:
            self._joined.clear()
        else:
            self._joined.set()

    def wait_joined(self, timeout_s: float | None = None) -> bool:
        return self._joined.wait(timeout_s)


class _CutSocket:
    """A socket that, while its link is cut, times out as paramiko expects of one on which nothing comes or goes."""

    def __init__(self, sock: socket.socket, link: _Link) -> None:
        self._socket = sock
        self._link = link
        self._timeout_s: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    def recv(self, size: int) -> bytes:
        self._wait()
        data = self._socket.recv(size)
        self._link.wait_joined()  # it came through just as the link was cut: hold it back, unless it is the end
        return data

    def send(self, data: bytes) -> int:
        self._wait()
        return self._socket.send(data)

    def _wait(self) -> None:
        if not self._link.wait_joined(self._timeout_s):
            raise TimeoutError("the host is cut off")


def _serve_process(process: subprocess.Popen[bytes], channel: paramiko.Channel, replied: threading.Event) -> None:
    """Move bytes between a process and its channel until it ends. The process outlives a lost connection."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    _start_thread(_feed, channel, process.stdin)
    outputs = [
        _start_thread(_drain, process.stdout, channel.sendall),
        _start_thread(_drain, process.stderr, channel.sendall_stderr),
    ]
    code = process.wait()
    replied.wait(1.0)  # it is set within milliseconds; a limit, because the connection may be lost
    with contextlib.suppress(*_LOST):
        if code >= 0:  # ended by a signal: no status, which a client reads as -1, as it does from OpenSSH
            channel.send_exit_status(code)
    for output in outputs:  # what the process left running in the background may hold them open, as in OpenSSH
        output.join()
    with contextlib.suppress(*_LOST):
        channel.close()


def _join(channel: paramiko.Channel, connection: socket.socket) -> None:
    """Both directions of a forwarded connection, until both have ended."""
    connection.settimeout(None)
    ours = _start_thread(_copy, channel.recv, connection.sendall, lambda: connection.shutdown(socket.SHUT_WR))
    _copy(connection.recv, channel.sendall, channel.shutdown_write)
    ours.join()
    connection.close()
    with contextlib.suppress(*_LOST):
        channel.close()


def _copy(receive: Callable[[int], bytes], send: Callable[[bytes], Any], end: Callable[[], Any]) -> None:
    """One direction of a forwarded connection, to its end."""
    with contextlib.suppress(*_LOST):
        while data := receive(_CHUNK_BYTES):
            send(data)
    with contextlib.suppress(*_LOST):
        end()


def _feed(channel: paramiko.Channel, stdin: IO[bytes]) -> None:
    """Channel to process. The channel's window stays shut while the process does not read, so memory stays small."""
    with contextlib.suppress(*_LOST), stdin:
        while data := channel.recv(_CHUNK_BYTES):
            view = memoryview(data)
            while view:
                view = view[stdin.write(view) :]


def _drain(output: IO[bytes], send: Callable[[bytes], None]) -> None:
    """Process to channel. When the client is gone the pipe is closed, so the process hears of it when it writes."""
    with contextlib.suppress(*_LOST), output:
        while data := output.read(_CHUNK_BYTES):
            send(data)


def _start_thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"ssh {target.__name__}")
    thread.start()
    return thread
