"""What one job's loop reaches the world through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.attempt_files import AttemptFiles
from cloudtrain.provisioner.ports import Clock, Cloud, ObjectStore, Remote


@dataclass(frozen=True, slots=True)
class Reach:
    """The ports, and the job's own files on this computer."""

    cloud: Cloud
    remote: Remote
    objects: ObjectStore
    clock: Clock
    files: AttemptFiles
    job_dir: Path
