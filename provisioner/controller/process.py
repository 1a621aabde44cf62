"""Starting the controller, and knowing whether it lives. Imports nothing heavy: ``ls`` uses it.

A controller lives exactly while its lock is held. Whoever starts one takes the lock first and hands it down, so there
is no moment in which a started controller does not hold it yet; the kernel lets go of it however the process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.provisioner.home import Home

LOCK_ENV = "CLOUDTRAIN_CONTROLLER_LOCK_FD"
END_S = 10.0  # for the kernel to let go of the lock of a controller that was killed

# Where a shell can name credentials (AWS SDKs and Tools reference guide, "Environment variables", read 2026-11).
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")


def alive(home: Home) -> bool:
    """Whether a controller of this home lives now."""
    lock = try_lock(home)
    if lock is None:
        return True
    os.close(lock)
    return False


def ensure(home: Home) -> bool:
    """Start the controller, detached, unless it lives. Returns whether it had to be started; does not wait for it."""
    lock = try_lock(home)
    if lock is None:
        return False
    environment = {
        **os.environ,
        "CLOUDTRAIN_HOME": str(home.root),
        "CLOUDTRAIN_LOCAL_HOME": str(home.local_home),
        LOCK_ENV: str(lock),
        "MALLOC_ARENA_MAX": "2",  # a thread per job: glibc's arenas would hold what each of them once needed
    }
    try:
        with (home.root / "controller.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloudtrain.provisioner.controller"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock,),
                cwd=home.root,
                env=environment,
            )
        pid_path(home).write_text(str(process.pid))
        _credentials_path(home).write_text(_fingerprint(os.environ))
        process.returncode = 0  # detached: it outlives us, and is not ours to wait for
    finally:
        os.close(lock)  # the child holds it now
    return True


def renew(home: Home) -> bool:
    """End a controller that was started with other AWS variables than this shell has, where this shell names
    credentials: the old ones may have expired, and it could end no machine with them. Returns whether; ``ensure`` then
    starts one with ours. Killing it is safe at any moment. Blocks a moment, at most some seconds.
    """
    if not any(os.environ.get(name) for name in CREDENTIALS):
        return False
    try:
        same = _credentials_path(home).read_text() == _fingerprint(os.environ)
        pid = int(pid_path(home).read_text())
    except (OSError, ValueError):
        return False
    if same or not alive(home):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_S
    while alive(home) and time.monotonic() < deadline:
        time.sleep(0.02)
    return True


def _credentials_path(home: Home) -> Path:
    return home.root / "controller.credentials"


def _fingerprint(environ: Mapping[str, str]) -> str:
    """Tells whether two shells have the same AWS variables, and nothing of what they hold."""
    mine = sorted((name, value) for name, value in environ.items() if name.startswith("AWS_"))
    return hashlib.sha256(repr(mine).encode()).hexdigest()


def try_lock(home: Home) -> int | None:
    """Take the controller's lock; its descriptor, or None where a controller (or, for a moment, a starter) has it."""
    descriptor = os.open(home.root / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def handed_lock() -> int | None:
    """The lock that this process's starter took for it; None where it was started by hand."""
    descriptor = os.environ.pop(LOCK_ENV, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return int(descriptor)


def pid_path(home: Home) -> Path:
    """Names the newest controller's process, for people; the lock is what counts."""
    return home.root / "controller.pid"
