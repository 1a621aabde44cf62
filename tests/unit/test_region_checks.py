"""The checks of a region, each both ways, with the pools that are out because of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.provisioner.account.facts import (
    Ami,
    DryRun,
    EbsKey,
    ImageFacts,
    Level,
    MachineRole,
    Network,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.spec import AwsOptions

from .account_world import DENIED, FACTS, REGION_FACTS, WANTS, findings, offering, region, subnet, troubles

POOLS = tuple(o.pool for o in WANTS.offerings)
KEY = "arn:aws:kms:us-east-1:123456789012:key/1"


def with_options(**options: object) -> Wants:
    return replace(WANTS, options=AwsOptions(**options))  # type: ignore[arg-type]


def test_a_region_that_is_off_says_only_that() -> None:
    facts = replace(FACTS, regions=(replace(REGION_FACTS, opt_in="not-opted-in", network=DENIED, offered=DENIED),))
    [finding] = troubles(facts)
    assert (finding.check, finding.level, finding.pools) == ("region", Level.FAIL, POOLS)
    assert "`aws account enable-region --region-name us-east-1`" in finding.fix
    assert region("region", opt_in="opted-in").level is Level.OK


def test_rights_that_a_running_job_needs() -> None:
    finding = region("rights", denied=(DENIED,))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert "ec2:DescribeThings" in finding.what


# ---- quotas


def test_a_quota_of_zero_names_itself_the_need_the_command_and_the_page() -> None:
    finding = region("quota", quotas=(("L-3819A6DF", 0.0),))
    assert (finding.level, finding.where, finding.pools) == (Level.FAIL, "us-east-1", POOLS)
    assert finding.what == "quota 'All G and VT Spot Instance Requests' (L-3819A6DF) is 0 vCPUs, 4 needed"
    assert finding.fix == (
        "`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-3819A6DF"
        " --desired-value 4 --region us-east-1`, or "
        "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF"
    )


def test_a_quota_that_holds_some_types_takes_the_larger_ones_out() -> None:
    small, large = offering(), offering(kind="g4dn.12xlarge", vcpus=48)
    wants = Wants((small, large))
    finding = region("quota", wants, quotas=(("L-3819A6DF", 16.0),))
    assert (finding.level, finding.pools) == (Level.WARN, (large.pool,))
    assert "too few for g4dn.12xlarge" in finding.what
    assert "--desired-value 48" in finding.fix


def test_a_quota_just_large_enough_is_well() -> None:
    assert region("quota", quotas=(("L-3819A6DF", 4.0),)).level is Level.OK


def test_each_market_has_its_quota() -> None:
    wants = Wants((offering(), offering(spot=False)))
    regions = (replace(REGION_FACTS, quotas=(("L-3819A6DF", 0.0), ("L-DB2E81BA", 64.0))),)
    levels = [f.level for f in findings("quota", replace(FACTS, regions=regions), wants)]
    assert levels == [Level.FAIL, Level.OK]


def test_a_type_whose_quota_is_not_documented_is_said() -> None:
    finding = region("quota", Wants((offering(kind="p6-b200.48xlarge"),)))
    assert (finding.level, finding.pools) == (Level.WARN, ())
    assert "p6-b200.48xlarge spot" in finding.what


@pytest.mark.parametrize("why", [Why.DENIED, Why.UNREACHABLE])
def test_a_quota_that_can_t_be_read_takes_nothing_out(why: Why) -> None:
    unread = Unread(why, "servicequotas:GetServiceQuota", "words")
    finding = region("quota", quotas=(("L-3819A6DF", unread),))
    assert (finding.level, finding.pools) == (Level.WARN, ())


# ---- the network


def test_without_a_default_vpc_the_whole_region_is_out() -> None:
    finding = region("network", network=Network(None))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert "`aws ec2 create-default-vpc --region us-east-1`" in finding.fix


def test_named_subnets_of_another_region() -> None:
    finding = region("network", with_options(subnet_ids=("subnet-9",)), network=Network(None))
    assert finding.what == "none of subnet-9 lies in us-east-1"


def test_zones_without_a_subnet_are_out_alone() -> None:
    network = Network("vpc-1", (subnet("use1-az4"),))
    found = findings("network", replace(FACTS, regions=(replace(REGION_FACTS, network=network),)))
    [failure] = [f for f in found if f.level is Level.FAIL]
    assert failure.pools == (POOLS[1],)
    assert failure.fix == "`aws ec2 create-default-subnet --region us-east-1 --availability-zone-id use1-az6`"
    [well] = [f for f in found if f.level is Level.OK]
    assert "use1-az4" in well.what


def test_several_zones_without_a_subnet_are_one_finding() -> None:
    finding = region("network", network=Network("vpc-1", ()))
    assert finding.what == "there is no default subnet in use1-az4, use1-az6"
    assert finding.fix.endswith("--availability-zone-id use1-az4`, and the same for use1-az6")


def test_named_subnets_that_leave_a_zone_out_are_no_failure() -> None:
    network = Network("vpc-1", (subnet("use1-az4"),))
    facts = replace(FACTS, regions=(replace(REGION_FACTS, network=network),))
    [warning] = troubles(facts, with_options(subnet_ids=("subnet-4",)))
    assert (warning.level, warning.pools) == (Level.WARN, (POOLS[1],))


def test_a_full_subnet_takes_its_zone_out_and_of_two_the_emptier_counts() -> None:
    full = subnet("use1-az4", free_addresses=0)
    network = Network("vpc-1", (full, subnet("use1-az6", free_addresses=0, subnet_id="subnet-x"), subnet("use1-az6")))
    [finding] = troubles(replace(FACTS, regions=(replace(REGION_FACTS, network=network),)))
    assert finding.what == "subnet subnet-4 of use1-az4 has no free address"
    assert finding.pools == (POOLS[0],)


def test_one_route_mends_all_subnets_of_a_table() -> None:
    lost = tuple(subnet(zone, internet=False) for zone in ("use1-az4", "use1-az6"))
    finding = region("route", network=Network("vpc-1", lost, "igw-1"))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.fix == (
        "`aws ec2 create-route --region us-east-1 --route-table-id rtb-1 --destination-cidr-block 0.0.0.0/0"
        " --gateway-id igw-1`"
    )


def test_without_a_gateway_one_is_made_first() -> None:
    finding = region("route", network=Network("vpc-1", (subnet("use1-az4", internet=False), subnet("use1-az6"))))
    assert finding.pools == (POOLS[0],)
    assert finding.fix.startswith("`aws ec2 create-internet-gateway --region us-east-1`")


def test_machines_without_a_public_address_need_another_way_out() -> None:
    private = with_options(public_ip=False, ssh_proxy="ssm")
    nat = tuple(subnet(z, internet=False, way_out=True) for z in ("use1-az4", "use1-az6"))
    facts = replace(FACTS, regions=(replace(REGION_FACTS, network=Network("vpc-1", nat)),))
    assert troubles(facts, private) == []
    none = tuple(replace(s, way_out=False) for s in nat)
    [warning] = troubles(replace(FACTS, regions=(replace(REGION_FACTS, network=Network("vpc-1", none)),)), private)
    assert (warning.level, warning.pools) == (Level.WARN, ())
    assert "com.amazonaws.us-east-1.s3 --route-table-ids rtb-1`" in warning.fix


# ---- images and offers


def image(**changes: object) -> tuple[ImageFacts, ...]:
    return (replace(REGION_FACTS.images[0], **changes),)  # type: ignore[arg-type]


def test_an_image_parameter_that_is_gone() -> None:
    finding = region("image", images=image(image_id=None, ami=None))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.fix.startswith(
        "`aws ssm get-parameters-by-path --recursive --region us-east-1 --path /aws/service/x`"
    )


@pytest.mark.parametrize(
    ("ami", "what"),
    [(None, "image ami-1 does not exist"), (Ami("x86_64", "/dev/sda1", 75, "failed"), "image ami-1 is failed")],
)
def test_an_image_that_is_gone_or_not_ready(ami: Ami | None, what: str) -> None:
    finding = region("image", images=image(ami=ami))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.what.startswith(what)


def test_an_image_for_other_machines() -> None:
    finding = region("image", images=image(ami=Ami("arm64", "/dev/sda1", 75)))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.what == "image ami-1 is for arm64, not for g4dn.xlarge (x86_64)"


def test_an_image_whose_login_user_nobody_knows() -> None:
    finding = region("image", images=image(ami=Ami("x86_64", "/dev/sda1", 75, user_told=False)))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert "does not tell who logs in" in finding.what
    assert "resources.aws.ssh_user" in finding.fix


def test_a_disk_smaller_than_the_image_s_becomes_as_large() -> None:
    regions = (replace(REGION_FACTS, images=image(ami=Ami("x86_64", "/dev/sda1", 120))),)
    [warning] = troubles(replace(FACTS, regions=regions), replace(WANTS, disk_gib=100))
    assert (warning.level, warning.pools) == (Level.WARN, ())
    assert "needs 120 GiB, more than disk_size 100" in warning.what


def test_a_type_that_no_zone_offers_fails_and_one_that_some_do_loses_the_others() -> None:
    assert region("offered", offered=frozenset()).level is Level.FAIL
    regions = (replace(REGION_FACTS, offered=frozenset({("g4dn.xlarge", "use1-az4")})),)
    [warning] = troubles(replace(FACTS, regions=regions))
    assert (warning.level, warning.pools) == (Level.WARN, (POOLS[1],))
    assert warning.what == "g4dn.xlarge is not offered in use1-az6"


# ---- the key of volumes


def test_a_customer_key_needs_a_grant_for_spot_and_none_for_on_demand() -> None:
    locked = EbsKey(KEY, customer=True, spot_may_use=False)
    finding = region("volume-key", ebs_key=locked)
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.fix == (
        f"`aws kms create-grant --region us-east-1 --key-id {KEY} --grantee-principal "
        "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot --operations "
        "Decrypt Encrypt GenerateDataKey GenerateDataKeyWithoutPlaintext CreateGrant DescribeKey ReEncryptFrom "
        "ReEncryptTo`"
    )
    assert region("volume-key", Wants((offering(spot=False),)), ebs_key=locked).level is Level.OK
    assert region("volume-key", ebs_key=replace(locked, spot_may_use=True)).level is Level.OK
    assert region("volume-key", ebs_key=replace(locked, spot_may_use=DENIED)).level is Level.WARN


def test_a_disabled_key_takes_the_region_out() -> None:
    finding = region("volume-key", ebs_key=EbsKey(KEY, customer=True, enabled=False, spot_may_use=False))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert f"`aws kms enable-key --region us-east-1 --key-id {KEY}`" in finding.fix


def test_a_key_that_the_job_names_must_be_the_regions_own() -> None:
    finding = region("volume-key", ebs_key=EbsKey("alias/training", customer=True, named=True, there=False))
    assert (finding.level, finding.pools) == (Level.FAIL, POOLS)
    assert finding.what == "resources.aws.kms_key alias/training is not a key of us-east-1"
    assert "leave the region out of infra" in finding.fix
    fine = region("volume-key", ebs_key=EbsKey(KEY, customer=True, named=True))
    assert (fine.level, "by default" in fine.what) == (Level.OK, False)
    off = region("volume-key", ebs_key=EbsKey(KEY, customer=True, named=True, enabled=False))
    assert "reset-ebs-default-kms-key-id" not in off.fix


# ---- the dry run


def test_a_dry_run_that_ec2_would_carry_out_is_well() -> None:
    assert region("dry-run", dry_runs=(DryRun(POOLS[0], "DryRunOperation", ""),)).level is Level.OK


def test_a_denied_action_is_named_once_for_both_markets() -> None:
    wants = Wants((offering(), offering(spot=False)))
    tried = tuple(
        DryRun(o.pool, "UnauthorizedOperation", "words", "iam:PassRole", "arn:aws:iam::1:role/r")
        for o in wants.offerings
    )
    finding = region("dry-run", wants, dry_runs=tried)
    assert (finding.level, finding.pools) == (Level.FAIL, tuple(o.pool for o in wants.offerings))
    assert finding.what.startswith("you have no permission for iam:PassRole on arn:aws:iam::1:role/r")


def test_an_unnamed_denial_is_one_of_run_instances() -> None:
    finding = region("dry-run", dry_runs=(DryRun(POOLS[0], "UnauthorizedOperation", "encoded"),))
    assert "ec2:RunInstances" in finding.what


def test_a_profile_that_ec2_does_not_know_yet_keeps_no_launch_back() -> None:
    words = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    regions = (replace(REGION_FACTS, dry_runs=(DryRun(POOLS[0], "InvalidParameterValue", words),)),)
    [finding] = troubles(replace(FACTS, regions=regions))
    assert (finding.check, finding.level, finding.pools) == ("dry-run", Level.WARN, ())
    missing = MachineRole("cloudtrain-machine", profile_exists=False)
    assert [f.check for f in troubles(replace(FACTS, regions=regions, role=missing))] == ["role"]


def test_an_account_on_the_free_plan_is_told_to_upgrade_it() -> None:
    words = "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run …"
    finding = region("dry-run", dry_runs=(DryRun(POOLS[0], "InvalidParameterCombination", words),))
    assert finding.level is Level.FAIL and finding.fix is not None and "upgrade the plan" in finding.fix


def test_a_refusal_that_another_check_explains_is_not_said_twice() -> None:
    refused = DryRun(POOLS[0], "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    finding = region("dry-run", dry_runs=(refused,))
    assert (finding.level, finding.pools) == (Level.FAIL, (POOLS[0],))
    regions = (replace(REGION_FACTS, dry_runs=(refused,), quotas=(("L-3819A6DF", 0.0),)),)
    assert [f.check for f in troubles(replace(FACTS, regions=regions))] == ["quota"]
