"""Looks an image up in a region: the table's parameter or the user's own id, then DescribeImages.

Sources, read 2026-11: EC2 API, DescribeImages (an image that this account may not use, and one that is gone, come as
InvalidAMIID.NotFound or as no image; ``State``; ``RootDeviceName``; the root snapshot's size in BlockDeviceMappings).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cloudtrain.provisioner.adapters.aws_errors import translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.images import user_named_by
from cloudtrain.provisioner.errors import PoolUnavailable, Scope, UsageError
from cloudtrain.provisioner.model import FoundImage, Image

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import ImageTypeDef

NO_IMAGE = "NoImage"  # the code of a pool that has no image for us
_OWN = "resources.aws.image_id"


def find(clients: Clients, image: Image, region: str, *, is_dead: Callable[[], bool] | None = None) -> FoundImage:
    """The image in the region. Two calls at most, both idempotent; each blocks at most 60 s.

    Raises PoolUnavailable where the region has no such parameter or image, or none that is ready or of the machine's
    architecture; UsageError where no machine could use it, or its login user can't be told; AccessError,
    CloudUnreachable.
    """
    image_id = image.own_id or _named_by_parameter(clients, image, region, is_dead)
    what = _what(image, image_id, region)
    with translated(what, is_dead=is_dead):
        shown = show(clients.client("ec2", region), image_id)
    if shown is None:
        raise PoolUnavailable(
            f"{what}: no such image, or it isn't shared with this account; {_advice(image)}",
            code=NO_IMAGE,
            scope=Scope.IMAGE,
        )
    return _checked(image, shown, what, _advice(image))


def show(ec2: EC2Client, image_id: str) -> ImageTypeDef | None:
    """The image as EC2 shows it; None where there is none that this account may use. Raises botocore's errors."""
    shown = ec2.describe_images(
        Filters=[{"Name": "image-id", "Values": [image_id]}], IncludeDeprecated=True, IncludeDisabled=True
    )["Images"]
    return shown[0] if shown else None


def root_gib(shown: ImageTypeDef) -> int:
    """The size of the image's root snapshot, the least that its root volume may have; 0 where it has none."""
    root = shown.get("RootDeviceName")
    sizes = [m.get("Ebs", {}).get("VolumeSize", 0) for m in shown["BlockDeviceMappings"] if m.get("DeviceName") == root]
    return max(sizes, default=0)


def _named_by_parameter(clients: Clients, image: Image, region: str, is_dead: Callable[[], bool] | None) -> str:
    with translated(f"image {image.ssm_parameter} in {region}", is_dead=is_dead):
        return clients.client("ssm", region).get_parameter(Name=image.ssm_parameter)["Parameter"]["Value"]


def _checked(image: Image, shown: ImageTypeDef, what: str, advice: str) -> FoundImage:
    state = shown.get("State", "available")
    if state != "available":
        raise PoolUnavailable(f"{what}: it is {state}, not available; {advice}", code=NO_IMAGE, scope=Scope.IMAGE)
    if shown["Architecture"] != image.architecture:
        text = f"{what}: it is for {shown['Architecture']}, and the machine is {image.architecture}"
        choose = f"give {_OWN} an image for {image.architecture}, or choose accelerators of other machines"
        raise PoolUnavailable(f"{text}; {choose}", code="OtherArchitecture", scope=Scope.IMAGE)
    if shown.get("RootDeviceType", "ebs") != "ebs" or "RootDeviceName" not in shown:
        raise UsageError(f"{what}: its root is no EBS volume, which cloudtrain needs; give {_OWN} another image")
    name = shown.get("Name", "")
    login_user = image.login_user or user_named_by(name)
    if login_user is None:
        raise UsageError(f"{what}: its name {name!r} does not tell who logs in; set resources.aws.ssh_user")
    root = shown["RootDeviceName"]
    return FoundImage(shown["ImageId"], name, root, root_gib(shown), shown["Architecture"], login_user)


def _what(image: Image, image_id: str, region: str) -> str:
    return f"image {image_id} in {region}" if image.own_id else f"image {image_id} of {image.ssm_parameter} in {region}"


def _advice(image: Image) -> str:
    if image.own_id is None:
        return "another region may have it; `cloudtrain doctor` lists what is current"
    return (
        f"image ids differ by region: set `infra` to the region of {_OWN}, or copy the image (EC2 console, AMIs, Copy)"
    )
