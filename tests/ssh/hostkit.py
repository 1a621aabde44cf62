"""Local hosts for tests: keys, user data, and a paramiko client that accepts the pinned host key alone."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest
import yaml

from cloudtrain.provisioner.localcloud import cloudinit, host_sshd
from cloudtrain.provisioner.localcloud.cloudinit import HostKey
from cloudtrain.provisioner.localcloud.hosts import Host, HostSpec, start_host

KINDS = ("embedded", "sshd")


def require(kind: str) -> None:
    """Skip where there is no sshd, unless the run says that there must be one."""
    if kind == "sshd" and host_sshd.find_sshd() is None and os.environ.get("CLOUDTRAIN_REQUIRE_SSHD") != "1":
        pytest.skip("sshd is not installed")


def private_key(key: HostKey) -> paramiko.Ed25519Key:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(key.private))


def user_data(client: HostKey, host: HostKey, **more: object) -> str:
    config = {
        "ssh_authorized_keys": [f"{client.public} someone@laptop"],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        **more,
    }
    return "#cloud-config\n" + yaml.safe_dump(config)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


class Rig:
    """One host and one client key. Made by the ``rig`` fixture."""

    def __init__(self, kind: str, root: Path, *, env: dict[str, str] | None = None, **more: object) -> None:
        self.client_key = cloudinit.load_host_key(None)
        self.host_key = cloudinit.load_host_key(None)
        self.root = root
        self.spec = HostSpec(
            instance_id=f"i-{os.getpid()}-{time.monotonic_ns()}",
            cloud_id=f"cloud-{os.getpid()}",
            root=root,
            user_data=user_data(self.client_key, self.host_key, **more),
            env=env or {},
        )
        self.host: Host = start_host(kind, self.spec)
        self._clients: list[paramiko.SSHClient] = []

    def connect(self, *, client_key: HostKey | None = None, host_key: HostKey | None = None) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        host, port = self.host.endpoint
        pinned = private_key(host_key or self.host_key)
        client.get_host_keys().add(f"[{host}]:{port}", "ssh-ed25519", pinned)
        self._clients.append(client)
        sock = socket.create_connection((host, port), timeout=5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connect(
            host,
            port,
            username=self.host.user,
            pkey=private_key(client_key or self.client_key),
            allow_agent=False,
            look_for_keys=False,
            sock=sock,
            banner_timeout=5,
            auth_timeout=5,
        )
        return client

    def run(self, command: str, *, client: paramiko.SSHClient | None = None, stdin: bytes = b"") -> Answer:
        stdin_file, out, err = (client or self.connect()).exec_command(command, timeout=30)
        stdin_file.write(stdin)
        stdin_file.channel.shutdown_write()
        texts = out.read().decode(), err.read().decode()
        return Answer(out.channel.recv_exit_status(), *texts)

    def pid(self) -> int:
        """What a command wrote to the file ``pid`` in the home, once it has."""
        path = self.root / "home" / "pid"
        assert eventually(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.host.kill(grace_s=0)


def eventually(check: Callable[[], bool], *, within_s: float = 5.0) -> bool:
    """Whether ``check`` becomes true in time; looks every few milliseconds."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def alive(pid: int) -> bool:
    """Whether a process lives; one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
