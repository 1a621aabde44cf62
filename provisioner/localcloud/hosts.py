"""The machines of the embedded cloud: what the daemon asks of a host, whichever way it is made.

A host is a folder, an SSH server (on 127.0.0.1, or in a network of its own) and the processes that were started
through it. Its folder:

    home/         HOME of everything that runs there; home/venv is its Python, home/bin its stand-in commands
    control/      what the host asks of the cloud: ``poweroff`` (a file), ``timers/<unit>.json``
    rootfs/       where cloud-init's ``write_files`` land; ``CLOUDTRAIN_ROOT`` in its scripts
    etc/          keys and server configuration
    console.log   what the boot printed; all that is left of the folder after ``kill``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cloudtrain.provisioner.errors import UsageError

ENV_INSTANCE = "CLOUDTRAIN_LOCAL_INSTANCE"
ENV_CLOUD = "CLOUDTRAIN_LOCAL_CLOUD"
ENV_CONTROL = "CLOUDTRAIN_LOCAL_CONTROL"


@dataclass(frozen=True, slots=True)
class Network:
    """A place for a host on the bastion's network, and the port of the embedded cloud that it must see."""

    bastion_pid: int
    bridge: str
    address: str
    prefix_bits: int
    relay_port: int


@dataclass(frozen=True)
class HostSpec:
    """What a host is made from. ``root`` is created; ``env`` is added to the environment of all that runs there.

    ``python``: what its Python is like, a value of ``hostpython.IMAGES``; "" is this process's own.
    """

    instance_id: str
    cloud_id: str
    root: Path
    user_data: str
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    network: Network | None = None  # of a host of the kind "netns"
    python: str = ""


class Host(Protocol):
    """A booted machine that answers on ``endpoint``. Every method may be called from any thread."""

    endpoint: tuple[str, int]
    """Address and port of its SSH server."""
    user: str
    """The login name: the account that the cloud itself runs as (an embedded host takes any other as well)."""

    @property
    def console(self) -> str:
        """What the boot printed, the public host keys among it, in cloud-init's form. Also after ``kill``."""
        ...

    def poweroff_requested(self) -> bool:
        """Whether the host asked to be switched off, by a command or by a timer that is due."""
        ...

    def kill(self, *, grace_s: float) -> None:
        """End the host: SIGTERM to every process, SIGKILL after ``grace_s`` seconds (0: at once), the server closed,
        the folder removed but for console.log. Blocks ``grace_s`` and a moment. Repeating it is harmless."""
        ...

    def step(self) -> int | None:
        """The step that the job's process last reported; None where it reported none."""
        ...

    def set_cut(self, cut: bool) -> None:
        """Cut the host off the network, or join it again: what runs goes on, connections hang and new ones fail."""
        ...


def start_host(kind: str, spec: HostSpec) -> Host:
    """Make and boot a host; returns once its SSH server answers. Blocks well under a second.

    ``kind`` is "embedded" (a paramiko server in this process), "sshd" (OpenSSH's) or "netns" (that, in a network of
    its own). Raises UsageError for another kind, for an sshd that is not installed, and for user data that a machine
    would not take.
    """
    # Imported here because only the kind in use may be there: sshd hosts need no paramiko server, and the reverse.
    if kind == "embedded":
        from cloudtrain.provisioner.localcloud.host_embedded import EmbeddedHost  # noqa: PLC0415

        return EmbeddedHost(spec)
    if kind == "sshd":
        from cloudtrain.provisioner.localcloud.host_sshd import SshdHost  # noqa: PLC0415

        return SshdHost(spec)
    if kind == "netns":
        from cloudtrain.provisioner.localcloud.host_netns import NetnsHost  # noqa: PLC0415

        return NetnsHost(spec)
    raise UsageError(f"host kind {kind!r} is unknown: use embedded, sshd or netns")
