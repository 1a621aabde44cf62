"""Facts are read from a cloud as they are: subnets and their own route tables, keys and grants, clocks, quotas."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.provisioner.account.account_checks import ROLE_ACTIONS, allows
from cloudtrain.provisioner.account.facts import (
    AccountFacts,
    Bucket,
    EbsKey,
    Identity,
    MachineRole,
    Network,
    RegionFacts,
    SpotRole,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.adapters.account_facts import PROBE_PREFIX, read
from cloudtrain.provisioner.localcloud.plants import SKEW_S, SPOT_ROLE_ARN
from cloudtrain.provisioner.spec import AwsOptions
from tests.moto.local_server import KIND, REGION, ZONE, Cloud, offerings, serving

WANTS = Wants(tuple(o for o in offerings() if o.pool.instance_type == KIND))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("facts")) as cloud:
        yield cloud


@pytest.fixture
def planted(cloud: Cloud) -> Iterator[Cloud]:
    yield cloud
    cloud.state.planted.clear()


def facts(cloud: Cloud, wants: Wants = WANTS, *, egress: tuple[str, int] | None = None) -> AccountFacts:
    return read(cloud.clients, wants, home_region=REGION, egress=egress, limit_s=60)


def region(cloud: Cloud, wants: Wants = WANTS) -> RegionFacts:
    [found] = facts(cloud, wants).regions
    return found


def network(cloud: Cloud, **options: Any) -> Network:
    found = region(cloud, replace(WANTS, options=AwsOptions(**options))).network
    assert isinstance(found, Network)
    return found


def test_a_ready_account(cloud: Cloud) -> None:
    found = facts(cloud)
    assert isinstance(found.caller, Identity)
    assert found.caller.account == "123456789012"
    assert found.ahead_s is not None
    assert abs(found.ahead_s) < 30
    assert found.spot_role == SpotRole(exists=True)
    assert isinstance(found.bucket, Bucket)
    assert (found.bucket.probe, found.bucket.public_access_blocked) == (None, True)
    assert found.bucket.name is not None
    assert isinstance(found.role, MachineRole)
    assert not isinstance(found.role.policies, Unread)
    for action in ROLE_ACTIONS:
        resource = f"arn:aws:s3:::{found.bucket.name}" + ("" if action == "s3:ListBucket" else "/jobs/j/key")
        assert allows(found.role.policies, action, resource)
        assert not allows(found.role.policies, action, f"arn:aws:s3:::{found.bucket.name}/control/j/record")


def test_a_ready_region(cloud: Cloud) -> None:
    found = region(cloud)
    assert found.opt_in == "opt-in-not-required"
    assert {code for code, value in found.quotas if isinstance(value, float)} == {"L-3819A6DF", "L-DB2E81BA"}
    assert isinstance(found.network, Network)
    assert {s.zone_id for s in found.network.subnets} >= {"use1-az4", "use1-az6"}
    assert all(s.internet is True and s.free_addresses > 0 for s in found.network.subnets)
    [image] = found.images
    assert (image.image_id, image.instance_types) == (cloud.image_id, (KIND,))
    assert (KIND, ZONE) in found.offered  # type: ignore[operator]
    assert isinstance(found.ebs_key, EbsKey)
    assert not found.ebs_key.customer
    assert found.denied == ()
    assert [(d.pool.capacity_type.value, d.code) for d in found.dry_runs] == [
        ("spot", "DryRunOperation"),
        ("on-demand", "DryRunOperation"),
    ]


def test_reading_starts_no_machine_and_leaves_no_object(cloud: Cloud) -> None:
    found = facts(cloud)
    assert isinstance(found.bucket, Bucket)
    assert cloud.ec2.describe_instances()["Reservations"] == []
    listed = cloud.clients.client("s3", REGION).list_objects_v2(Bucket=str(found.bucket.name), Prefix=PROBE_PREFIX)
    assert listed["KeyCount"] == 0


def test_named_subnets_are_looked_at_instead(cloud: Cloud) -> None:
    assert [s.subnet_id for s in network(cloud, subnet_ids=(cloud.subnets[ZONE],)).subnets] == [cloud.subnets[ZONE]]
    assert network(cloud, subnet_ids=("subnet-0000000000000000f",)) == Network(None)


def test_a_subnet_s_own_route_table_counts_before_the_main_one(cloud: Cloud) -> None:
    vpc_id = cloud.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"][0]["VpcId"]
    table = cloud.ec2.create_route_table(VpcId=vpc_id)["RouteTable"]["RouteTableId"]
    bound = cloud.ec2.associate_route_table(RouteTableId=table, SubnetId=cloud.subnets[ZONE])["AssociationId"]
    try:
        found = network(cloud)
    finally:
        cloud.ec2.disassociate_route_table(AssociationId=bound)
        cloud.ec2.delete_route_table(RouteTableId=table)
    by_zone = {s.zone_id: s for s in found.subnets}
    assert (by_zone[ZONE].internet, by_zone[ZONE].way_out, by_zone[ZONE].route_table_id) == (False, False, table)
    assert by_zone["use1-az6"].internet is True
    assert str(found.gateway_id).startswith("igw-")


def ebs_key(cloud: Cloud) -> EbsKey:
    found = region(cloud).ebs_key
    assert isinstance(found, EbsKey)
    return found


def test_a_customer_key_and_the_two_ways_to_let_the_spot_role_use_it(planted: Cloud) -> None:
    planted.state.planted.add("kms-without-grant", None)
    key = ebs_key(planted)
    assert (key.customer, key.enabled, key.spot_may_use) == (True, True, False)

    kms = planted.clients.client("kms", REGION)
    before = kms.get_key_policy(KeyId=key.key_id, PolicyName="default")["Policy"]
    allowed = {"Effect": "Allow", "Principal": {"AWS": SPOT_ROLE_ARN}, "Action": ["kms:Decrypt", "kms:CreateGrant"]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**allowed, "Resource": "*"}]})
    kms.put_key_policy(KeyId=key.key_id, PolicyName="default", Policy=policy)
    assert ebs_key(planted).spot_may_use is True
    kms.put_key_policy(KeyId=key.key_id, PolicyName="default", Policy=before)

    kms.create_grant(KeyId=key.key_id, GranteePrincipal=SPOT_ROLE_ARN, Operations=["Decrypt"])
    assert ebs_key(planted).spot_may_use is False  # it could not make the grant that EC2 needs
    kms.create_grant(KeyId=key.key_id, GranteePrincipal=SPOT_ROLE_ARN, Operations=["Decrypt", "CreateGrant"])
    assert ebs_key(planted).spot_may_use is True


def test_a_skewed_clock_is_seen_though_aws_refuses_the_call(planted: Cloud) -> None:
    planted.state.planted.add("clock-skew", None)
    found = facts(planted)
    assert isinstance(found.caller, Unread)
    assert found.caller.why is Why.SKEWED
    assert found.ahead_s is not None
    assert abs(abs(found.ahead_s) - SKEW_S) < 60
    assert (found.bucket, found.regions) == (None, ())


def test_denied_reads_are_facts(planted: Cloud) -> None:
    planted.state.planted.add("denied-describe", None)
    found = region(planted)
    assert isinstance(found.network, Unread)
    assert (found.network.why, found.network.action) == (Why.DENIED, "ec2:DescribeSubnets")
    assert [d.action for d in found.denied] == ["ec2:DescribeInstances", "ec2:DescribeSpotInstanceRequests"]
    assert found.dry_runs == ()


def test_a_dry_run_says_what_is_denied(planted: Cloud) -> None:
    planted.state.planted.add("denied-pass-role", None)
    tried = region(planted).dry_runs[0]
    assert (tried.code, tried.action) == ("UnauthorizedOperation", "iam:PassRole")
    assert str(tried.resource).endswith(":role/cloudtrain-machine")


def test_egress_is_a_connection_that_opens(cloud: Cloud) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = ("127.0.0.1", server.getsockname()[1])
        shut = facts(cloud, egress=address).egress
        server.listen()
        opened = facts(cloud, egress=address).egress
    assert shut is not None
    assert shut.error == "could not be reached (Connection refused)"
    assert opened is not None
    assert (opened.address, opened.error) == (f"127.0.0.1:{address[1]}", None)
