"""What one job's loop reaches the world through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cloudtrain.provisioner.adapters.images import image_for
from cloudtrain.provisioner.attempt_files import AttemptFiles
from cloudtrain.provisioner.errors import PoolUnavailable
from cloudtrain.provisioner.model import Attempt, Image, Machine
from cloudtrain.provisioner.ports import Clock, Cloud, ObjectStore, Remote, Target
from cloudtrain.provisioner.proxy import way


@dataclass(frozen=True, slots=True)
class Reach:
    """The ports, and the job's own files on this computer."""

    cloud: Cloud
    remote: Remote
    objects: ObjectStore
    clock: Clock
    files: AttemptFiles
    job_dir: Path

    def target(self, attempt: Attempt, machine: Machine) -> Target:
        """How to reach the attempt's machine over SSH. Raises RemoteError while it lacks an address."""
        endpoint, proxy = way(self.files.options, machine, attempt.pool.region)
        return replace(self.files.target(attempt, endpoint, image_of(attempt)), proxy_command=proxy)


def image_of(attempt: Attempt) -> Image:
    """What the attempt's machine boots. Raises PoolUnavailable where no image is reviewed for its type."""
    image = image_for(attempt.pool.instance_type, attempt.pool.cloud)
    if isinstance(image, str):
        raise PoolUnavailable(f"{attempt.pool.instance_type}: {image}", code="NoImage")
    return image
