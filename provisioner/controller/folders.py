"""Job folders of launches that never came to a job: ``launch`` was killed between its snapshot and its store.

Such a folder holds a copy of the workdir, and perhaps the values of secrets. While ``launch`` works, it holds a lock in
it, which the kernel lets go of however the process dies: a folder whose lock is free and whose job is unknown is
nobody's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from cloudtrain.provisioner.errors import NotFound
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.ports import Store

MARK = ".launching"


def hold(job_dir: Path) -> None:
    """Say that this process is about to make a job of the folder, for as long as it lives or until ``let_go``."""
    descriptor = os.open(job_dir / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # held already, by this process: a job id is drawn anew for each launch
        os.close(descriptor)


def let_go(job_dir: Path) -> None:
    """The job is stored: from now on its record says whose the folder is."""
    (job_dir / MARK).unlink(missing_ok=True)


def drop_ownerless(home: Home, store: Store) -> None:
    """Delete the folders of launches that died before there was a job. Idempotent."""
    for mark in home.root.glob(f"jobs/*/{MARK}"):
        try:
            descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            store.get(mark.parent.name)  # after the lock: its launch may have stored it just now
        except BlockingIOError:
            pass  # it is being launched
        except NotFound:
            shutil.rmtree(mark.parent, ignore_errors=True)
        finally:
            os.close(descriptor)
