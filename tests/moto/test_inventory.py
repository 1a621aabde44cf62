"""The Inventory adapter on moto, and the whole of `gc` among a crowd of things that are not ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.provisioner.adapters.inventory import AwsInventory
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.launch import clearing
from cloudtrain.provisioner.launch.clearing import Scene, end, survey
from cloudtrain.provisioner.model import JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.things import Kind
from tests.contract.cloud_contract import launch_request, running
from tests.contract.inventory_contract import REGION, InventoryContract
from tests.fakes import FakeClock
from tests.moto.worlds import ACCOUNT, AMI, MotoWorld
from tests.records import job

OWNER = "AIDAOWNER"
BUCKET = f"cloudtrain-{ACCOUNT}-us-east-1-an"
ARN = f"arn:aws:iam::{ACCOUNT}:user/me"


class InventoryWorld:
    """One job of ours in the module's account."""

    def __init__(self, world: MotoWorld) -> None:
        self.world = world
        self.job = world.job
        self.ec2: Any = world.clients.client("ec2", REGION)
        self.s3: Any = world.clients.client("s3", REGION)
        self.inventory = AwsInventory(world.clients, account=ACCOUNT, owner=OWNER, home_region=REGION)

    def launch(self) -> str:
        request = replace(launch_request(self.world), owner=OWNER, bucket=BUCKET)
        token = f"ct-{self.job[:32]}-1-0123456789ab"
        request = replace(request, attempt=replace(request.attempt, client_token=token))
        self.world.cloud.prepare(self.job, OWNER, [REGION])
        return running(self.world, self.world.cloud.launch(request)).instance_id

    def foreign(self) -> str:
        made = self.ec2.run_instances(ImageId=AMI, InstanceType="t3.micro", MinCount=1, MaxCount=1)
        return str(made["Instances"][0]["InstanceId"])

    def until(self, gone: str) -> None:
        for _ in range(5):  # moto takes one step of a machine's life at each look
            (group,) = self.ec2.describe_instances(InstanceIds=[gone])["Reservations"]
            if group["Instances"][0]["State"]["Name"] == "terminated":
                return
        raise AssertionError(f"{gone} lives on")

    def bucket(self) -> str:
        names = [b["Name"] for b in self.s3.list_buckets()["Buckets"]]
        if BUCKET not in names:
            self.s3.create_bucket(Bucket=BUCKET)
        return BUCKET

    # ---- for gc

    @property
    def scene(self) -> Scene:
        clients = self.world.clients
        return Scene(
            inventory=self.inventory,
            objects=lambda name, region: S3ObjectStore(clients, bucket=name, region=region),
            account=ACCOUNT,
            owner=OWNER,
            arn=ARN,
            buckets=(self.bucket(),),
            here=lambda: (),
            everywhere=lambda: ("us-east-1",),
            clock=FakeClock(4_000_000_000.0),  # everything that moto makes now is old
        )

    def record(self, status: JobStatus, job_id: str | None = None, owner: str = OWNER) -> None:
        record = replace(job(job_id=job_id or self.job), status=status, owner=owner, collected=True)
        self.s3.put_object(Bucket=self.bucket(), Key=record_key(record.job_id), Body=encode(record))


@pytest.fixture
def world(moto_world: MotoWorld) -> Iterator[InventoryWorld]:
    yield InventoryWorld(moto_world)


class TestAwsInventory(InventoryContract):
    pass


def tags(**changes: str) -> list[dict[str, str]]:
    found = {f"cloudtrain:{key}": value for key, value in changes.items() if value}
    return [{"Key": key, "Value": value} for key, value in found.items()]


def crowd(it: InventoryWorld) -> set[str]:
    """Things of every kind that are not ours to end: no tag, another's, our tag in part, and ones that look like it."""
    ec2, made = it.ec2, set()
    zone = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneName"]
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"][0]
    token = f"ct-{it.job}-1-0123456789ab"
    looks: tuple[list[dict[str, str]], ...] = (
        [],
        tags(owner="AIDAOTHER", job=it.job, generation="1", token=token),
        tags(owner=OWNER),
        tags(job=it.job),
        tags(owner=OWNER, job=it.job),
        tags(owner=OWNER, job=it.job, generation="1", token="mine"),
        [{"Key": "Name", "Value": f"cloudtrain-{it.job}"}],
    )
    for number, look in enumerate(looks):

        def spec(kind: str, look: list[dict[str, str]] = look) -> dict[str, Any]:
            return {"TagSpecifications": [{"ResourceType": kind, "Tags": look}]} if look else {}

        machine = ec2.run_instances(
            ImageId=AMI,
            InstanceType="t3.micro",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet["SubnetId"],
            **spec("instance"),
        )
        made.add(machine["Instances"][0]["InstanceId"])
        made.add(ec2.create_volume(AvailabilityZone=zone, Size=1, **spec("volume"))["VolumeId"])
        interface = ec2.create_network_interface(SubnetId=subnet["SubnetId"], **spec("network-interface"))
        made.add(interface["NetworkInterface"]["NetworkInterfaceId"])
        group = {"GroupName": f"crowd-{it.job}-{number}", "Description": "x", "VpcId": subnet["VpcId"]}
        made.add(ec2.create_security_group(**group, **spec("security-group"))["GroupId"])
        made.add(ec2.create_key_pair(KeyName=f"crowd-{it.job}-{number}", **spec("key-pair"))["KeyPairId"])
        spot = ec2.request_spot_instances(
            SpotPrice="0.1",
            LaunchSpecification={"ImageId": AMI, "InstanceType": "t3.micro"},
            **spec("spot-instances-request"),
        )
        made.add(spot["SpotInstanceRequests"][0]["SpotInstanceRequestId"])
    return made


def there(it: InventoryWorld) -> set[str]:
    """The ids of all that exists in the region."""
    ec2 = it.ec2
    machines = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    return {
        *(i["InstanceId"] for i in machines if i["State"]["Name"] not in ("terminated", "shutting-down")),
        *(v["VolumeId"] for v in ec2.describe_volumes()["Volumes"]),
        *(n["NetworkInterfaceId"] for n in ec2.describe_network_interfaces()["NetworkInterfaces"]),
        *(g["GroupId"] for g in ec2.describe_security_groups()["SecurityGroups"]),
        *(k["KeyPairId"] for k in ec2.describe_key_pairs()["KeyPairs"]),
        *(
            r["SpotInstanceRequestId"]
            for r in ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
            if r["State"] not in ("cancelled", "closed")
        ),
    }


def ours(it: InventoryWorld) -> set[str]:
    """One of each kind, as a launch would have left it."""
    ec2 = it.ec2
    zone = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneName"]
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"][0]
    mine = tags(owner=OWNER, job=it.job, generation="1", token=f"ct-{it.job[:32]}-1-0123456789ab")

    def spec(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": mine}]

    made = {it.launch()}
    made.add(ec2.create_volume(AvailabilityZone=zone, Size=7, TagSpecifications=spec("volume"))["VolumeId"])
    interface = ec2.create_network_interface(SubnetId=subnet["SubnetId"], TagSpecifications=spec("network-interface"))
    made.add(interface["NetworkInterface"]["NetworkInterfaceId"])
    key = ec2.create_key_pair(KeyName=f"cloudtrain-{it.job}", TagSpecifications=spec("key-pair"))
    made.add(key["KeyPairId"])
    spot = ec2.request_spot_instances(
        SpotPrice="0.1",
        LaunchSpecification={"ImageId": AMI, "InstanceType": "t3.micro"},
        TagSpecifications=spec("spot-instances-request"),
    )["SpotInstanceRequests"][0]
    made.add(spot["SpotInstanceRequestId"])
    filters = [
        {"Name": "tag:cloudtrain:job", "Values": [it.job]},
        {"Name": "group-name", "Values": [f"cloudtrain-{it.job}"]},
    ]
    (group,) = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return {*made, group["GroupId"]}


def test_among_a_crowd_every_thing_of_ours_goes_and_nothing_else(world: InventoryWorld) -> None:
    others = crowd(world)
    mine = ours(world)
    world.record(JobStatus.FAILED)
    before = there(world)
    found = survey(world.scene, (REGION,))
    assert mine <= {v.thing.thing_id for v in found.ending}
    assert not others & {v.thing.thing_id for v in found.ending}
    said: list[str] = []
    assert end(world.scene, found, said.append) == (), said
    after = there(world)
    assert others <= after
    assert not mine & after
    gone = before - after
    assert gone <= {v.thing.thing_id for v in found.ending} | gone & {t for t in gone if t.startswith("eni-")}
    assert survey(world.scene, (REGION,)).ending == ()


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.RECOVERING])
def test_a_live_jobs_things_all_stay(world: InventoryWorld, status: JobStatus) -> None:
    mine = ours(world)
    world.record(status)
    found = survey(world.scene, (REGION,))
    assert not mine & {v.thing.thing_id for v in found.ending}
    assert mine <= {v.thing.thing_id for v in found.verdicts}
    world.record(JobStatus.CANCELLED)
    end(world.scene, survey(world.scene, (REGION,)), lambda _: None)


def test_what_is_found_tells_what_costs_money(world: InventoryWorld) -> None:
    machine = world.launch()
    found = {t.thing_id: t for t in world.inventory.look(REGION)[0]}
    one = found[machine]
    assert one.pool is not None
    assert str(one.pool) == "aws/us-east-1/use1-az4/g4dn.xlarge/spot"
    assert one.tag("cloudtrain:bucket") == BUCKET
    volume = next(t for t in found.values() if t.kind is Kind.VOLUME and t.tag("cloudtrain:job") == world.job)
    assert volume.size_gib == 100
    world.record(JobStatus.FAILED)
    end(world.scene, survey(world.scene, (REGION,)), lambda _: None)


def test_a_protected_machine_is_left_with_ec2s_reason_and_the_others_go(
    world: InventoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: EC2 ends none of a call's machines where it refuses one."""
    monkeypatch.setattr(clearing, "STUCK_S", 10.0)
    good = [world.launch()]
    request = replace(launch_request(world.world, generation=2), owner=OWNER)
    request = replace(request, attempt=replace(request.attempt, client_token=f"ct-{world.job[:32]}-2-0123456789ab"))
    kept = world.world.cloud.launch(request).instance_id
    world.ec2.modify_instance_attribute(InstanceId=kept, DisableApiTermination={"Value": True})
    world.record(JobStatus.FAILED)
    left = end(world.scene, survey(world.scene, (REGION,)), lambda _: None)
    assert kept in {one.verdict.thing.thing_id for one in left}
    assert not {one.verdict.thing.thing_id for one in left} & set(good)
    (why,) = [one.why for one in left if one.verdict.thing.thing_id == kept]
    assert "OperationNotPermitted" in why
    assert "termination protection" in why
    world.ec2.modify_instance_attribute(InstanceId=kept, DisableApiTermination={"Value": False})
    assert end(world.scene, survey(world.scene, (REGION,)), lambda _: None) == ()


def test_uploads_of_ended_jobs_are_aborted_and_others_stay(world: InventoryWorld) -> None:
    def begin(key: str) -> str:
        return str(world.s3.create_multipart_upload(Bucket=world.bucket(), Key=key)["UploadId"])

    world.record(JobStatus.FAILED)
    world.record(JobStatus.RUNNING, "live-1")
    world.record(JobStatus.FAILED, "theirs-1", owner="AIDAOTHER")
    gone = begin(f"jobs/{world.job}/checkpoints/g0001-1/w")
    stay = {
        begin(key) for key in ("jobs/live-1/w", "jobs/theirs-1/w", "jobs/nobody-1/w", "backup.tar", f"files/{'a' * 64}")
    }
    end(world.scene, survey(world.scene, (REGION,)), lambda _: None)
    left = {u["UploadId"] for u in world.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())}
    assert gone not in left
    assert stay <= left


def test_a_kind_that_may_not_be_looked_at_is_said_and_machines_must_be(world: InventoryWorld) -> None:
    world.world.refuse("DescribeKeyPairs", "UnauthorizedOperation", status=403)
    _, troubles = world.inventory.look(REGION)
    assert len(troubles) == 1
    assert "looking for key pairs in us-east-1: UnauthorizedOperation" in troubles[0]
    world.world.refuse("DescribeInstances", "UnauthorizedOperation", status=403)
    with pytest.raises(AccessError):
        world.inventory.look(REGION)


def test_every_list_that_has_pages_is_asked_for_in_pages(world: InventoryWorld) -> None:
    asked: dict[str, bool] = {}

    def note(params: dict[str, Any], model: Any, **_: object) -> None:
        if model.input_shape and "MaxResults" in model.input_shape.members:
            asked[model.name] = "MaxResults" in params["body"]

    world.ec2.meta.events.register("before-call.ec2", note)
    world.inventory.look(REGION)
    world.ec2.meta.events.unregister("before-call.ec2", note)
    assert len(asked) == 5 and all(asked.values()), asked


def test_every_enabled_region_is_looked_at(world: InventoryWorld) -> None:
    assert {"us-east-1", "eu-west-1"} <= set(world.inventory.regions())
