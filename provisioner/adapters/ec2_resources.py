"""What a job has in one region beside its machines: default subnets to launch in, one security group, and leftovers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.run_instances import job_name, tags
from cloudtrain.provisioner.errors import PoolUnavailable
from cloudtrain.provisioner.model import TAG_JOB

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
# DeleteNetworkInterface says it with InvalidParameterValue ("is currently in use").
_IN_USE = ("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse", "InvalidParameterValue")


@dataclass(frozen=True, slots=True)
class Subnet:
    """The default subnet of a zone."""

    subnet_id: str
    vpc_id: str
    zone_id: str
    zone_name: str


class Resources:
    """One region's resources. Subnets and group ids are looked up once. Raises botocore's errors and PoolUnavailable.

    ``client`` gives the region's EC2 client. Safe to use from several threads.
    """

    def __init__(self, client: Callable[[], EC2Client], region: str) -> None:
        self._client = client
        self._region = region
        self._lock = threading.Lock()
        self._subnets: dict[str, Subnet] = {}
        self._groups: dict[str, str] = {}  # job id -> group id

    def subnet(self, zone_id: str) -> Subnet:
        """The default subnet of a zone. Raises PoolUnavailable where there is none."""
        with self._lock:
            if zone_id not in self._subnets:
                self._subnets = {s.zone_id: s for s in self._default_subnets()}
            found = self._subnets.get(zone_id)
        if found is None:
            raise PoolUnavailable(
                f"zone {zone_id} of {self._region} has no default subnet: make one with "
                f"`aws ec2 create-default-subnet --region {self._region} --availability-zone-id {zone_id}`",
                code="NoDefaultSubnet",
            )
        return found

    def group(self, job_id: str, owner: str, address: Callable[[], str]) -> str:
        """The id of the job's security group; made first, and opened to ``address()``, where it isn't known yet."""
        known = self._groups.get(job_id)
        return known if known is not None else self.prepare(job_id, owner, address())

    def prepare(self, job_id: str, owner: str, address: str) -> str:
        """Make the job's group where there is none, and let it admit ``address`` to the SSH port and nobody else."""
        vpc_id = self._default_vpc()
        group = self._find(job_id, vpc_id)
        group_id = group["GroupId"] if group is not None else self._create(job_id, owner, vpc_id)
        self._open(group_id, group["IpPermissions"] if group is not None else [], address)
        self._groups[job_id] = group_id
        return group_id

    def forget(self, job_id: str) -> None:
        """Look the job's group up again next time."""
        self._groups.pop(job_id, None)

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

    def _default_subnets(self) -> list[Subnet]:
        pages = (
            self._client()
            .get_paginator("describe_subnets")
            .paginate(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
        )
        return [
            Subnet(s["SubnetId"], s["VpcId"], s["AvailabilityZoneId"], s["AvailabilityZone"])
            for page in pages
            for s in page["Subnets"]
        ]

    def _default_vpc(self) -> str:
        vpcs = self._client().describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        if not vpcs:
            raise PoolUnavailable(
                f"{self._region} has no default VPC: make one with "
                f"`aws ec2 create-default-vpc --region {self._region}`, or leave the region out of `infra`",
                code="NoDefaultVpc",
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
                Description="SSH from one address to the machines of a cloudtrain job",
                VpcId=vpc_id,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags(job_id, owner)}],
            )
        except ClientError as error:
            group = self._find(job_id, vpc_id) if code_of(error) == "InvalidGroup.Duplicate" else None
            if group is None:
                raise
            return group["GroupId"]  # made by a call whose reply was lost, or by another thread
        return made["GroupId"]

    def _open(self, group_id: str, now: list[IpPermissionOutputTypeDef], address: str) -> None:
        wanted = f"{address}/32"
        ssh = [p for p in now if (p.get("IpProtocol"), p.get("FromPort")) == ("tcp", SSH_PORT)]
        admitted = {r["CidrIp"] for permission in ssh for r in permission.get("IpRanges", [])}
        if wanted not in admitted:
            try:
                self._client().authorize_security_group_ingress(GroupId=group_id, IpPermissions=[_ssh_from(wanted)])
            except ClientError as error:
                if code_of(error) != "InvalidPermission.Duplicate":
                    raise
        stale = sorted(admitted - {wanted})  # after the new one, so that whoever moved is never locked out
        if stale:
            self._client().revoke_security_group_ingress(GroupId=group_id, IpPermissions=[_ssh_from(*stale)])


def by_job(job_id: str) -> list[FilterTypeDef]:
    """The filter that finds what belongs to a job."""
    return [{"Name": f"tag:{TAG_JOB}", "Values": [job_id]}]


def _ssh_from(*cidrs: str) -> IpPermissionTypeDef:
    ranges: list[IpRangeTypeDef] = [{"CidrIp": cidr} for cidr in cidrs]
    return {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT, "IpRanges": ranges}


def _not_deleted(states: Mapping[str, str], delete: Callable[[str], object]) -> list[str]:
    """Delete what is available; returns the names of what something still uses."""
    left = []
    for name, state in states.items():
        try:
            if state == "available":
                delete(name)
        except ClientError as error:
            if code_of(error) in _IN_USE:
                left.append(name)
            elif not code_of(error).endswith(".NotFound"):
                raise
        else:
            if state not in ("available", "deleting"):
                left.append(name)
    return left
