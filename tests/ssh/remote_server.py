"""A small real SSH server for the tests of the Remote adapter: paramiko's server half, running commands with sh."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from cloudtrain.provisioner.adapters.keys import KeyPair


def private_key(pair: KeyPair, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(pair.private_openssh)
    path.chmod(0o600)
    return path


class _Interface(paramiko.ServerInterface):
    def __init__(self, owner: SshServer) -> None:
        self.owner = owner

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.owner.auth_attempts.append(username)
        ok = key.get_base64() == self.owner.accepted.public.split()[1]
        return AUTH_SUCCESSFUL if ok else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.owner.commands.append(command)
        if self.owner.stall.is_set():  # a server that hangs before it answers the request
            self.owner.stalled.wait(20)
            return False
        worker = threading.Thread(target=self.owner.execute, args=(channel, command), daemon=True)
        self.owner.workers.append(worker)
        worker.start()
        return True


class SshServer:
    """Listens on loopback until closed. ``stall`` makes it fall silent at the next command."""

    def __init__(self, folder: Path, host: KeyPair, accepted: KeyPair, *, port: int = 0) -> None:
        self.folder = folder
        self.accepted = accepted
        self.host_key = paramiko.Ed25519Key.from_private_key_file(str(private_key(host, folder, f"host-{id(host)}")))
        self.auth_attempts: list[str] = []
        self.commands: list[bytes] = []
        self.connections = 0
        self.workers: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.stall = threading.Event()
        self.stalled = threading.Event()
        self.configure: Callable[[paramiko.Transport], None] = lambda transport: None
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            transport = paramiko.Transport(sock)
            transport.add_server_key(self.host_key)
            self.configure(transport)
            self._transports.append(transport)
            try:
                transport.start_server(event=threading.Event(), server=_Interface(self))
            except (paramiko.SSHException, OSError, EOFError):
                transport.close()

    def execute(self, channel: paramiko.Channel, command: bytes) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self._processes.append(process)
        assert process.stdin and process.stdout and process.stderr
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

        def feed() -> None:
            with contextlib.suppress(OSError), stdin:
                while data := channel.recv(65536):
                    while data:
                        data = data[stdin.write(data) or 0 :]

        def errors() -> None:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                while data := stderr.read(65536):
                    channel.sendall_stderr(data)

        feeder = threading.Thread(target=feed, daemon=True)
        grumbler = threading.Thread(target=errors, daemon=True)
        feeder.start()
        grumbler.start()
        try:
            while data := stdout.read(65536):
                channel.sendall(data)
            grumbler.join(20)
            if process.wait() >= 0:  # a command that died by a signal has no exit status in SSH
                channel.send_exit_status(process.returncode)
        except (OSError, EOFError, paramiko.SSHException):  # the client has left: end the shell and what it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        finally:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                channel.close()  # sends a message, to a client that may have left
            process.wait()
            feeder.join(10)
            grumbler.join(10)
            stdout.close()
            stderr.close()

    def cut(self) -> None:
        """Drop every live connection; keep listening."""
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def close(self) -> None:
        self.stalled.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone would leave accept() waiting, and accepting
        self._listener.close()
        self.cut()
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for worker in self.workers:
            worker.join(10)


class SilentPeer:
    """Accepts connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def close(self) -> None:
        self._listener.close()


class FreezingProxy:
    """Passes bytes both ways until frozen; then it reads nothing and passes nothing, and closes nothing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.frozen = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.frozen.is_set():
                    return
                sink.sendall(data)
            sink.close()

    def close(self) -> None:
        self._listener.close()
        for sock in self._sockets:
            sock.close()
