"""What one job's loop reaches the world through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtrain.provisioner.adapters.image_lookup import NO_IMAGE
from cloudtrain.provisioner.adapters.images import image_for
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.errors import PoolUnavailable
from cloudtrain.provisioner.model import Attempt, Image, Machine
from cloudtrain.provisioner.ports import Clock, Cloud, ObjectStore, Remote, Target
from cloudtrain.provisioner.proxy import way
from cloudtrain.provisioner.spec import AwsOptions


@dataclass(frozen=True, slots=True)
class Reach:
    """The ports, and the job's own files on this computer."""

    cloud: Cloud
    remote: Remote
    objects: ObjectStore
    clock: Clock
    files: AttemptFiles
    job_dir: Path
    turn: Callable[[str], bool] = lambda _region: True
    """Whether a machine may be asked for in a region now; blocks for some seconds. One after the other, or EC2
    throttles all: of a thousand jobs that start at one time the last ones would be given up as unanswered."""

    def target(self, attempt: Attempt, machine: Machine) -> Target:
        """How to reach the attempt's machine over SSH. Raises RemoteError while it lacks an address."""
        options = self.files.options
        endpoint, proxy = way(options, machine, attempt.pool.region)
        return replace(self.files.target(attempt, endpoint, image_of(attempt, options)), proxy_command=proxy)


def image_of(attempt: Attempt, options: AwsOptions) -> Image:
    """What the attempt's machine boots, as it was pinned once it was found.

    Raises PoolUnavailable where no image is reviewed for its type.
    """
    image = image_for(attempt.pool.instance_type, attempt.pool.cloud, options)
    if isinstance(image, str):
        raise PoolUnavailable(f"{attempt.pool.instance_type}: {image}", code=NO_IMAGE)
    return replace(
        image,
        root_device=attempt.root_device or image.root_device,
        root_gib=image.root_gib if attempt.root_gib is None else attempt.root_gib,
        login_user=attempt.login_user or image.login_user,
    )
