"""A local host in a network of its own: OpenSSH's sshd on port 22 of a private address that only the bastion reaches.

Of the rest of the computer it sees the embedded cloud's one port, on its own loopback, and nothing else: no internet.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from pathlib import Path

from cloudtrain.provisioner.localcloud import netns
from cloudtrain.provisioner.localcloud.host_sshd import SshdHost, greets
from cloudtrain.provisioner.localcloud.hosts import HostSpec

_PORT = 22
# It waits for its network, which comes with the line that says its name; then the mark in its environment stays.
_WRAPPER = 'read -r name || exit; echo "$name" >/proc/sys/kernel/hostname; "$0" "$@" </dev/null; :'
_NAMES = itertools.count()


class NetnsHost(SshdHost):
    """A host of kind "netns". Raises as SshdHost does, and CloudtrainError where its network can't be made."""

    def __init__(self, spec: HostSpec) -> None:
        assert spec.network is not None
        self._network = spec.network
        self._relay: netns.Relay | None = None
        self.address = spec.network.address
        super().__init__(spec)

    def _free_port(self) -> int:
        return _PORT

    def _popen(self, config: Path, log: Path) -> subprocess.Popen[bytes]:
        command = [netns.program("unshare"), "--net", "--uts", "--", "/bin/sh", "-c", _WRAPPER]
        with log.open("ab") as output:
            server = subprocess.Popen(  # noqa: S603 - our own sshd, our own configuration
                [*command, self._program, "-D", "-e", "-f", str(config)],
                env=self._env,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        assert server.stdin is not None
        try:
            netns.await_own(server.pid)
            self._join(server.pid)
            server.stdin.write(f"ip-{self.address.replace('.', '-')}\n".encode())
        except BaseException:
            server.kill()
            server.wait()
            raise
        finally:
            with contextlib.suppress(OSError):
                server.stdin.close()
        return server

    def _join(self, pid: int) -> None:
        """Plug the host into the bastion's network, and the cloud's port into the host."""
        there, name = self._network, f"ct{next(_NAMES)}"
        netns.configure(there.bastion_pid, [f"link add {name} type veth peer name eth0 netns {pid}"])
        netns.configure(there.bastion_pid, [f"link set {name} master {there.bridge} up"])
        address = f"addr add {there.address}/{there.prefix_bits} dev eth0"
        netns.configure(pid, ["link set lo up", address, "link set eth0 up"])
        self._unplug()
        self._relay = netns.Relay(pid, there.relay_port)

    def _answers(self, port: int) -> bool:
        server = self._server
        return server is not None and netns.inside(server.pid, lambda: greets(self.address, port))

    def _close(self) -> None:
        super()._close()
        self._unplug()

    def _unplug(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None
