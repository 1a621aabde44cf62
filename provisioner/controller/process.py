"""Starting the controller, and knowing whether it lives. Imports nothing heavy: ``ls`` uses it.

A controller lives exactly while its lock is held. Whoever starts one takes the lock first and hands it down, so there
is no moment in which a started controller does not hold it yet; the kernel lets go of it however the process dies.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from cloudtrain.provisioner.home import Home

LOCK_ENV = "CLOUDTRAIN_CONTROLLER_LOCK_FD"


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
        process.returncode = 0  # detached: it outlives us, and is not ours to wait for
    finally:
        os.close(lock)  # the child holds it now
    return True


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
