"""Run a command as a user without rights, also where the tests run as root and the interpreter lies in root's home.

As root this is done in a mount namespace, so the machine itself is not changed: there /etc/passwd and /etc/shadow hold
one more account (sshd wants to know whom it logs in), and where a folder on the way to Python or the project is closed
to others, an open one with nothing else in it lies over it. (A capability to read everything would not do: access(2),
which shells ask before they run a command, does not count it.)
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NAME, UID = "plain-user-of-a-test", 64321
PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class PlainUser:
    """``[*words, *command]`` runs the command as that user, who owns ``folder``."""

    words: tuple[str, ...]
    folder: Path
    uid: int


@contextmanager
def plain_user() -> Iterator[PlainUser]:
    """A plain user for one test: another one as root, the tests' own otherwise. Skips where root cannot make one."""
    top = Path(tempfile.mkdtemp(prefix="cloudtrain-plain-"))
    try:
        folder = top / "home"
        folder.mkdir()
        if os.geteuid() != 0:
            yield PlainUser((), folder, os.geteuid())
            return
        top.chmod(0o755)
        os.chown(folder, UID, UID)
        words = ("unshare", "--mount", "--", "sh", "-c", _script(top), "sh")
        if sys.platform != "linux" or not all(shutil.which(name) for name in ("unshare", "setpriv", "mount")):
            pytest.skip("root, and no unshare, setpriv and mount to become a plain user with")
        tried = subprocess.run([*words, sys.executable, "-c", ""], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"root, but no plain user can be made here: {tried.stderr.strip()}")
        yield PlainUser(words, folder, UID)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _script(top: Path) -> str:
    """Shell that opens the way, adds the account, drops every right and runs its arguments."""
    lines = ["set -e"]
    for name, line in [("passwd", f"{NAME}:x:{UID}:{UID}::/:/bin/sh"), ("shadow", f"{NAME}:*:20000:0:99999:7:::")]:
        (top / name).write_text(Path("/etc", name).read_text().rstrip("\n") + f"\n{line}\n")
        lines.append(f"mount --bind {shlex.quote(str(top / name))} /etc/{name}")
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, PROJECT)}
    for closed in sorted({gate for path in needed if (gate := _first_closed(path))}):
        behind = sorted(path for path in needed if path.is_relative_to(closed))
        for number, path in enumerate(behind):
            stash = top / f"{closed.name}-{number}"
            stash.mkdir()
            lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(stash))}")
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}")
        for number, path in enumerate(behind):
            stash = top / f"{closed.name}-{number}"
            lines.append(f"mkdir -p {shlex.quote(str(path))}")
            lines.append(f"mount --bind {shlex.quote(str(stash))} {shlex.quote(str(path))}")
    lines.append(f'exec setpriv --reuid={UID} --regid={UID} --clear-groups --bounding-set=-all -- "$@"')
    return "\n".join(lines)


def _first_closed(path: Path) -> Path | None:
    """The outermost folder on the way to ``path`` that others may not pass."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & 0o001:
            return folder
    return None
