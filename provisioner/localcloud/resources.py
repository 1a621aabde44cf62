"""What exists in the embedded cloud from the start: AWS's images and a default network, and what `setup` makes.

Made on the first call to a service in a region, so that nothing is loaded that nobody uses.
"""

from __future__ import annotations

import hashlib
import re
import threading
from functools import cache
from typing import Any

from cloudtrain.provisioner.adapters.images import IMAGES
from cloudtrain.provisioner.localcloud import ready
from cloudtrain.provisioner.localcloud.account_semantics import Account, make_spot_role
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.hostpython import IMAGES as OWN_IMAGES
from cloudtrain.provisioner.localcloud.state import LocalState
from cloudtrain.provisioner.model import Image

_BUCKET = re.compile(rf"cloudtrain-{ACCOUNT}-([a-z]{{2}}(?:-[a-z]+)+-\d)(?:-an)?")


def image_id(parameter: str, region: str) -> str:
    """The AMI id that a public parameter names in a region: always the same, another one in each region."""
    return "ami-0" + hashlib.sha256(f"{region}{parameter}".encode()).hexdigest()[:16]


def images() -> list[Image]:
    """Each image of the reviewed table, once."""
    return list({image.ssm_parameter: image for image in IMAGES.values()}.values())


class Resources:
    """Makes what must be there before a call is answered. Thread-safe; each thing is made once."""

    def __init__(self, state: LocalState, account: Account) -> None:
        self.state = state
        self._account = account
        self._lock = threading.RLock()
        self._made: set[tuple[str, str]] = set()

    def before(self, service: str, region: str, bucket: str = "") -> None:
        """Prepare for one call. Cheap once it was done."""
        match = _BUCKET.fullmatch(bucket)
        place = "" if service == "iam" else match[1] if match else region
        if (service, place) not in self._made:
            with self._lock:
                if (service, place) not in self._made:
                    self._account.before(service)
                    make = _MAKERS.get(service)
                    if make is not None:
                        make(self, place)
                    self._made.add((service, place))
        self.state.planted.settle(service, place)
        if service == "ec2":
            self.state.planted.settle("iam", "")

    def _ec2(self, region: str) -> None:
        from moto.ec2.models import ec2_backends  # noqa: PLC0415 - half a second, on first use
        from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS  # noqa: PLC0415

        self.before("iam", "")
        backend = ec2_backends[ACCOUNT][region]
        for image in images():
            ami_id = image_id(image.ssm_parameter, region)
            line = image.ssm_parameter.split("/")[-3]
            backend.amis[ami_id] = _image_class()(backend, ami_id, image, f"Deep Learning AMI {line}")
        for ami_id, python in OWN_IMAGES.items():
            own = _image_class()(backend, ami_id, IMAGES["g4dn"], f"ubuntu {python}")
            own.owner_id, own.owner_alias, own.description = ACCOUNT, None, f"a Python like {python}"
            backend.amis[ami_id] = own
        _route_to_internet(backend)
        zones = {zone.zone_id: zone.name for zone in backend.describe_availability_zones()}
        ours = [o.pool for o in self.state.offerings if o.pool.region == region]
        for kind, places in (
            ("region", {(region, p.instance_type) for p in ours}),
            ("availability-zone-id", {(p.zone_id, p.instance_type) for p in ours}),
            ("availability-zone", {(zones[p.zone_id], p.instance_type) for p in ours if p.zone_id in zones}),
        ):
            rows = INSTANCE_TYPE_OFFERINGS[kind].setdefault(region, [])
            known = {(row["Location"], row["InstanceType"]) for row in rows}
            rows += [{"InstanceType": t, "Location": at, "LocationType": kind} for at, t in sorted(places - known)]

    def _ssm(self, region: str) -> None:
        from moto.core.utils import utcnow  # noqa: PLC0415
        from moto.ssm.models import Parameter, ssm_backends  # noqa: PLC0415

        parameters = ssm_backends[ACCOUNT][region]._parameters
        for image in images():
            name, value = image.ssm_parameter, image_id(image.ssm_parameter, region)
            kind: Any = Parameter  # abstract only in its annotations: moto itself makes it
            parameters[name] = [kind(ACCOUNT, name, value, "String", None, None, None, utcnow(), 1, "text")]

    def _iam(self, _place: str) -> None:
        if self.state.options.account == "empty":
            return
        from moto.iam.models import iam_backends  # noqa: PLC0415

        backend = iam_backends[ACCOUNT]["aws"]
        ready.make_role(backend)
        make_spot_role(backend)

    def _s3(self, region: str) -> None:
        if self.state.options.account == "empty":
            return
        from moto.iam.models import iam_backends  # noqa: PLC0415
        from moto.s3.models import s3_backends  # noqa: PLC0415

        self.before("iam", "")
        ready.make_bucket(s3_backends[ACCOUNT]["aws"], region)
        self.state.planted.once_role_is_back(lambda: ready.give_rights(iam_backends[ACCOUNT]["aws"], region))


_MAKERS = {"ec2": Resources._ec2, "ssm": Resources._ssm, "iam": Resources._iam, "s3": Resources._s3}


def _route_to_internet(backend: Any) -> None:
    """The internet gateway and the route to it, which a default VPC has and moto's lacks."""
    vpc = backend.get_default_vpc()
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    table = next(t for t in backend.route_tables.values() if t.vpc_id == vpc.id)
    backend.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)


@cache
def _image_class() -> Any:
    from moto.ec2.models.amis import Ami  # noqa: PLC0415

    class LocalImage(Ami):
        """A Deep Learning image: moto's own has a root volume of 15 GiB, whatever it is."""

        def __init__(self, backend: Any, ami_id: str, image: Image, name: str) -> None:
            self.root_gib = image.root_gib
            super().__init__(
                backend,
                ami_id,
                name=f"{name} (local, simulated)",
                description=image.ssm_parameter,
                owner_id="898082745236",
                owner_alias="amazon",
                public=True,
                virtualization_type="hvm",
                architecture=image.architecture,
                hypervisor="xen",
                root_device_type="ebs",
                root_device_name=image.root_device,
                region_name=f"{backend.region_name}a",
            )

        @property
        def block_device_mappings(self) -> list[dict[str, Any]]:
            """One root volume, from the image's snapshot."""
            ebs = {
                "SnapshotId": self.ebs_snapshot.id,
                "VolumeSize": self.root_gib,
                "DeleteOnTermination": True,
                "VolumeType": "gp3",
                "Encrypted": False,
            }
            return [{"DeviceName": self.root_device_name, "Ebs": ebs}]

    return LocalImage
