"""A terminal of an embedded host: a pseudo-terminal, and a process that has it for its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import paramiko

_CHUNK_BYTES = 16 * 1024
_LOOK_S = 0.1
_LOST = (OSError, EOFError, paramiko.SSHException)


class Terminal:
    """What a client asked for; ``start`` puts a process on it, ``serve`` moves its bytes until it ends."""

    def __init__(self, name: str, rows: int, columns: int) -> None:
        self._name = name
        self._size = struct.pack("HHHH", rows, columns, 0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._master = -1

    def start(self, command: Sequence[str], env: Mapping[str, str], home: Path) -> None:
        """Run the command on the terminal, leader of a session of its own. Raises OSError."""
        self._master, slave = pty.openpty()
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, self._size)
            # setsid makes it the session's terminal, so that Ctrl-C and job control work; Popen can't.
            self._process = subprocess.Popen(  # noqa: S603 - running what the client asks is what an SSH server is for
                ["setsid", "--ctty", "--wait", *command],  # noqa: S607 - util-linux, beside the kernel's /proc
                cwd=home,
                env={**env, "TERM": self._name or "dumb"},
                stdin=slave,
                stdout=slave,
                stderr=slave,
            )
        except OSError:
            os.close(self._master)
            raise
        finally:
            os.close(slave)

    def serve(self, channel: paramiko.Channel, replied: threading.Event) -> None:
        """Both directions, then the exit status. A process whose client has left is hung up on, as by a real one."""
        process = self._process
        assert process is not None
        feeder = threading.Thread(target=self._feed, args=(channel,), name="terminal input", daemon=True)
        feeder.start()
        with contextlib.suppress(*_LOST):  # the kernel reports the end of a terminal as an I/O error
            while data := os.read(self._master, _CHUNK_BYTES):
                channel.sendall(data)
        code = process.wait()
        replied.wait(1.0)
        with contextlib.suppress(*_LOST):
            if code >= 0:
                channel.send_exit_status(code)
            channel.close()
        feeder.join()  # only then: it must not write to what has taken the descriptor's number
        os.close(self._master)

    def _feed(self, channel: paramiko.Channel) -> None:
        process = self._process
        assert process is not None
        with contextlib.suppress(*_LOST):
            while data := channel.recv(_CHUNK_BYTES):
                os.write(self._master, data)
            if not channel.closed:
                os.write(self._master, b"\x04")  # the end of input, as a terminal says it
        while process.poll() is None:
            if channel.closed:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGHUP)
                return
            time.sleep(_LOOK_S)
