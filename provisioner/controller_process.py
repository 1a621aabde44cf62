"""Starting the controller, and knowing whether it lives. Imports nothing heavy: ``ls`` uses it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

from cloudtrain.provisioner.home import Home


def alive(home: Home) -> bool:
    """Whether a controller of this home holds its lock now."""
    descriptor = os.open(home.root / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def ensure(home: Home) -> bool:
    """Start the controller, detached, unless it lives. Returns whether it had to be started; does not wait for it."""
    if alive(home):
        return False
    environment = {**os.environ, "CLOUDTRAIN_HOME": str(home.root), "CLOUDTRAIN_LOCAL_HOME": str(home.local_home)}
    with (home.root / "controller.log").open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "cloudtrain.provisioner.controller"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home.root,
            env=environment,
        )
    return True
