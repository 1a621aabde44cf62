"""A small Debian to boot: made once, then only read. Root, Linux and Debian's own tools are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "systemd,systemd-sysv,dbus,cloud-init,openssh-server,sudo,python3,iproute2"
INSTALL = "apt-get install --no-install-recommends systemd-container mmdebstrap openssh-client"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloudtrain-deadman"
_BUILD_LIMIT_S = 900


class CannotBoot(Exception):
    """Nothing can be booted here. One line, with what to do."""


def missing() -> str | None:
    """Why nothing can be booted here; None where it can."""
    if os.geteuid() != 0:
        return "booting a machine needs root"
    absent = [name for name in ("systemd-nspawn", "nsenter", "ssh", "mount") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} missing: {INSTALL}"
    return None


def built(folder: Path) -> Path | None:
    """The root of the small Debian, where it has been built."""
    return folder / SUITE if (folder / SUITE).is_dir() else None


def tree(folder: Path) -> Path:
    """The root of the small Debian below ``folder``; built where it is not there (a minute, 120 MB of packages).

    Raises CannotBoot.
    """
    why = missing()
    if why is not None:
        raise CannotBoot(why)
    root = built(folder)
    if root is not None:
        return root
    tool = shutil.which("mmdebstrap") or shutil.which("debootstrap")
    if tool is None:
        raise CannotBoot(f"mmdebstrap missing: {INSTALL}")
    fresh = folder / f".{SUITE}.{os.getpid()}"
    fresh.parent.mkdir(parents=True, exist_ok=True)
    command = [tool, "--variant=minbase", f"--include={PACKAGES}", SUITE, str(fresh), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S)
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise CannotBoot(f"{Path(tool).name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return fresh.rename(folder / SUITE)
