"""Groups and subnets by the way to the machines: who is let in, in which VPC, and which address is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.provisioner.adapters import ec2 as adapter
from cloudtrain.provisioner.adapters.ec2 import Ec2Cloud
from cloudtrain.provisioner.errors import PoolUnavailable
from cloudtrain.provisioner.spec import AwsOptions
from tests.contract.cloud_contract import POOL, REGION, launch_request
from tests.moto.worlds import ADDRESS, MotoWorld

OWNER = "AIDAOWNER"
VIA_BASTION = AwsOptions(ssh_proxy="me@bastion")
PRIVATE = AwsOptions(public_ip=False)
SSM = AwsOptions(ssh_proxy="ssm")


@pytest.fixture
def world(moto_world: MotoWorld, monkeypatch: pytest.MonkeyPatch) -> MotoWorld:
    monkeypatch.setattr(
        adapter, "route", lambda private: "192.0.2.44"
    )  # the guard against the network stands before it
    moto_world.cloud = Ec2Cloud(moto_world.clients, address=lambda: moto_world.address)
    return moto_world


@pytest.fixture
def network(world: MotoWorld) -> Iterator[dict[str, str]]:
    """A VPC beside the default one, with a subnet in one zone; zone id to subnet id."""
    ec2 = api(world)
    vpc = ec2.create_vpc(CidrBlock="10.44.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.44.1.0/24", AvailabilityZoneId=POOL.zone_id)["Subnet"]
    yield {"vpc": vpc, "subnet": subnet["SubnetId"]}


def api(world: MotoWorld) -> Any:
    return world.clients.client("ec2", REGION)


def groups(world: MotoWorld) -> list[dict[str, Any]]:
    mine = [{"Name": "tag:cloudtrain:job", "Values": [world.job]}]
    return list(api(world).describe_security_groups(Filters=mine)["SecurityGroups"])


def admitted(world: MotoWorld) -> set[str]:
    (group,) = groups(world)
    assert all(rule["FromPort"] == rule["ToPort"] == 22 for rule in group["IpPermissions"])
    return {r["CidrIp"] for rule in group["IpPermissions"] for r in rule["IpRanges"]}


def default_cidr(world: MotoWorld) -> str:
    (vpc,) = api(world).describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    return str(vpc["CidrBlock"])


@pytest.mark.parametrize("options", [VIA_BASTION, AwsOptions(ssh_proxy="instance-connect")])
def test_through_somebody_in_the_network_the_network_alone_is_let_in(world: MotoWorld, options: AwsOptions) -> None:
    world.cloud.prepare(world.job, OWNER, [REGION], options)
    assert admitted(world) == {default_cidr(world)}


def test_through_ssm_nobody_is_let_in_and_nobodys_address_is_asked(world: MotoWorld) -> None:
    world.cloud = Ec2Cloud(world.clients, address=lambda: pytest.fail("asked"))
    world.cloud.prepare(world.job, OWNER, [REGION], SSM)
    assert admitted(world) == set()


def test_a_private_machine_lets_in_its_network_and_our_address_on_the_way_there(
    world: MotoWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cloud.prepare(world.job, OWNER, [REGION], PRIVATE)
    assert admitted(world) == {default_cidr(world), "192.0.2.44/32"}
    monkeypatch.setattr(adapter, "route", lambda private: "192.0.2.45")  # the VPN came back with another address
    Ec2Cloud(world.clients, address=lambda: ADDRESS).prepare(world.job, OWNER, [REGION], PRIVATE)
    assert admitted(world) == {default_cidr(world), "192.0.2.45/32"}
    monkeypatch.setattr(adapter, "route", lambda private: None)
    Ec2Cloud(world.clients, address=lambda: ADDRESS).prepare(world.job, OWNER, [REGION], PRIVATE)
    assert admitted(world) == {default_cidr(world)}


def test_a_laptop_that_moved_is_let_in_again_and_its_old_place_is_not(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, OWNER, [REGION])
    assert admitted(world) == {f"{ADDRESS}/32"}
    world.address = "198.51.100.77"
    world.cloud.prepare(world.job, OWNER, [REGION])
    world.cloud.prepare(world.job, OWNER, [REGION])
    assert admitted(world) == {"198.51.100.77/32"}


def test_a_chosen_subnet_decides_network_group_and_address(world: MotoWorld, network: dict[str, str]) -> None:
    options = replace(VIA_BASTION, public_ip=False, subnet_ids=("subnet-0123456789abcdef0", network["subnet"]))
    world.cloud.prepare(world.job, OWNER, [REGION], options)
    (group,) = groups(world)
    assert group["VpcId"] == network["vpc"]
    assert admitted(world) == {"10.44.0.0/16"}
    machine = world.cloud.launch(replace(launch_request(world), options=options))
    (seen,) = world.cloud.machines(world.job, [REGION])
    assert seen.private is not None
    assert seen.private.host.startswith("10.44.1.")
    assert seen.private.port == 22
    assert seen.endpoint is None
    found = api(world).describe_instances(InstanceIds=[machine.instance_id])["Reservations"][0]["Instances"][0]
    assert (found["SubnetId"], found["NetworkInterfaces"][0]["Groups"][0]["GroupId"]) == (
        network["subnet"],
        group["GroupId"],
    )
    assert [g["GroupId"] for g in groups(world)] == [group["GroupId"]]  # no second one in the default VPC


def test_a_zone_without_a_chosen_subnet_is_left_out_with_the_reason(world: MotoWorld, network: dict[str, str]) -> None:
    options = AwsOptions(subnet_ids=(network["subnet"],))
    request = launch_request(world)
    pool = replace(POOL, zone_id="use1-az6")
    elsewhere = replace(request, options=options, attempt=replace(request.attempt, pool=pool))
    with pytest.raises(PoolUnavailable, match=rf"none of subnet_ids \({network['subnet']}\) lies in zone use1-az6"):
        world.cloud.launch(elsewhere)
    with pytest.raises(PoolUnavailable, match=r"none of subnet_ids .* lies in us-west-2"):
        world.cloud.prepare(world.job, OWNER, ["us-west-2"], options)


def test_a_machine_in_the_open_has_both_addresses(world: MotoWorld) -> None:
    world.cloud.prepare(world.job, OWNER, [REGION])
    world.cloud.launch(launch_request(world))
    (seen,) = world.cloud.machines(world.job, [REGION])
    assert seen.endpoint is not None
    assert seen.private is not None
    assert seen.endpoint.host != seen.private.host
