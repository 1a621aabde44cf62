"""The bastion of namespace hosts: a network that they hang on, and the sshd on 127.0.0.1 that alone leads into it.

The sshd of each connection runs inside the network and has, as its one way out, the connection that the daemon
accepted outside. So there is no interface, no address and no route of ours on the computer's own network.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.localcloud import hostfiles, netns
from cloudtrain.provisioner.localcloud.hosts import ENV_CLOUD, Network

ALIAS = "cloudtrain-bastion"
_BRIDGE = "br0"
_GATEWAY = "10.77.0.1"
# A shell, because sshd writes its title over its environment: the mark in the shell's is what the guardian finds.
_WRAPPER = '"$0" "$@"; :'
_NO_JAIL = re.compile(r"Missing privilege separation directory: (\S+)")
_HOLDER = "while read -r _; do :; done"  # ends with its standard input, which ends with the daemon

_SSHD = """\
HostKey "{folder}/host_key"
AuthorizedKeysFile "{folder_percent}/authorized_keys"
PidFile none
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
UsePAM no
StrictModes no
PermitTTY no
PermitUserRC no
AllowTcpForwarding local
PermitOpen *:22
AllowAgentForwarding no
AllowStreamLocalForwarding no
X11Forwarding no
PermitTunnel no
UseDNS no
LoginGraceTime 30
ForceCommand echo "a bastion: it only passes connections on" >&2; exit 1
"""

_SSH = """\
Host {alias}
  HostName 127.0.0.1
  Port {port}
  User {user}
  HostKeyAlias {alias}
  UserKnownHostsFile "{folder_percent}/known_hosts"
  StrictHostKeyChecking yes
  IdentityFile "{folder_percent}/key"
  IdentitiesOnly yes
"""


@dataclass(frozen=True, slots=True)
class About:
    """What a person needs to go through it."""

    port: int
    user: str
    key: str
    ssh_config: str


class Bastion:
    """Made and open once constructed. Raises CloudtrainError where that does not work; ``close`` leaves nothing."""

    def __init__(self, folder: Path, cloud_id: str, sshd: str) -> None:
        self._folder = folder
        self._sshd = sshd
        self._user = hostfiles.account()
        self._env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", ENV_CLOUD: cloud_id}
        self._numbers = itertools.count(257)  # 10.77.1.1 on
        self._connections: set[subprocess.Popen[bytes]] = set()
        self._holder = subprocess.Popen(  # noqa: S603 - our own words
            [netns.program("unshare"), "--net", "--", "/bin/sh", "-c", _HOLDER],
            env=self._env,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        try:
            netns.await_own(self._holder.pid)
            lines = ["link set lo up", f"link add {_BRIDGE} type bridge", f"addr add {_GATEWAY}/16 dev {_BRIDGE}"]
            netns.configure(self._holder.pid, [*lines, f"link set {_BRIDGE} up"])
            self._write_files()
            self._check()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._accept, name="bastion", daemon=True).start()

    def about(self) -> About:
        """How to go through it."""
        port = int(self._listener.getsockname()[1])
        return About(port, self._user, str(self._folder / "key"), str(self._folder / "ssh_config"))

    def network(self, relay_port: int) -> Network:
        """A place on its network for one more host."""
        number = next(self._numbers)
        return Network(self._holder.pid, _BRIDGE, f"10.77.{number // 256}.{number % 256}", 16, relay_port)

    def close(self) -> None:
        """End it and what goes through it. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for process in [*self._connections, self._holder]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 9)
        self._holder.wait()
        if self._holder.stdin is not None:
            self._holder.stdin.close()

    def _write_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # of an earlier cloud
        self._folder.mkdir(parents=True, mode=0o700)
        host, client = ed25519_pair("bastion of the local cloud"), ed25519_pair("for the local cloud's bastion")
        words = {
            "folder": self._folder,
            "folder_percent": str(self._folder).replace("%", "%%"),
            "user": self._user,
            "alias": ALIAS,
            "port": self._listener.getsockname()[1],
        }
        files = {
            "host_key": host.private_openssh,
            "key": client.private_openssh,
            "authorized_keys": f"{client.public}\n",
            "known_hosts": f"{ALIAS} {host.public}\n",
            "sshd_config": _SSHD.format(**words),
            "ssh_config": _SSH.format(**words),
        }
        for name, text in files.items():
            path = self._folder / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")

    def _check(self) -> None:
        """Let sshd look at its configuration, and give it the folder that a system's own sshd makes at its start."""
        command = [self._sshd, "-t", "-f", str(self._folder / "sshd_config")]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
            jail = _NO_JAIL.search(done.stderr)
            if jail is None:
                break
            Path(jail[1]).mkdir(mode=0o755, exist_ok=True)
        if done.returncode:
            raise CloudtrainError(f"sshd does not start on this machine: {' '.join(done.stderr.split())}")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, (self._folder / "sshd.log").open("ab") as log, contextlib.suppress(OSError):
                process = subprocess.Popen(  # noqa: S603 - our own sshd, our own configuration
                    [
                        *netns.entering(self._holder.pid),
                        *("/bin/sh", "-c", _WRAPPER),
                        *(self._sshd, "-i", "-e", "-f", str(self._folder / "sshd_config")),
                    ],
                    env=self._env,
                    cwd="/",
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=log,
                    start_new_session=True,
                )
                self._connections.add(process)
                threading.Thread(target=self._reap, args=(process,), name="bastion", daemon=True).start()

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._connections.discard(process)
