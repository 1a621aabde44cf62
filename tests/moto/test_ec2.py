"""What is EC2's adapter's own: tags, the security group, leftovers, batches, and which errors it passes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from moto.ec2.models import ec2_backends

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.ec2 import Ec2Cloud
from cloudtrain.provisioner.errors import (
    AccessError,
    CloudError,
    CloudGone,
    CloudUnreachable,
    PoolUnavailable,
    QuotaExceeded,
    RegionDenied,
    Scope,
    UsageError,
)
from cloudtrain.provisioner.model import Endpoint, Image, Machine, MachineState
from cloudtrain.provisioner.names import TAG_LOCAL_SSH
from cloudtrain.provisioner.spec import AwsOptions
from tests.contract.cloud_contract import POOL, REGION, found, image, launch_request, running
from tests.moto.worlds import ACCOUNT, ADDRESS, AMI, MotoWorld, register


@pytest.fixture
def world(moto_world: MotoWorld) -> MotoWorld:
    return moto_world


def ec2(world: MotoWorld) -> Any:
    return world.clients.client("ec2", REGION)


def mine(world: MotoWorld) -> list[dict[str, Any]]:
    return [{"Name": "tag:cloudtrain:job", "Values": [world.job]}]


def group(world: MotoWorld) -> dict[str, Any]:
    (only,) = ec2(world).describe_security_groups(Filters=mine(world))["SecurityGroups"]
    return dict(only)


def admitted(world: MotoWorld) -> list[tuple[str, int, int, str]]:
    return [
        (rule["IpProtocol"], rule["FromPort"], rule["ToPort"], r["CidrIp"])
        for rule in group(world)["IpPermissions"]
        for r in rule["IpRanges"]
    ]


def counted(world: MotoWorld, *actions: str) -> Counter[str]:
    calls: Counter[str] = Counter()
    for action in actions:
        world.on_call(action, partial(calls.update, [action]))
    return calls


# ---- who we are


def test_the_account_and_its_caller_are_told(world: MotoWorld) -> None:
    assert world.cloud.account() == ACCOUNT
    assert world.cloud.owner("us-west-2") == "AKIAIOSFODNN7EXAMPLE"


# ---- the group


def test_the_group_admits_the_caller_alone_and_is_tagged_when_it_is_made(world: MotoWorld) -> None:
    calls = counted(world, "CreateSecurityGroup", "CreateTags")
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    assert admitted(world) == [("tcp", 22, 22, f"{ADDRESS}/32")]
    assert group(world)["GroupName"] == f"cloudtrain-{world.job}"
    tags = {tag["Key"]: tag["Value"] for tag in group(world)["Tags"]}
    assert tags == {
        "Name": f"cloudtrain-{world.job}",
        "cloudtrain:owner": "AIDAOWNER",
        "cloudtrain:job": world.job,
    }
    assert calls == {"CreateSecurityGroup": 1}


def test_preparing_again_changes_nothing(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    calls = counted(world, "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress")
    Ec2Cloud(world.clients, address=lambda: ADDRESS).prepare(world.job, "AIDAOWNER", [REGION])
    assert not calls


def test_a_caller_who_moved_is_let_in_and_the_old_address_out(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    world.address = "198.51.100.9"
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    assert admitted(world) == [("tcp", 22, 22, "198.51.100.9/32")]


def test_a_group_whose_reply_was_lost_is_found(world: MotoWorld) -> None:
    resources = world.cloud._resources(REGION)
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    assert resources._create(world.job, "AIDAOWNER", resources._default_vpc()) == group(world)["GroupId"]


def test_a_foreign_group_of_that_name_is_not_taken_over(world: MotoWorld) -> None:
    vpc_id = world.cloud._resources(REGION)._default_vpc()
    ec2(world).create_security_group(GroupName=f"cloudtrain-{world.job}", Description="not ours", VpcId=vpc_id)
    with pytest.raises(CloudUnreachable, match=r"InvalidGroup\.Duplicate"):  # ours, not seen yet, says the same
        world.cloud.prepare(world.job, "AIDAOWNER", [REGION])


def test_a_region_without_a_default_vpc_says_what_to_do(world: MotoWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2(world), "describe_vpcs", lambda **_: {"Vpcs": []})
    with pytest.raises(PoolUnavailable, match="create-default-vpc --region us-east-1"):
        world.cloud.prepare(world.job, "AIDAOWNER", [REGION])


# ---- launch


def test_everything_that_a_launch_makes_carries_the_job_s_tags(world: MotoWorld) -> None:
    made = world.cloud.launch(launch_request(world, generation=5))
    (reservation,) = ec2(world).describe_instances(InstanceIds=[made.instance_id])["Reservations"]
    (instance,) = reservation["Instances"]
    volume = ec2(world).describe_volumes(Filters=mine(world))["Volumes"][0]
    for tagged in (instance, volume):
        tags = {tag["Key"]: tag["Value"] for tag in tagged["Tags"]}
        assert (tags["cloudtrain:job"], tags["cloudtrain:generation"]) == (world.job, "5")
        assert tags["cloudtrain:token"] == made.client_token
    assert (volume["Encrypted"], volume["Size"]) == (True, 100)
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    (interface,) = instance["NetworkInterfaces"]
    assert [g["GroupId"] for g in interface["Groups"]] == [group(world)["GroupId"]]
    assert instance["Placement"]["AvailabilityZone"] == zone_name(world)
    assert instance["ImageId"] == AMI


def zone_name(world: MotoWorld, zone_id: str = POOL.zone_id) -> str:
    return world.cloud._resources(REGION).subnet(zone_id).zone_name


def test_a_machine_is_reached_at_its_public_address(world: MotoWorld) -> None:
    machine = running(world, world.cloud.launch(launch_request(world)))
    (reservation,) = ec2(world).describe_instances(InstanceIds=[machine.instance_id])["Reservations"]
    assert machine.endpoint == Endpoint(reservation["Instances"][0]["PublicIpAddress"], 22)


def test_a_zone_without_a_default_subnet_is_named(world: MotoWorld) -> None:
    nowhere = replace(POOL, zone_id="use1-az99")
    with pytest.raises(PoolUnavailable, match="use1-az99 of us-east-1 has no default subnet"):
        world.cloud.launch(launch_request(world, pool=nowhere))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("InsufficientInstanceCapacity", PoolUnavailable),
        ("BrandNewCode", PoolUnavailable),
        ("RequestLimitExceeded", CloudUnreachable),
        ("UnauthorizedOperation", RegionDenied),
        ("InvalidParameterValue", UsageError),
    ],
)
def test_a_refusal_is_one_call_and_one_line(world: MotoWorld, code: str, wanted: type[Exception]) -> None:
    world.refuse("RunInstances", code, status=500 if code == "InsufficientInstanceCapacity" else 400)
    calls = counted(world, "RunInstances")
    with pytest.raises(wanted, match=f"launch in {POOL}: {code}") as caught:
        world.cloud.launch(launch_request(world))
    assert type(caught.value) is wanted
    assert len(str(caught.value).splitlines()) == 1
    assert calls == {"RunInstances": 1}


@pytest.mark.parametrize(("roles", "wanted"), [([{"RoleName": "r"}], CloudUnreachable), ([], AccessError)])
def test_an_instance_profile_that_iam_shows_and_ec2_does_not_know_yet_is_asked_for_again(
    world: MotoWorld, roles: list[dict[str, str]], wanted: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {"InstanceProfile": {"Roles": roles}}
    monkeypatch.setattr(world.clients.client("iam", REGION), "get_instance_profile", lambda **_: shown)
    text = (
        "Value (cloudtrain-machine) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    )
    world.refuse("RunInstances", "InvalidParameterValue", text, times=1)
    with pytest.raises(wanted) as caught:
        world.cloud.launch(launch_request(world))
    assert type(caught.value) is wanted


def test_a_full_subnet_gives_way_to_the_next_of_the_zone_and_then_to_the_next_zone(world: MotoWorld) -> None:
    """F33: it is neither the type's fault nor the region's."""
    first = Ec2Cloud(world.clients, address=lambda: ADDRESS)._resources(REGION).subnet(POOL.zone_id)
    made = ec2(world).create_subnet(VpcId=first.vpc_id, CidrBlock="172.31.240.0/24", AvailabilityZone=first.zone_name)
    second = made["Subnet"]["SubnetId"]
    options = AwsOptions(subnet_ids=(first.subnet_id, second))
    request = replace(launch_request(world), options=options)
    world.refuse("RunInstances", "InsufficientFreeAddressesInSubnet", times=1)
    with pytest.raises(CloudUnreachable, match=f"subnet {first.subnet_id} has no free address"):
        world.cloud.launch(request)  # asked again, with the same token
    asked: list[str] = []
    world.on_send("RunInstances", lambda sent: asked.append(str(sent.body)))
    machine = world.cloud.launch(request)
    assert second in asked[0]
    world.cloud.terminate(REGION, [machine.instance_id])
    world.refuse("RunInstances", "InsufficientFreeAddressesInSubnet", times=1)
    with pytest.raises(PoolUnavailable) as caught:
        world.cloud.launch(replace(launch_request(world, generation=2), options=options))
    assert caught.value.scope is Scope.SUBNET


def test_a_launch_that_a_quota_refused_names_it(world: MotoWorld) -> None:
    world.refuse("RunInstances", "VcpuLimitExceeded", "your current vCPU limit of 0 allows", times=1)
    with pytest.raises(QuotaExceeded, match=r"L-3819A6DF.* needs 4 vCPUs, the quota is 0, 4 are missing"):
        world.cloud.launch(launch_request(world))


def test_a_group_that_vanished_is_made_anew_by_the_next_try(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    ec2(world).delete_security_group(GroupId=group(world)["GroupId"])
    world.refuse("RunInstances", "InvalidGroup.NotFound", times=1)
    request = launch_request(world)
    with pytest.raises(CloudUnreachable):
        world.cloud.launch(request)
    assert world.cloud.launch(request).job_id == world.job
    assert admitted(world) == [("tcp", 22, 22, f"{ADDRESS}/32")]


def test_a_dead_embedded_cloud_is_gone_and_a_silent_one_is_not(unused_port: int) -> None:
    clients = Clients("local", local_endpoint=f"http://127.0.0.1:{unused_port}")
    for dead, wanted in (([1], CloudGone), ([], CloudUnreachable)):
        cloud = Ec2Cloud(clients, address=lambda: "127.0.0.1", is_dead=partial(bool, dead))
        with pytest.raises(wanted):
            cloud.machines("digits-0", [REGION])


@pytest.fixture
def unused_port() -> Iterator[int]:
    import socket

    with socket.socket() as listening:  # bound and never listening: connections are refused
        listening.bind(("127.0.0.1", 0))
        yield listening.getsockname()[1]


# ---- what can be seen


def test_a_stranger_s_machine_with_our_tag_is_not_ours(world: MotoWorld) -> None:
    tags = [{"Key": "cloudtrain:job", "Value": world.job}, {"Key": "cloudtrain:generation", "Value": "x"}]
    ec2(world).run_instances(
        ImageId=AMI, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": tags}]
    )
    assert found(world) == ()


def test_on_the_embedded_cloud_the_address_is_in_a_tag() -> None:
    cloud = Ec2Cloud(Clients("local", local_endpoint="http://127.0.0.1:9"), address=lambda: "127.0.0.1")
    seen: Any = {
        "InstanceId": "i-1",
        "State": {"Name": "running"},
        "LaunchTime": datetime(2026, 11, 30, tzinfo=UTC),
        "PublicIpAddress": "127.0.0.1",
        "Tags": [
            {"Key": key, "Value": value}
            for key, value in {
                "cloudtrain:job": "j",
                "cloudtrain:generation": "2",
                "cloudtrain:token": "t",
                TAG_LOCAL_SSH: "127.0.0.1:40022",
            }.items()
        ],
    }
    machine = cloud._machine(seen)
    assert isinstance(machine, Machine)
    assert machine.endpoint == Endpoint("127.0.0.1", 40022)
    seen["Tags"].pop()
    booting = cloud._machine(seen)
    assert isinstance(booting, Machine)
    assert booting.endpoint is None


def test_the_newest_price_of_the_pool_s_own_zone_counts(world: MotoWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = zone_name(world), zone_name(world, "use1-az2")
    rows = [(here, "0.3", 2), (there, "0.1", 9), (here, "0.2", 5), (here, "0.4", 1)]
    history = [
        {"AvailabilityZone": zone, "SpotPrice": price, "Timestamp": datetime(2026, 11, day, tzinfo=UTC)}
        for zone, price, day in rows
    ]
    asked: list[dict[str, Any]] = []

    class Pages:
        def paginate(self, **arguments: Any) -> list[dict[str, Any]]:
            asked.append(arguments)
            return [{"SpotPriceHistory": history[:2]}, {"SpotPriceHistory": []}, {"SpotPriceHistory": history[2:]}]

    monkeypatch.setattr(ec2(world), "get_paginator", lambda _: Pages())
    assert world.cloud.price(POOL) == Decimal("0.2")
    assert asked[0]["AvailabilityZone"] == here
    assert asked[0]["ProductDescriptions"] == ["Linux/UNIX"]
    history.clear()
    monkeypatch.setattr(Pages, "paginate", lambda *_, **__: [{"SpotPriceHistory": []}])
    assert world.cloud.price(POOL) is None


def test_an_unknown_image_parameter_is_named(world: MotoWorld) -> None:
    with pytest.raises(CloudError, match="/no/such/line in us-east-1: ParameterNotFound"):
        world.cloud.find_image(replace(image(), ssm_parameter="/no/such/line"), REGION)


def own(ami: str, **more: Any) -> Image:
    return replace(image(), ssm_parameter="", own_id=ami, login_user="", **more)


def test_an_own_image_tells_its_login_user_or_is_asked_for_it(world: MotoWorld) -> None:
    register("ami-00000000000debian", REGION, name="debian-12-amd64-20261001")
    register("ami-000000000000ours1", REGION, name="training v7")
    assert world.cloud.find_image(own("ami-00000000000debian"), REGION).login_user == "admin"
    with pytest.raises(UsageError, match=r"'training v7' does not tell who logs in; set resources.aws.ssh_user"):
        world.cloud.find_image(own("ami-000000000000ours1"), REGION)
    told = replace(own("ami-000000000000ours1"), login_user="me")
    assert world.cloud.find_image(told, REGION).login_user == "me"


def test_an_image_that_is_not_ready_or_has_no_volume_is_refused(world: MotoWorld) -> None:
    register("ami-0000000000pending", REGION, name="ubuntu")
    backend = ec2_backends[ACCOUNT][REGION]
    backend.amis["ami-0000000000pending"].state = "pending"
    with pytest.raises(PoolUnavailable, match="it is pending, not available; image ids differ by region"):
        world.cloud.find_image(own("ami-0000000000pending"), REGION)
    register("ami-0000000000instst", REGION, name="ubuntu", root_device_type="instance-store")
    with pytest.raises(UsageError, match="its root is no EBS volume"):
        world.cloud.find_image(own("ami-0000000000instst"), REGION)


def test_without_the_right_to_look_at_images_that_is_said(world: MotoWorld) -> None:
    world.refuse("DescribeImages", "UnauthorizedOperation", status=403)
    with pytest.raises(AccessError, match=f"image {AMI} in us-east-1"):
        world.cloud.find_image(own(AMI), REGION)


# ---- the end


def test_many_ids_go_in_batches(world: MotoWorld) -> None:
    sizes: list[int] = []
    world.refuse("TerminateInstances", "OperationNotPermitted")
    with pytest.raises(CloudError, match="protection"):
        world.cloud.terminate(REGION, [f"i-{n:017x}" for n in range(150)])
    world.close()
    world.on_send("TerminateInstances", lambda request: sizes.append(str(request.body).count("InstanceId.")))
    world.cloud.terminate(REGION, [f"i-{n:017x}" for n in range(150)])
    assert max(sizes) == 100
    assert sizes.count(1) == 150, "each alone, since EC2 ends none beside one that it does not know"


def test_one_machine_that_is_protected_does_not_save_the_others(world: MotoWorld) -> None:
    machines = [world.cloud.launch(launch_request(world, generation=n)) for n in range(1, 10)]
    protected = machines[4].instance_id
    world.refuse("TerminateInstances", "OperationNotPermitted", having=protected)
    calls = counted(world, "TerminateInstances")
    with pytest.raises(CloudError, match=f"terminate {protected} in us-east-1"):
        world.cloud.terminate(REGION, [machine.instance_id for machine in machines])
    assert [m.instance_id for m in found(world) if m.state is MachineState.RUNNING] == [protected]
    assert calls["TerminateInstances"] <= 9, "halves, not one by one"


def test_sweep_deletes_what_outlived_its_machine_and_reports_what_is_in_use(world: MotoWorld) -> None:
    tags = [{"Key": "cloudtrain:job", "Value": world.job}]

    def specification(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": tags}]

    zone = zone_name(world)
    free = ec2(world).create_volume(AvailabilityZone=zone, Size=1, TagSpecifications=specification("volume"))
    ec2(world).create_network_interface(
        SubnetId=world.cloud._resources(REGION).subnet(POOL.zone_id).subnet_id,
        TagSpecifications=specification("network-interface"),
    )
    machine = running(world, world.cloud.launch(launch_request(world)))
    left = world.cloud.sweep(world.job, [REGION])
    assert any(name.startswith("vol-") for name in left)
    assert f"{free['VolumeId']} in {REGION}" not in left
    world.cloud.terminate(REGION, [machine.instance_id])
    assert world.cloud.sweep(world.job, [REGION]) == ()
    assert ec2(world).describe_volumes(Filters=mine(world))["Volumes"] == []
    assert ec2(world).describe_network_interfaces(Filters=mine(world))["NetworkInterfaces"] == []
    assert ec2(world).describe_security_groups(Filters=mine(world))["SecurityGroups"] == []


@pytest.mark.parametrize(("code", "stays"), [("DependencyViolation", True), ("InvalidGroup.NotFound", False)])
def test_a_group_that_cannot_go_yet_is_no_error(world: MotoWorld, code: str, stays: bool) -> None:
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    name = group(world)["GroupId"]
    world.refuse("DeleteSecurityGroup", code)
    assert world.cloud.sweep(world.job, [REGION]) == ((f"{name} in {REGION}",) if stays else ())


def test_a_sweep_that_is_not_allowed_says_so(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, "AIDAOWNER", [REGION])
    world.refuse("DeleteSecurityGroup", "UnauthorizedOperation", status=403)
    with pytest.raises(AccessError, match=f"clearing up after {world.job}"):
        world.cloud.sweep(world.job, [REGION])
