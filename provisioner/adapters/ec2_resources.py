"""What a job has in one region beside its machines: subnets to launch in, its security groups, and leftovers."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.aws_codes import Kind, row
from cloudtrain.provisioner.adapters.aws_errors import code_of, message_of
from cloudtrain.provisioner.adapters.tagging import by_job, tags
from cloudtrain.provisioner.errors import PoolUnavailable, Scope
from cloudtrain.provisioner.names import job_name
from cloudtrain.provisioner.proxy import Admits, admits
from cloudtrain.provisioner.spec import AwsOptions

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        IpPermissionOutputTypeDef,
        IpPermissionTypeDef,
        IpRangeTypeDef,
        SecurityGroupTypeDef,
    )

SSH_PORT = 22
_FULL_S = 600.0
# DeleteNetworkInterface says it with InvalidParameterValue ("is currently in use").
_IN_USE = (
    *("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse"),
    *("InvalidNetworkInterface.InUse", "InvalidParameterValue"),
)


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet; ``default``: the one that its zone has by default."""

    subnet_id: str
    vpc_id: str
    zone_id: str
    zone_name: str
    default: bool


@dataclass(frozen=True, slots=True)
class Here:
    """This computer, as AWS sees it."""

    address: Callable[[], str]  # its public IPv4 address
    route: Callable[[str], str | None]  # its address on the way to a private one; None where there is no way


class Resources:
    """One region's resources. Subnets and group ids are looked up once. Raises botocore's errors and PoolUnavailable.

    ``client`` gives the region's EC2 client. Safe to use from several threads.
    """

    def __init__(self, client: Callable[[], EC2Client], region: str) -> None:
        self._client = client
        self._region = region
        self._lock = threading.Lock()
        self._subnets: tuple[Subnet, ...] = ()
        self._groups: dict[tuple[str, str], str] = {}  # job id, VPC id -> group id
        self._full: dict[str, float] = {}  # subnet id -> until when it counts as full, on the monotonic clock

    def subnet(self, zone_id: str, chosen: tuple[str, ...] = ()) -> Subnet:
        """The subnet for a zone: of the ``chosen`` ids the first that lies there and is not known to be full, else the
        zone's default one. Raises PoolUnavailable where there is none.
        """
        known = self._look_for(lambda s: s.zone_id == zone_id and (s.subnet_id in chosen if chosen else s.default))
        if known:
            return min(known, key=lambda s: (self._is_full(s), chosen.index(s.subnet_id) if chosen else 0))
        if chosen:
            raise PoolUnavailable(
                f"none of subnet_ids ({', '.join(chosen)}) lies in zone {zone_id} of {self._region}: "
                "add one that does, or leave the region out of `infra`",
                code="NoChosenSubnet",
                scope=Scope.SUBNET,
            )
        raise PoolUnavailable(
            f"zone {zone_id} of {self._region} has no default subnet: make one with "
            f"`aws ec2 create-default-subnet --region {self._region} --availability-zone-id {zone_id}`",
            code="NoDefaultSubnet",
            scope=Scope.SUBNET,
        )

    def fill(self, subnet: Subnet, chosen: tuple[str, ...] = ()) -> bool:
        """Remember for minutes that a subnet has no free address; whether the zone has another of the ``chosen``."""
        self._full[subnet.subnet_id] = time.monotonic() + _FULL_S
        return not self._is_full(self.subnet(subnet.zone_id, chosen))

    def _is_full(self, subnet: Subnet) -> bool:
        return self._full.get(subnet.subnet_id, 0.0) > time.monotonic()

    def zone_name(self, zone_id: str) -> str:
        """The account's name for a zone ("us-east-1a"). Raises PoolUnavailable where it has no subnet there."""
        known = self._look_for(lambda s: s.zone_id == zone_id)
        return known[0].zone_name if known else self.subnet(zone_id).zone_name

    def group(self, job_id: str, owner: str, vpc_id: str, options: AwsOptions, here: Here) -> str:
        """The id of the job's security group in a VPC; made first, and opened, where it isn't known yet."""
        known = self._groups.get((job_id, vpc_id))
        return known if known is not None else self._prepare(job_id, owner, vpc_id, options, here)

    def prepare(self, job_id: str, owner: str, options: AwsOptions, here: Here) -> None:
        """Make the job's group in each VPC that it may use, open on the SSH port to whom the way there needs alone."""
        chosen = self._look_for(lambda s: s.subnet_id in options.subnet_ids)
        if options.subnet_ids and not chosen:
            raise PoolUnavailable(
                f"none of subnet_ids ({', '.join(options.subnet_ids)}) lies in {self._region}: "
                "add one that does, or leave the region out of `infra`",
                code="NoChosenSubnet",
                scope=Scope.REGION,
            )
        for vpc_id in sorted({s.vpc_id for s in chosen}) or [self._default_vpc()]:
            self._prepare(job_id, owner, vpc_id, options, here)

    def _prepare(self, job_id: str, owner: str, vpc_id: str, options: AwsOptions, here: Here) -> str:
        group = self._find(job_id, vpc_id)
        group_id = group["GroupId"] if group is not None else self._create(job_id, owner, vpc_id)
        self._open(group_id, group["IpPermissions"] if group is not None else [], self._sources(vpc_id, options, here))
        self._groups[job_id, vpc_id] = group_id
        return group_id

    def forget(self, job_id: str) -> None:
        """Look the job's groups up again next time."""
        for key in [key for key in self._groups if key[0] == job_id]:
            self._groups.pop(key, None)

    def sweep(self, job_id: str) -> list[str]:
        """Delete what carries the job's tag and is not in use; returns the ids of the rest."""
        self.forget(job_id)
        ec2, mine = self._client(), by_job(job_id)
        interfaces = ec2.get_paginator("describe_network_interfaces").paginate(Filters=mine)
        volumes = ec2.get_paginator("describe_volumes").paginate(Filters=mine)
        groups = ec2.get_paginator("describe_security_groups").paginate(Filters=mine)
        return [
            *_not_deleted(
                {i["NetworkInterfaceId"]: i["Status"] for page in interfaces for i in page["NetworkInterfaces"]},
                lambda name: ec2.delete_network_interface(NetworkInterfaceId=name),
            ),
            *_not_deleted(
                {v["VolumeId"]: v["State"] for page in volumes for v in page["Volumes"]},
                lambda name: ec2.delete_volume(VolumeId=name),
            ),
            *_not_deleted(
                {g["GroupId"]: "available" for page in groups for g in page["SecurityGroups"]},
                lambda name: ec2.delete_security_group(GroupId=name),
            ),
        ]

    def _look_for(self, fits: Callable[[Subnet], bool]) -> list[Subnet]:
        """The region's subnets that fit; looked up again where none of the known ones does."""
        with self._lock:
            if not any(fits(s) for s in self._subnets):
                pages = self._client().get_paginator("describe_subnets").paginate()
                self._subnets = tuple(
                    Subnet(s["SubnetId"], s["VpcId"], s["AvailabilityZoneId"], s["AvailabilityZone"], s["DefaultForAz"])
                    for page in pages
                    for s in page["Subnets"]
                )
            return [s for s in self._subnets if fits(s)]

    def _sources(self, vpc_id: str, options: AwsOptions, here: Here) -> set[str]:
        """Whom the group admits, as CIDR blocks."""
        wanted = admits(options)
        found = {f"{here.address()}/32"} if Admits.CALLER in wanted else set()
        if Admits.VPC not in wanted:
            return found
        vpc = self._client().describe_vpcs(VpcIds=[vpc_id])["Vpcs"][0]
        blocks = [
            b["CidrBlock"] for b in vpc["CidrBlockAssociationSet"] if b["CidrBlockState"]["State"] == "associated"
        ]
        way = here.route(vpc["CidrBlock"].partition("/")[0]) if Admits.ROUTE in wanted else None
        return {*blocks, *([f"{way}/32"] if way else [])}

    def _default_vpc(self) -> str:
        vpcs = self._client().describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        if not vpcs:
            raise PoolUnavailable(
                f"{self._region} has no default VPC: make one with "
                f"`aws ec2 create-default-vpc --region {self._region}`, or leave the region out of `infra`",
                code="NoDefaultVpc",
                scope=Scope.REGION,
            )
        return vpcs[0]["VpcId"]

    def _find(self, job_id: str, vpc_id: str) -> SecurityGroupTypeDef | None:
        by_name: list[FilterTypeDef] = [
            {"Name": "group-name", "Values": [job_name(job_id)]},
            {"Name": "vpc-id", "Values": [vpc_id]},
        ]
        found = self._client().describe_security_groups(Filters=[*by_name, *by_job(job_id)])["SecurityGroups"]
        return found[0] if found else None

    def _create(self, job_id: str, owner: str, vpc_id: str) -> str:
        try:
            made = self._client().create_security_group(
                GroupName=job_name(job_id),
                Description="SSH to the machines of a cloudtrain job",
                VpcId=vpc_id,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags(job_id, owner)}],
            )
        except ClientError as error:
            group = self._find(job_id, vpc_id) if code_of(error) == "InvalidGroup.Duplicate" else None
            if group is None:
                raise
            return group["GroupId"]  # made by a call whose reply was lost, or by another thread
        return made["GroupId"]

    def _open(self, group_id: str, now: list[IpPermissionOutputTypeDef], wanted: set[str]) -> None:
        ssh = [p for p in now if (p.get("IpProtocol"), p.get("FromPort")) == ("tcp", SSH_PORT)]
        admitted = {r["CidrIp"] for permission in ssh for r in permission.get("IpRanges", [])}
        for cidr in sorted(wanted - admitted):
            try:
                self._client().authorize_security_group_ingress(GroupId=group_id, IpPermissions=[_ssh_from(cidr)])
            except ClientError as error:
                if code_of(error) != "InvalidPermission.Duplicate":
                    raise
        stale = sorted(admitted - wanted)  # after the new one, so that whoever moved is never locked out
        if stale:
            self._client().revoke_security_group_ingress(GroupId=group_id, IpPermissions=[_ssh_from(*stale)])


def _ssh_from(*cidrs: str) -> IpPermissionTypeDef:
    ranges: list[IpRangeTypeDef] = [{"CidrIp": cidr} for cidr in cidrs]
    return {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT, "IpRanges": ranges}


def _not_deleted(states: Mapping[str, str], delete: Callable[[str], object]) -> list[str]:
    """Delete what is available; returns the names of what something still uses."""
    return [
        name
        for name, state in states.items()
        if not (state == "deleting" or (state == "available" and deleted(functools.partial(delete, name))))
    ]


def deleted(delete: Callable[[], object]) -> bool:
    """Delete one thing; False where something still uses it. What is gone already is deleted. Raises botocore's errors
    for any other reason."""
    try:
        delete()
    except ClientError as error:
        code = code_of(error)
        known = row(code, message=message_of(error))
        if code.endswith(".NotFound") or (known is not None and known.kind is Kind.MISSING):
            return True
        if code in _IN_USE:
            return False
        raise
    return True
