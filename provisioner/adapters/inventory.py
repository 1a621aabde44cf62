"""The Inventory port on EC2 and S3: what jobs of one owner have in an account, wherever they left it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.adapters.aws_codes import NO_BUCKET
from cloudtrain.provisioner.adapters.aws_errors import code_of, translate, translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.ec2_resources import deleted
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.adapters.terminating import of_one, terminate
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.names import TAG_JOB, TAG_OWNER
from cloudtrain.provisioner.things import IN_USE, Kind, StoredObject, Thing

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_EXISTS = ("pending", "running", "shutting-down", "stopping", "stopped")
_OPEN = ("open", "active", "disabled")
# Unpaged calls "might be throttled and could time out" where much is found (EC2 Developer Guide, "Pagination", read
# 2026-11). No describe call takes less than 500.
_PAGE_SIZE = 500


class AwsInventory:
    """The Inventory port for one owner of one account. Every call lists anew; nothing is kept."""

    def __init__(self, clients: Clients, *, account: str, owner: str, home_region: str) -> None:
        self._clients = clients
        self._account = account
        self._owner = owner
        self._home_region = home_region

    # ---- regions

    def regions(self) -> tuple[str, ...]:
        """Every region that is enabled for the account."""
        with translated(f"looking for regions, in {self._home_region}"):
            shown = self._ec2(self._home_region).describe_regions()["Regions"]
        return tuple(sorted(region["RegionName"] for region in shown))

    def look(self, region: str) -> tuple[tuple[Thing, ...], tuple[str, ...]]:
        """What carries the owner's tag and a job's, and what may not be looked at."""
        things: list[Thing] = []
        troubles: list[str] = []
        looks: tuple[tuple[Kind, Callable[[str], Iterable[Thing]]], ...] = (
            (Kind.MACHINE, self._machines),
            (Kind.SPOT_REQUEST, self._spot_requests),
            (Kind.VOLUME, self._volumes),
            (Kind.INTERFACE, self._interfaces),
            (Kind.GROUP, self._groups),
            (Kind.KEY_PAIR, self._key_pairs),
        )
        for kind, look in looks:
            try:
                with translated(f"looking for {kind}s in {region}"):
                    things += look(region)
            except AccessError as error:
                if kind is Kind.MACHINE:
                    raise
                troubles.append(str(error))
        return tuple(things), tuple(troubles)

    def _machines(self, region: str) -> Iterator[Thing]:
        zones: dict[str, str] = {}
        states = {"Name": "instance-state-name", "Values": list(_EXISTS)}
        for i in self._all(region, "describe_instances", "Reservations", states, inside="Instances"):
            zone = i["Placement"]["AvailabilityZone"]
            if "AvailabilityZoneId" not in i["Placement"] and zone not in zones:
                shown = self._ec2(region).describe_availability_zones()["AvailabilityZones"]
                zones |= {z["ZoneName"]: z["ZoneId"] for z in shown}
            zone_id = i["Placement"].get("AvailabilityZoneId") or zones.get(zone, zone)
            spot = i.get("InstanceLifecycle") == "spot"
            market = CapacityType.SPOT if spot else CapacityType.ON_DEMAND
            yield Thing(
                Kind.MACHINE,
                i["InstanceId"],
                region,
                _tags(i),
                state=i["State"]["Name"],
                made_at=i["LaunchTime"].timestamp(),
                pool=Pool("aws", region, zone_id, i["InstanceType"], market),
                has_address=bool(i.get("PublicIpAddress")),
            )

    def _spot_requests(self, region: str) -> Iterator[Thing]:
        states = {"Name": "state", "Values": list(_OPEN)}
        for r in self._all(region, "describe_spot_instance_requests", "SpotInstanceRequests", states):
            made_at = r["CreateTime"].timestamp() if "CreateTime" in r else None
            name = r["SpotInstanceRequestId"]
            yield Thing(Kind.SPOT_REQUEST, name, region, _tags(r), state=r["State"], made_at=made_at)

    def _volumes(self, region: str) -> Iterator[Thing]:
        for v in self._all(region, "describe_volumes", "Volumes"):
            yield Thing(
                Kind.VOLUME,
                v["VolumeId"],
                region,
                _tags(v),
                state=v["State"],
                made_at=v["CreateTime"].timestamp(),
                size_gib=v["Size"],
            )

    def _interfaces(self, region: str) -> Iterator[Thing]:
        for n in self._all(region, "describe_network_interfaces", "NetworkInterfaces"):
            yield Thing(Kind.INTERFACE, n["NetworkInterfaceId"], region, _tags(n), state=n["Status"])

    def _groups(self, region: str) -> Iterator[Thing]:
        for g in self._all(region, "describe_security_groups", "SecurityGroups"):
            yield Thing(Kind.GROUP, g["GroupId"], region, _tags(g), name=g["GroupName"])

    def _key_pairs(self, region: str) -> Iterator[Thing]:
        filters: Any = self._mine()
        shown: list[Any] = list(self._ec2(region).describe_key_pairs(Filters=filters)["KeyPairs"])
        for k in shown:
            made_at = k["CreateTime"].timestamp() if "CreateTime" in k else None
            yield Thing(Kind.KEY_PAIR, k["KeyPairId"], region, _tags(k), name=k["KeyName"], made_at=made_at)

    # ---- ending

    def end(self, things: Iterable[Thing]) -> tuple[tuple[str, str], ...]:
        """Ask for their end; what was refused, and why, a line each."""
        refused: list[tuple[str, str]] = []
        wanted = list(things)
        for kind in Kind:
            for region in sorted({t.region for t in wanted if t.kind is kind}):
                these = [t for t in wanted if t.kind is kind and t.region == region]
                with translated(f"ending {kind}s in {region}"):
                    refused += self._end(kind, region, these)
        return tuple(refused)

    def _end(self, kind: Kind, region: str, things: list[Thing]) -> Iterator[tuple[str, str]]:
        ec2: Any = self._ec2(region)
        if kind is Kind.MACHINE:
            lives = [t.thing_id for t in things if t.state != "shutting-down"]
            for instance_id, refusal in terminate(ec2, region, lives).items():
                if not of_one(refusal):
                    raise refusal
                yield instance_id, str(refusal)
            return
        calls: dict[Kind, Callable[[Thing], object]] = {
            Kind.SPOT_REQUEST: lambda t: ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[t.thing_id]),
            Kind.VOLUME: lambda t: ec2.delete_volume(VolumeId=t.thing_id),
            Kind.INTERFACE: lambda t: ec2.delete_network_interface(NetworkInterfaceId=t.thing_id),
            Kind.GROUP: lambda t: ec2.delete_security_group(GroupId=t.thing_id),
            Kind.KEY_PAIR: lambda t: ec2.delete_key_pair(KeyName=t.name),
            Kind.UPLOAD: self._abort,
        }
        for thing in things:
            what = f"{thing.thing_id} in {region}"
            try:
                if not deleted(functools.partial(calls[kind], thing)):
                    yield thing.thing_id, f"{what} {IN_USE}"
            except ClientError as error:
                yield thing.thing_id, str(translate(error, what))

    def _abort(self, thing: Thing) -> None:
        s3 = self._clients.client("s3", thing.region)
        s3.abort_multipart_upload(
            Bucket=thing.bucket, Key=thing.name, UploadId=thing.thing_id, ExpectedBucketOwner=self._account
        )

    # ---- buckets

    def bucket_region(self, bucket: str) -> str | None:
        """Where a bucket of the account is; None where there is no such bucket. Raises AccessError where it may not be
        looked at, or is another account's."""
        with translated(f"looking for bucket {bucket}"):
            try:
                s3 = self._clients.client("s3", self._home_region)
                shown = s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=self._account)
            except ClientError as error:
                if code_of(error) in NO_BUCKET:
                    return None
                raise
        return shown.get("BucketRegion") or self._home_region

    def uploads(self, bucket: str, region: str) -> tuple[Thing, ...]:
        """The bucket's multipart uploads that are not finished."""
        with translated(f"looking for uploads in bucket {bucket}"):
            pages = self._clients.client("s3", region).get_paginator("list_multipart_uploads").paginate(Bucket=bucket)
            return tuple(
                Thing(
                    Kind.UPLOAD,
                    u["UploadId"],
                    region,
                    name=u["Key"],
                    made_at=u["Initiated"].timestamp(),
                    bucket=bucket,
                    initiator=u.get("Initiator", {}).get("ID", ""),
                )
                for page in pages
                for u in page.get("Uploads", ())
            )

    def contents(self, bucket: str, region: str) -> tuple[StoredObject, ...]:
        """Every object of the bucket."""
        with translated(f"listing bucket {bucket}"):
            pages = self._clients.client("s3", region).get_paginator("list_objects_v2").paginate(Bucket=bucket)
            return tuple(
                StoredObject(o["Key"], int(o["Size"]), o["LastModified"].timestamp())
                for page in pages
                for o in page.get("Contents", ())
            )

    # ---- inside

    def _ec2(self, region: str) -> EC2Client:
        return self._clients.client("ec2", region)

    def _mine(self) -> list[dict[str, Any]]:
        return [{"Name": "tag-key", "Values": [TAG_JOB]}, {"Name": f"tag:{TAG_OWNER}", "Values": [self._owner]}]

    def _all(
        self, region: str, call: str, result: str, *filters: dict[str, Any], inside: str | None = None
    ) -> Iterator[dict[str, Any]]:
        ec2: Any = self._ec2(region)
        pages = ec2.get_paginator(call).paginate(
            Filters=[*self._mine(), *filters], PaginationConfig={"PageSize": _PAGE_SIZE}
        )
        for page in pages:
            for found in page[result]:
                yield from found[inside] if inside else [found]


def _tags(shown: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(tags_of(shown).items())
