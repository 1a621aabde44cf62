"""The machine under the agent: a real one with systemd, or a host of the embedded cloud, which is none of its own.

A local host never powers off, never uses sudo and touches nothing outside its home: it asks by a file, and the embedded
cloud ends the host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..contract import SWITCH_DIR, WORK_FILE, mount_target_trouble
from .placing import PlaceError, show

logger = logging.getLogger(__name__)

UNIT = "cloudtrain-agent"
ENV_LOCAL_CONTROL = "CLOUDTRAIN_LOCAL_CONTROL"
ENV_LOCAL_ROOT = "CLOUDTRAIN_ROOT"  # stands in for /
_POWEROFF_WAIT_S = 60.0
_LIFE_EVERY_S = 30.0

_PROPERTIES = (
    "Restart=on-failure",  # an agent that was killed comes back and resumes; one that failed has said so and ends well
    "KillMode=mixed",  # at shutdown the agent gets SIGTERM alone, and stops the job by its own protocol
    "TimeoutStopSec=90",
    "OOMPolicy=continue",  # the default ends the whole unit when the kernel kills one worker (systemd.service(5))
    "TasksMax=infinity",  # the default, 15 % of the system's, is short for many loader workers (systemd-system.conf(5))
    "LimitNOFILE=65536",  # the soft default of 1024 is short for shared tensors (systemd.exec(5))
    "LimitMEMLOCK=infinity",  # pinned memory
    "WatchdogSec=300",  # an agent whose loop stands still publishes nothing: it comes back and resumes
    "WatchdogSignal=SIGKILL",  # the default dumps its memory to the disk, secrets and all
    "NotifyAccess=main",
    "After=network-online.target",  # so that at shutdown the network goes after us
)
_PASSED = ("AWS_REGION", "AWS_DEFAULT_REGION", "LANG", "PATH")

Runner = Callable[[Sequence[str], float], int]


class Host(Protocol):
    """What differs between a real machine and a local host."""

    notice_poll_s: float  # how often to ask the metadata service
    real: bool  # a whole machine, with the GPUs of its type
    work_file: Path | None  # where the dead-man switch looks for work; None: no switch is told

    def start_agent(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Start the agent so that it outlives this session. Raises OSError, HostError."""
        ...

    def show_life(self) -> None:
        """Tell the machine that the agent's loop turns: one that stands still is started again. Cheap."""
        ...

    def poweroff(self) -> None:
        """Ask for the end of the machine. Returns when it was asked, or, on a real one, never."""
        ...

    def place(self, target: str, data: Path, rootfs: Path) -> None:
        """Make the absolute path ``target`` a link to ``data``; on a local host, the path of that name below
        ``rootfs``. Idempotent. Raises PlaceError for a path that is taken or the system's own, OSError."""
        ...


class HostError(Exception):
    """The machine refused. One line."""


class SystemdHost:
    """A machine of ours alone. ``run`` starts a program and returns its exit code, within so many seconds."""

    notice_poll_s = 5.0  # AWS, "Spot Instance interruption notices", 2026-11: "every 5 seconds"
    real = True
    work_file: Path | None = Path(WORK_FILE)

    def __init__(self, run: Runner | None = None, *, root: bool | None = None) -> None:
        self._run = run or _run
        self._sudo = () if (os.geteuid() == 0 if root is None else root) else ("sudo", "-n")
        self._notify = os.environ.get("NOTIFY_SOCKET")
        self._shown_at = float("-inf")

    def start_agent(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """A transient unit, as root: only root may power off, and the job's user may not kill its agent."""
        command = [*self._sudo, "systemd-run", f"--unit={UNIT}", "--collect", f"--working-directory={cwd}"]
        command += [f"--property={line}" for line in _PROPERTIES]
        command += [f"--property=StandardOutput=append:{log}", f"--property=StandardError=append:{log}"]
        passed = {name: env[name] for name in _PASSED if name in env}
        passed.update({name: env[name] for name in env if name.startswith("PYTHON")})
        command += [f"--setenv={name}={value}" for name, value in passed.items()]
        code = self._run([*command, "--", *argv], 30.0)
        if code != 0:
            raise HostError(f"systemd-run exited with {code}: the login user needs sudo without a password")

    def show_life(self) -> None:
        """systemd's watchdog (sd_notify(3))."""
        if self._notify is None or time.monotonic() - self._shown_at < _LIFE_EVERY_S:
            return
        self._shown_at = time.monotonic()
        address = "\0" + self._notify[1:] if self._notify.startswith("@") else self._notify
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(b"WATCHDOG=1", address)

    def poweroff(self) -> None:
        """By the dead-man switch's own program, which forces what hangs, in a unit of its own: the shutdown that it
        starts ends this agent. Without one, orderly at least."""
        switch = ("systemd-run", "--no-block", "--collect", "--property=DefaultDependencies=no")
        for command in ((*switch, f"{SWITCH_DIR}/poweroff", "the job has ended"), ("systemctl", "poweroff")):
            logger.info("power off: %s", " ".join(command))
            try:
                self._run([*self._sudo, *command], _POWEROFF_WAIT_S)
                self._run(["sleep", str(int(_POWEROFF_WAIT_S))], 2 * _POWEROFF_WAIT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                logger.warning("power off: %s", error)

    def place(self, target: str, data: Path, rootfs: Path) -> None:
        """There, as root, which the agent is."""
        _refuse_system_paths(target)
        show(Path(target), data)


class LocalHost:
    """A folder and some processes on somebody's computer."""

    notice_poll_s = 0.25  # the embedded cloud is near, and its notices may be short
    real = False

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control = env.get(ENV_LOCAL_CONTROL)
        root = env.get(ENV_LOCAL_ROOT)
        self.work_file = Path(root + WORK_FILE) if root else None

    def start_agent(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """A session of its own, so that it outlives the SSH connection."""
        with log.open("ab") as output:
            subprocess.Popen(  # noqa: S603 - our own interpreter and module
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def show_life(self) -> None:
        """Nobody starts it again but the controller."""

    def poweroff(self) -> None:
        """Leave a file; the embedded cloud sees it and ends the host."""
        if self._control is None:
            logger.warning("power off: %s is not set, so nobody is asked", ENV_LOCAL_CONTROL)
            return
        Path(self._control, "poweroff").touch()

    def place(self, target: str, data: Path, rootfs: Path) -> None:
        """Below ``rootfs``: the computer's own path of that name is not even looked at."""
        _refuse_system_paths(target)
        at = rootfs / target.strip("/")
        if not at.parent.resolve().is_relative_to(rootfs.resolve()):  # a link that the job has left there
            raise PlaceError(f"{target} leads out of {rootfs}")
        show(at, data)


def _refuse_system_paths(target: str) -> None:
    trouble = mount_target_trouble(target) if target.startswith("/") else "it is not absolute"
    if trouble is not None:
        raise PlaceError(f"{target} can't be a target of file_mounts: {trouble}")


def make_host(kind: str, env: Mapping[str, str]) -> Host:
    """The host for ``AgentConfig.host``. Raises ValueError for another word."""
    if kind == "systemd":
        return SystemdHost()
    if kind == "local":
        return LocalHost(env)
    raise ValueError(f'agent.json: host is "systemd" or "local", not {kind!r}')


def _run(argv: Sequence[str], timeout_s: float) -> int:
    return subprocess.run(list(argv), check=False, timeout=timeout_s).returncode  # noqa: S603 - fixed programs
