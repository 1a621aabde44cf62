"""Mounts that only a test's own processes see: the machine itself is not changed, and nothing is left to unmount."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_OWN_MOUNTS = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")


def apart(*lines: str) -> tuple[str, ...]:
    """Words before a command that run it where these shell lines (mounts) have been. Skips where that can't be."""
    words = (*_OWN_MOUNTS, "--", "sh", "-c", "\n".join(["set -e", *lines, 'exec "$@"']), "sh")
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("no unshare: this needs mounts of its own")
    tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mounts of its own can be made here: {tried.stderr.strip()}")
    return words


def bind(here: Path, over: str) -> str:
    """The line that lays a folder, and what is mounted in it, over another."""
    return f"mount --rbind {shlex.quote(str(here))} {shlex.quote(over)}"


def mount_small(pid: int, folder: Path, size_mib: int) -> None:
    """A small disk on ``folder``, for the process ``pid`` (started by ``apart``) and what it starts from now on."""
    enter = ["nsenter", f"--target={pid}", "--mount"]
    if os.geteuid() != 0:
        enter += ["--user", "--preserve-credentials"]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*enter, "mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "none", folder], check=True)
