"""A local host whose SSH server is OpenSSH's own, one sshd per host, run by this account on a free port of 127.0.0.1.

sshd has no way to be told "this login's home is over there": ForceCommand runs a script that sets the host's
environment, from nothing, and its current directory, then the client's command. The login user is this account.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from cloudtrain.provisioner.errors import CloudtrainError, UsageError
from cloudtrain.provisioner.localcloud import hostfiles, processes, shims
from cloudtrain.provisioner.localcloud.cloudinit import HostKey
from cloudtrain.provisioner.localcloud.host_base import BaseHost
from cloudtrain.provisioner.localcloud.hosts import ENV_CLOUD, ENV_CONTROL, ENV_INSTANCE, HostSpec

_SBIN = "/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin"  # often not on a plain user's PATH
_START_TRIES = 5
_START_LIMIT_S = 10.0
# What sshd says when it runs as root and its jail is missing, which a distribution makes when the system's sshd starts.
_NO_JAIL = re.compile(r"Missing privilege separation directory: (\S+)")

# A shell, because sshd writes its title over its environment: the mark in the shell's is what the guardian finds.
# The colon keeps the shell from turning into sshd.
_WRAPPER = '"$0" "$@"; :'

_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey "{host_key}"
AuthorizedKeysFile "{etc_percent}/authorized_keys"
PidFile "{pid_file}"
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
UsePAM no
StrictModes no
PermitUserRC no
AllowTcpForwarding local
PermitOpen 127.0.0.1:* localhost:*
AllowAgentForwarding no
AllowStreamLocalForwarding no
X11Forwarding no
PermitTunnel no
UseDNS no
LoginGraceTime 30
MaxSessions 100
MaxStartups 100:30:200
SetEnv {set_env}
ForceCommand {force_command}
"""


class SshdHost(BaseHost):
    """A host of kind "sshd". Raises UsageError where there is no sshd, CloudtrainError where it does not start."""

    def __init__(self, spec: HostSpec) -> None:
        program = find_sshd()
        if program is None:
            raise UsageError("sshd is not installed: install openssh-server, or use hosts of the kind embedded")
        self._program = program
        self._server: subprocess.Popen[bytes] | None = None
        super().__init__(spec)

    def set_cut(self, cut: bool) -> None:
        """Cut the host off, or join it again: its sshd processes are stopped, what they started goes on."""
        processes.send(self._server_pids(), signal.SIGSTOP if cut else signal.SIGCONT)

    def _serve(self, key: HostKey, authorized_keys: tuple[str, ...]) -> int:
        etc = self._files.etc
        (etc / "authorized_keys").write_text("".join(f"{line}\n" for line in authorized_keys), encoding="utf-8")
        _write_session(etc / "session.sh", self._env, self._files.home)
        said = ""
        for _ in range(_START_TRIES):
            port = self._free_port()
            said = self._start(port)
            if not said:
                return port
            jail = _NO_JAIL.search(said)
            if jail and os.geteuid() == 0:
                Path(jail[1]).mkdir(mode=0o755, exist_ok=True)
            elif "in use" not in said:  # another process took the port meanwhile: try the next
                break
        raise CloudtrainError(f"sshd does not start on this machine: {' '.join(said.split())}")

    def _start(self, port: int) -> str:
        """Start sshd on a port; an empty text once it answers, else what it said."""
        etc = self._files.etc
        log = etc / "sshd.log"
        log.unlink(missing_ok=True)
        config = etc / "sshd_config"
        config.write_text(self._config(port), encoding="utf-8")
        self._server = self._popen(config, log)
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self._server.poll() is None:
            if self._answers(port) and self._server.poll() is None:
                return ""
            time.sleep(0.003)
        self._close()
        return log.read_text(encoding="utf-8", errors="replace")[-1000:] or f"no answer on port {port}"

    def _popen(self, config: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start the server's shell."""
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own sshd, our own configuration
                ["/bin/sh", "-c", _WRAPPER, self._program, "-D", "-e", "-f", str(config)],
                env=self._env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _free_port(self) -> int:
        """A port to listen on."""
        with socket.create_server((self.address, 0)) as probe:
            return int(probe.getsockname()[1])

    def _answers(self, port: int) -> bool:
        """Whether the server answers."""
        return greets(self.address, port)

    def _config(self, port: int) -> str:
        etc = self._files.etc
        marks = {name: self._env[name] for name in ("HOME", ENV_INSTANCE, ENV_CLOUD, ENV_CONTROL)}
        return _CONFIG.format(
            address=self.address,
            port=port,
            host_key=self._files.host_key,
            pid_file=self._files.control / shims.SSHD_PID,
            etc_percent=str(etc).replace("%", "%%"),  # sshd expands %h and the like in this one
            user=self.user,
            # For the login shell that runs ForceCommand: no startup files of the real home, and marked from the start.
            set_env=" ".join(f'"{name}={value}"' for name, value in marks.items()),
            # exec: not every login shell steps aside by itself, and it would hide the signal that ends a command.
            force_command=f"exec {shlex.quote(str(etc / 'session.sh'))}",
        )

    def _server_pids(self) -> set[int]:
        """The listening sshd and the one or two of each connection, not what they started for the client."""
        if self._server is None:
            return set()
        return processes.named(processes.descendants(self._server.pid), "sshd")

    def _processes(self) -> set[int]:
        server = set() if self._server is None else {self._server.pid}
        return super()._processes() - self._server_pids() - server

    def _stop_listening(self) -> None:
        # Stopped, not ended: without their parent, the sshd of each connection could not be found any more.
        self.set_cut(True)

    def _close(self) -> None:
        if self._server is None:
            return
        server = self._server
        processes.end(lambda: processes.descendants(server.pid), grace_s=0)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the shell sees its sshd end, and ends
            server.wait(1.0)
        server.kill()
        server.wait()
        self._server = None


def find_sshd() -> str | None:
    """The path of OpenSSH's server, which must be absolute; None where it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _write_session(path: Path, env: dict[str, str], home: Path) -> None:
    """The script that every login runs: the host's environment from nothing, its home, then the client's command."""
    assignments = " ".join(shlex.quote(f"{name}={value}") for name, value in env.items())
    shell = shlex.quote(hostfiles.shell())
    path.write_text(
        "#!/bin/sh\n"
        f"cd {shlex.quote(str(home))} || exit\n"
        f'[ -n "$SSH_ORIGINAL_COMMAND" ] || exec env -i {assignments} TERM="$TERM" {shell} -i\n'
        f'exec env -i {assignments} ${{TERM:+TERM="$TERM"}} {shell} -c "$SSH_ORIGINAL_COMMAND"\n',
        encoding="utf-8",
    )
    path.chmod(0o700)


def greets(address: str, port: int) -> bool:
    """Whether an SSH server greets there."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0) as connection:
        return connection.recv(4).startswith(b"SSH-")
    return False
