"""A connection that a command is (ssh's ProxyCommand): a socket for us, the command's stdin and stdout at its far end.

paramiko's own ProxyCommand is not used: it polls, leaves zombies and pipes behind (paramiko issues 413, 1713, 1715),
and its close() does not end a command that hangs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable

from cloudtrain.provisioner.errors import AccessError, UsageError
from cloudtrain.provisioner.proxy import INSTANCE_CONNECT, Bastion, login_command, parse, programs

GRACE_S = 2.0  # from SIGTERM to SIGKILL: time for a session to be ended at the far side too
_WORDS = 300  # bytes of what the command said on stderr


class ProxySocket(socket.socket):
    """A connected socket, as far as its user can tell. Closing it ends the command and whatever that started.

    Making one starts the command and waits for nothing. Raises OSError where it cannot be started.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the socket
        try:
            self._process = subprocess.Popen(  # noqa: S603 - proxy.py made the command, from checked words alone
                shlex.split(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,  # a group of its own, so that it ends whole; and no Ctrl-C of the terminal's
            )
        except BaseException:
            self._said.close()
            ours.close()
            raise
        finally:
            theirs.close()
        super().__init__(fileno=ours.detach())
        self._ended = threading.Lock()
        self._last_words = ""

    def words(self) -> str:
        """The last line that the command has said on stderr; "" where it said nothing. Also once it is closed."""
        with contextlib.suppress(ValueError, OSError):
            size = os.fstat(self._said.fileno()).st_size
            said = os.pread(self._said.fileno(), _WORDS, max(0, size - _WORDS)).decode(errors="replace")
            lines = [" ".join(line.split()) for line in said.replace("\r", "\n").split("\n")]
            self._last_words = next((line for line in reversed(lines) if line), "")
        return self._last_words

    def close(self) -> None:
        """End the connection and the command. Blocks for nothing; repeating it is harmless."""
        if self._ended.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
            _signal_group(self._process, signal.SIGTERM)
            # Not waited for before the end of the grace: until then its id, which is its group's, is nobody else's.
            timer = threading.Timer(GRACE_S, _finish, (self._process,))
            timer.daemon = True
            timer.start()
        super().close()
        self.words()
        self._said.close()


def _finish(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def require_programs(ssh_proxy: str | None, which: Callable[[str], str | None] = shutil.which) -> None:
    """Raise UsageError where this computer lacks a program that the way to the machines needs. Runs at most one."""
    for name in programs(ssh_proxy):
        if which(name) is None:
            raise UsageError(f"ssh_proxy {ssh_proxy} needs `{name}`, which is not on PATH: install {_PACKAGES[name]}")
    if ssh_proxy == INSTANCE_CONNECT:
        said = _version(str(which("aws")))
        if said.startswith("aws-cli/1."):  # version 1 has no open-tunnel (AWS CLI reference, 2026-11)
            raise UsageError(f"ssh_proxy {ssh_proxy} needs version 2 of the AWS CLI: `aws --version` says {said}")


def require_bastion(ssh_proxy: str | None) -> None:
    """Raise AccessError where ``ssh_proxy`` names a bastion that does not let us in. Logs in once; 30 s at most."""
    bastion = None if ssh_proxy is None else parse(ssh_proxy)
    if not isinstance(bastion, Bastion):
        return
    try:
        done = subprocess.run(  # noqa: S603 - proxy.py made the command, from checked words alone
            shlex.split(login_command(bastion)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # it let us in, and keeps us: only connecting has a limit of its own
    # One that lets nobody run a command is a bastion all the same.
    if done.returncode != _SSH_FAILED or any(word in done.stderr for word in ("request failed", "open failed")):
        return
    said = next(
        (" ".join(line.split()) for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing"
    )
    raise AccessError(
        f"the bastion {ssh_proxy} does not let us in ({said}): make `ssh {bastion.user}@{bastion.host}` work without a "
        "question, then try again"
    )


_SSH_FAILED = 255
_LOGIN_S = 30.0
_PACKAGES = {
    "ssh": "OpenSSH's client (openssh-client)",
    "aws": "the AWS CLI, version 2",
    "session-manager-plugin": "AWS's Session Manager plugin",
}


def _version(aws: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([aws, "--version"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
        return (done.stdout or done.stderr).split(" ", 1)[0]
    return ""
