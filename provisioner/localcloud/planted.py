"""Which account faults are planted, and what each changes in what exists. Everything is put back when it is cleared.

A change is made when a service is first asked in a region after the planting, as everything here is made on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.provisioner.localcloud import plants
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.probe import Probe
from cloudtrain.provisioner.names import INSTANCE_PROFILE

if TYPE_CHECKING:
    from cloudtrain.provisioner.localcloud.faults import Call
    from cloudtrain.provisioner.localcloud.plants import Refused

Undo = Callable[[], object]


class Planted:
    """The faults in force. Thread-safe."""

    def __init__(self, gpu_types: frozenset[str]) -> None:
        self.probe = Probe()
        self._lock = threading.RLock()
        self._names: dict[tuple[str, str | None], None] = {}  # (name, region or None for all), in order
        self._made: set[tuple[str, str, str]] = set()
        self._undo: list[Undo] = []
        self._gpu_types = gpu_types

    def add(self, name: str, region: str | None) -> None:
        """Plant a fault; repeating it is harmless. Raises ValueError for one that can't be planted."""
        plants.check(name, region)
        with self._lock:
            self._names[name, region] = None
            if name == "no-ssh-egress":
                self.probe.close()

    def clear(self) -> int:
        """Take all faults away and put everything back; returns how many there were."""
        with self._lock:
            count = len(self._names)
            if ("no-ssh-egress", None) in self._names:
                self.probe.open()
            self._names.clear()
            while self._undo:
                self._undo.pop()()
            self._made.clear()
            return count

    def documents(self) -> list[dict[str, Any]]:
        """The faults in force, for JSON."""
        with self._lock:
            return [{"name": name, "region": region} for name, region in self._names]

    def names(self, region: str) -> dict[str, bool]:
        """The faults in force in a region."""
        if not self._names:
            return {}
        with self._lock:
            return {name: True for name, where in self._names if where in (None, region)}

    def refused(self, call: Call) -> Refused | None:
        """What a call runs into."""
        return plants.refused(self.names(call.fields["region"]), call) if self._names else None

    def skew_s(self, call: Call) -> float:
        """How far the Date of an answer is off for the caller."""
        skewed = self._names and ("clock-skew", None) in self._names and not call.fields.get("machine")
        return plants.SKEW_S if skewed else 0.0

    def off(self) -> set[str]:
        """The regions that the account has not enabled."""
        return {str(region) for name, region in list(self._names) if name == "region-off"}

    def settle(self, service: str, region: str) -> None:
        """Change what exists in a service in a region (IAM: ""), as what is planted demands. Cheap once done."""
        if not self._names:
            return
        with self._lock:
            for name, where in list(self._names):
                change = _CHANGES.get((service, name))
                key = (name, service, region)
                if change is None or key in self._made or (region and where not in (None, region)):
                    continue
                self._made.add(key)
                self._undo.append(change(self, region))

    def once_role_is_back(self, give: Callable[[], object]) -> None:
        """Give the machines' role a right: now, or when the fault that it misses or lacks them is cleared."""
        with self._lock:
            if any(name in ("no-role", "role-without-rights") for name, _ in self._names):
                self._undo.insert(0, give)  # the first is undone last
            else:
                give()

    # EC2

    def _no_default_vpc(self, region: str) -> Undo:
        backend = _ec2(region)
        gone = {vpc.id for vpc in backend.vpcs.values() if vpc.is_default}
        undo = [
            _hide(backend.vpcs, lambda vpc: vpc.id in gone),
            _hide(backend.route_tables, lambda table: table.vpc_id in gone),
            _hide(backend.network_acls, lambda acl: acl.vpc_id in gone),
            _hide(backend.internet_gateways, lambda gateway: gateway.vpc is not None and gateway.vpc.id in gone),
            *(_hide(subnets, lambda subnet: subnet.vpc_id in gone) for subnets in list(backend.subnets.values())),
            *(_hide(backend.groups[vpc_id], lambda _group: True) for vpc_id in gone if vpc_id in backend.groups),
        ]

        def put_back() -> None:
            if backend.get_default_vpc() is None:  # or else a new one was made meanwhile
                for one in undo:
                    one()

        return put_back

    def _no_subnet(self, region: str) -> Undo:
        backend = _ec2(region)
        default = backend.get_default_vpc()
        vpc_id = default.id if default is not None else ""
        undo = [
            (zone, _hide(subnets, lambda subnet: subnet.vpc_id == vpc_id))
            for zone, subnets in list(backend.subnets.items())
        ]

        def put_back() -> None:
            for zone, one in undo:
                if not any(subnet.vpc_id == vpc_id for subnet in backend.subnets[zone].values()):
                    one()

        return put_back

    def _no_route(self, region: str) -> Undo:
        undo = [
            _hide(table._routes, lambda route: route.destination_cidr_block == "0.0.0.0/0")
            for table in _ec2(region).route_tables.values()
        ]
        return lambda: [one() for one in undo]

    def _ami_gone(self, region: str) -> Undo:
        return _hide(_ec2(region).amis, lambda _image: True)

    def _type_not_offered(self, region: str) -> Undo:
        from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS  # noqa: PLC0415 - EC2 is in use

        undo = []
        for kind in ("availability-zone", "availability-zone-id", "region"):
            rows = INSTANCE_TYPE_OFFERINGS[kind].get(region, [])
            before = list(rows)
            rows[:] = [row for row in rows if row["InstanceType"] not in self._gpu_types]
            undo.append((rows, before))

        def put_back() -> None:
            for rows, before in undo:
                rows[:] = before

        return put_back

    def _kms(self, region: str, *, enabled: bool) -> Undo:
        from moto.kms.models import kms_backends  # noqa: PLC0415 - only where it is planted

        backend, keys = _ec2(region), kms_backends[ACCOUNT][region]
        key = keys.create_key("", "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "EBS volumes of the account", None)
        if not enabled:
            keys.disable_key(key.id)
        before = (backend.default_kms_key_id, backend.ebs_encryption_by_default)
        backend.default_kms_key_id, backend.ebs_encryption_by_default = key.arn, True

        def put_back() -> None:
            backend.default_kms_key_id, backend.ebs_encryption_by_default = before

        return put_back

    # The other services

    def _image_parameter_gone(self, region: str) -> Undo:
        from moto.ssm.models import ssm_backends  # noqa: PLC0415 - SSM is in use

        parameters = ssm_backends[ACCOUNT][region]._parameters
        return _hide(parameters, lambda _versions: True)

    def _no_role(self, _region: str) -> Undo:
        backend = _iam()
        undo = [
            _hide(backend.roles, lambda role: role.name == INSTANCE_PROFILE),
            _hide(backend.instance_profiles, lambda profile: profile.name == INSTANCE_PROFILE),
        ]

        def put_back() -> None:
            if not any(role.name == INSTANCE_PROFILE for role in backend.roles.values()):
                for one in undo:
                    one()

        return put_back

    def _role_without_rights(self, _region: str) -> Undo:
        undo: list[Undo] = []
        for role in _iam().roles.values():
            if role.name == INSTANCE_PROFILE:
                undo += [_hide(role.policies, lambda _: True), _hide(role.managed_policies, lambda _: True)]
        return lambda: [one() for one in undo]

    def _no_spot_role(self, _region: str) -> Undo:
        return _hide(_iam().roles, lambda role: role.name == plants.SPOT_ROLE)

    def _no_bucket(self, region: str) -> Undo:
        from moto.s3.models import s3_backends  # noqa: PLC0415 - S3 is in use

        buckets = s3_backends[ACCOUNT]["aws"].buckets
        gone = [b.name for b in buckets.values() if b.name.startswith("cloudtrain-") and b.region_name == region]
        undo = [
            _hide(buckets, lambda bucket: bucket.name in gone),
            _hide(s3_backends.bucket_accounts, lambda _: True, gone),
        ]
        return lambda: [one() for one in undo]


def _hide(found: Any, hidden: Callable[[Any], bool], keys: Iterable[str] | None = None) -> Undo:
    """Take entries out of one of moto's dictionaries; putting them back overwrites nothing."""
    looked_at = found if keys is None else keys
    gone = {key: found[key] for key in list(looked_at) if key in found and hidden(found[key])}
    for key in gone:
        found.pop(key)
    return lambda: [found.setdefault(key, value) for key, value in gone.items()]


def _ec2(region: str) -> Any:
    from moto.ec2.models import ec2_backends  # noqa: PLC0415 - EC2 is in use

    return ec2_backends[ACCOUNT][region]


def _iam() -> Any:
    from moto.iam.models import iam_backends  # noqa: PLC0415 - IAM is in use

    return iam_backends[ACCOUNT]["aws"]


_CHANGES: Mapping[tuple[str, str], Callable[[Planted, str], Undo]] = {
    ("ec2", "no-default-vpc"): Planted._no_default_vpc,
    ("ec2", "no-subnet"): Planted._no_subnet,
    ("ec2", "no-route"): Planted._no_route,
    ("ec2", "ami-gone"): Planted._ami_gone,
    ("ec2", "type-not-offered"): Planted._type_not_offered,
    ("ec2", "kms-without-grant"): lambda planted, region: planted._kms(region, enabled=True),
    ("ec2", "kms-disabled"): lambda planted, region: planted._kms(region, enabled=False),
    ("ssm", "image-parameter-gone"): Planted._image_parameter_gone,
    ("iam", "no-role"): Planted._no_role,
    ("iam", "role-without-rights"): Planted._role_without_rights,
    ("iam", "no-spot-role"): Planted._no_spot_role,
    ("s3", "no-bucket"): Planted._no_bucket,
}
"""What a fault changes, by the service that is asked."""
