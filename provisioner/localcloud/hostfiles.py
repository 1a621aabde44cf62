"""The folder of a local host: its home, its own Python, its stand-in commands, the environment of what runs there."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.localcloud import hostpython, shims
from cloudtrain.provisioner.localcloud.hosts import ENV_CLOUD, ENV_CONTROL, ENV_INSTANCE, HostSpec

ENV_ROOT = "CLOUDTRAIN_ROOT"
PROGRESS = Path("cloudtrain/run/progress.json")  # under home; the layout is trainer.contract's

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class HostFiles:
    """The paths of one host, all below ``root``."""

    root: Path

    @property
    def home(self) -> Path:
        """HOME, and the current directory, of all that runs on the host."""
        return self.root / "home"

    @property
    def control(self) -> Path:
        """What the host asks of the cloud."""
        return self.root / "control"

    @property
    def rootfs(self) -> Path:
        """Stands in for / in what cloud-init writes."""
        return self.root / "rootfs"

    @property
    def etc(self) -> Path:
        """Keys and configuration of the SSH server."""
        return self.root / "etc"

    @property
    def host_key(self) -> Path:
        """The private half of what the SSH server serves with once it (re)loads, where sshd has it on a machine."""
        return self.rootfs / "etc/ssh/ssh_host_ed25519_key"

    @property
    def console(self) -> Path:
        """What the boot printed."""
        return self.root / "console.log"

    def step(self) -> int | None:
        """The step in the job's progress file; None where there is no such file, or it says none."""
        try:
            step = json.loads((self.home / PROGRESS).read_bytes())["step"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return step if isinstance(step, int) else None

    def poweroff_requested(self) -> bool:
        """Whether a command asked to switch the host off, or a power-off timer is due."""
        return (self.control / shims.POWEROFF).exists() or any(at <= time.time() for at in self.timers().values())

    def timers(self) -> dict[str, float]:
        """The armed power-off timers: unit name to the time it is due, in Unix seconds."""
        timers = {}
        for path in (self.control / shims.TIMERS).glob("*.json"):
            try:
                timers[path.stem] = float(json.loads(path.read_bytes())["at"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # stopped this moment, or no timer of ours
        return timers

    def remove(self) -> None:
        """Remove all but console.log. Nothing of the host may be running."""
        for folder in (self.home, self.control, self.rootfs, self.etc):
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():  # a job may have taken its own rights away
                _unlock(folder)
                shutil.rmtree(folder, ignore_errors=True)


def account() -> str:
    """The login name of the account that this process runs as."""
    return pwd.getpwuid(os.geteuid()).pw_name


def create(spec: HostSpec) -> HostFiles:
    """Make the folder of a host.

    Raises OSError where that is not possible, FileExistsError where there is one, UsageError where no program can be
    run from it.
    """
    files = HostFiles(spec.root)
    for folder in (files.home, files.control / shims.TIMERS, files.rootfs, files.etc):
        folder.mkdir(parents=True, mode=0o700)
    hostpython.make(spec.python, home=files.home, rootfs=files.rootfs)
    _make_shims(files.home / "bin")
    # On a file system mounted noexec a shell would pass over the stand-ins and run the real ones.
    for name, place in [("python", "venv/bin"), *((name, "bin") for name in shims.COMMANDS)]:
        expected = files.home / place / name
        if shutil.which(name, path=_path(files)) != str(expected):
            files.remove()
            raise UsageError(f"programs cannot be run from {files.home}: set CLOUDTRAIN_LOCAL_HOME to another folder")
    return files


def environment(spec: HostSpec, files: HostFiles) -> dict[str, str]:
    """The environment of every process on the host: built from nothing, so nothing of the user's own gets in.

    No AWS profile, key or region, no proxy, no session bus: a job on a local host has what a fresh machine gives.
    """
    env = {
        "HOME": str(files.home),
        "USER": account(),
        "LOGNAME": account(),
        "SHELL": shell(),
        "PATH": _path(files),
        "LANG": "C.UTF-8",
        ENV_ROOT: str(files.rootfs),
    }
    if spec.gpus > 0:  # a type with one GPU uses one, whatever this machine has
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(spec.gpus))
    marks = {ENV_INSTANCE: spec.instance_id, ENV_CLOUD: spec.cloud_id, ENV_CONTROL: str(files.control)}
    return env | dict(spec.env) | marks


def shell() -> str:
    """The shell that runs commands: bash, as on the machine images; sh where there is none."""
    return shutil.which("bash", path=_SYSTEM_PATH) or "/bin/sh"


def _unlock(folder: Path) -> None:
    """Give the owner every right on the folders below, and on this one. Links are not followed."""
    folder.chmod(0o700)
    for path, names, _ in os.walk(folder):
        for name in names:
            below = Path(path, name)
            if not below.is_symlink():
                with contextlib.suppress(OSError):
                    below.chmod(0o700)


def _path(files: HostFiles) -> str:
    return f"{files.home / 'bin'}:{files.home / 'venv' / 'bin'}:{_SYSTEM_PATH}"


def _make_shims(folder: Path) -> None:
    folder.mkdir()
    python, program = shlex.quote(hostpython.BASE), shlex.quote(str(Path(shims.__file__).resolve()))
    for name in shims.COMMANDS:
        hostpython.write_script(folder / name, f'exec {python} -I -S {program} {name} "$@"\n')
