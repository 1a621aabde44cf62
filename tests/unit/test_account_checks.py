"""The checks of an account, each both ways: what is said of a sound one, and of one where one fact is otherwise."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.account.account_checks import CHECKS, allows, check
from cloudtrain.provisioner.account.facts import (
    Bucket,
    DryRun,
    Egress,
    Identity,
    Level,
    MachineRole,
    SpotRole,
    Unread,
    Why,
)
from cloudtrain.provisioner.spec import AwsOptions

from .account_world import (
    ACCOUNT,
    BUCKET,
    DENIED,
    FACTS,
    NOW,
    REGION_FACTS,
    RIGHTS,
    WANTS,
    account,
    findings,
    offering,
    troubles,
)

PROXIED = replace(WANTS, options=AwsOptions(ssh_proxy="me@bastion"))


def test_a_sound_account_has_no_trouble_and_every_check_speaks() -> None:
    assert troubles() == []
    spoke = {finding.check for finding in check(FACTS, WANTS)}
    assert {row.name for row in CHECKS} - spoke == {"expiry", "address", "dry-run"}  # not asked, or no news


def test_every_check_is_in_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    table = set(re.findall(r"^\| ([a-z-]+) \|", text, re.MULTILINE)) - {"check", "family"}
    assert table == {row.name for row in CHECKS} | {"route"}


def test_every_trouble_says_where_what_and_how_to_mend_it_in_one_line() -> None:
    """With nothing readable at all: each fact denied."""
    nothing = replace(REGION_FACTS, opt_in=DENIED, quotas=(("L-3819A6DF", DENIED),), ebs_key=DENIED, network=DENIED)
    nothing = replace(nothing, offered=DENIED, denied=(DENIED,))
    blind = replace(FACTS, role=DENIED, spot_role=DENIED, bucket=DENIED, regions=(nothing,), address=DENIED)
    found = troubles(blind)
    assert {f.check for f in found} >= {
        "role",
        "spot-role",
        "bucket",
        "region",
        "quota",
        "network",
        "offered",
        "rights",
    }
    for finding in found:
        assert finding.where
        assert finding.what
        assert finding.fix
        assert "\n" not in finding.what + finding.fix


@pytest.mark.parametrize(
    ("why", "what", "fix"),
    [
        (Why.NO_CREDENTIALS, "there are no AWS credentials", "`aws configure sso`"),
        (Why.EXPIRED, "have expired", "`aws sso login`"),
        (Why.INVALID, "does not know these credentials", "`aws sts get-caller-identity`"),
        (Why.SKEWED, "refuses this computer's time", "`timedatectl set-ntp true`"),
        (Why.UNREACHABLE, "sts:GetCallerIdentity failed", "check the network"),
    ],
)
def test_without_credentials_nothing_else_is_said(why: Why, what: str, fix: str) -> None:
    facts = replace(FACTS, caller=Unread(why, "sts:GetCallerIdentity", "in AWS's words"), bucket=None, regions=())
    [finding] = troubles(facts)
    assert (finding.check, finding.level, finding.pools) == ("credentials", Level.FAIL, ())
    assert what in finding.what
    assert "in AWS's words" in finding.what
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("left_s", "max_run_s", "level"),
    [
        (-1, None, Level.FAIL),
        (3599, None, Level.WARN),
        (3600, None, Level.OK),
        (36_000, 36_001, Level.WARN),
        (36_000, 36_000, Level.OK),
    ],
)
def test_credentials_should_last_an_hour_and_as_long_as_the_job(
    left_s: float, max_run_s: float | None, level: Level
) -> None:
    caller = Identity(ACCOUNT, "arn", "AIDA1", NOW + left_s)
    finding = account("expiry", replace(WANTS, max_run_s=max_run_s), caller=caller)
    assert finding.level is level
    if level is Level.WARN:
        assert "not recovered" in finding.what
        assert "2027-01-15" in finding.what  # the day of NOW


def test_credentials_without_an_end_need_no_word() -> None:
    assert findings("expiry") == []


@pytest.mark.parametrize(
    ("ahead_s", "level"),
    [(30, Level.OK), (-31, Level.WARN), (300, Level.WARN), (301, Level.FAIL), (-1200, Level.FAIL)],
)
def test_the_clock(ahead_s: float, level: Level) -> None:
    finding = account("clock", ahead_s=float(ahead_s))
    assert finding.level is level
    if level is not Level.OK:
        assert f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'} AWS's" in finding.what


def test_ssh_that_does_not_get_out_fails_unless_another_way_is_named() -> None:
    shut = Egress("ssh.example:22", "did not answer within 3 s")
    direct, proxied = account("ssh-egress", egress=shut), account("ssh-egress", PROXIED, egress=shut)
    assert (direct.level, proxied.level) == (Level.FAIL, Level.WARN)
    assert "ssh.example:22 did not answer within 3 s" in direct.what
    assert "resources.aws.ssh_proxy" in direct.fix
    assert account("ssh-egress").level is Level.OK


def test_an_address_that_is_not_known_fails_unless_another_way_is_named() -> None:
    unknown = Unread(Why.UNREACHABLE, "https://checkip.amazonaws.com", "no answer in time")
    assert account("address", address=unknown).level is Level.FAIL
    assert account("address", PROXIED, address=unknown).level is Level.WARN
    assert findings("address", replace(FACTS, address="203.0.113.7")) == []


@pytest.mark.parametrize("proxy", ["ssm", "instance-connect"])
def test_ways_in_by_https_need_neither_ssh_outwards_nor_an_address(proxy: str) -> None:
    wants = replace(WANTS, options=AwsOptions(ssh_proxy=proxy))
    unknown = Unread(Why.UNREACHABLE, "https://checkip.amazonaws.com", "no answer in time")
    assert troubles(replace(FACTS, egress=Egress("ssh.example:22", "refused"), address=unknown), wants) == []


# ---- the role


@pytest.mark.parametrize(
    ("role", "what"),
    [
        (MachineRole("cloudtrain-machine", False), "there is no instance profile cloudtrain-machine"),
        (MachineRole("cloudtrain-machine", True), "holds no role"),
        (
            MachineRole("cloudtrain-machine", True, "cloudtrain-machine"),
            "may not s3:GetObject, s3:PutObject, s3:ListBucket",
        ),
    ],
)
def test_a_role_that_is_not_whole_is_mended_by_setup(role: MachineRole, what: str) -> None:
    finding = account("role", role=role)
    assert (finding.level, finding.pools) == (Level.FAIL, ())
    assert what in finding.what
    assert "`cloudtrain setup --region us-east-1`" in finding.fix
    assert "`cloudtrain setup --print cloudformation`" in finding.fix


def test_a_profile_of_one_s_own_is_not_ours_to_make() -> None:
    wants = replace(WANTS, options=AwsOptions(iam_instance_profile="theirs"))
    finding = account("role", wants, role=MachineRole("theirs", False))
    assert "cloudtrain setup" not in finding.fix
    assert "resources.aws.iam_instance_profile" in finding.fix


def test_policies_that_may_not_be_read_are_no_failure() -> None:
    finding = account("role", role=MachineRole("cloudtrain-machine", True, "cloudtrain-machine", DENIED))
    assert finding.level is Level.WARN
    assert "could not be checked" in finding.what


def statement(effect: str, action: str, resource: str, **more: object) -> dict[str, object]:
    return {"Effect": effect, "Action": action, "Resource": resource, **more}


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([statement("Allow", "s3:GetObject", "arn:aws:s3:::b/jobs/*")], True),
        ([statement("Allow", "S3:get*", "*")], True),
        ([statement("Allow", "s3:GetObject", "arn:aws:s3:::b/JOBS/*")], False),
        ([statement("Allow", "s3:PutObject", "*")], False),
        ([statement("Allow", "*", "*"), statement("Deny", "s3:*", "arn:aws:s3:::b/*")], False),
        (
            [
                statement("Allow", "*", "*"),
                statement("Deny", "s3:*", "*", Condition={"Bool": {"aws:SecureTransport": "false"}}),
            ],
            True,
        ),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], True),
        ([{"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}], False),
        ([{"Effect": "Allow", "Action": "s3:GetObject", "NotResource": "arn:aws:s3:::b/jobs/*"}], False),
        ([], False),
    ],
)
def test_what_policies_allow(statements: list[dict[str, object]], allowed: bool) -> None:
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    assert allows([document], "s3:GetObject", "arn:aws:s3:::b/jobs/j/key") is allowed


def test_several_policies_count_together_and_one_statement_needs_no_list() -> None:
    one = json.dumps({"Statement": statement("Allow", "s3:GetObject", "*")})
    assert allows([one, RIGHTS], "s3:GetObject", "arn:aws:s3:::elsewhere/key")
    assert allows([one, RIGHTS], "s3:ListBucket", f"arn:aws:s3:::{BUCKET}")
    assert not allows([one], "s3:ListBucket", f"arn:aws:s3:::{BUCKET}")


# ---- the bucket


def test_a_bucket_that_is_missing_is_made_by_setup() -> None:
    finding = account("bucket", bucket=Bucket(None, (BUCKET, "other"), "us-east-1"))
    assert (finding.level, finding.what) == (Level.FAIL, f"there is no bucket {BUCKET}")
    assert "`cloudtrain setup --region us-east-1`" in finding.fix


def test_a_bucket_that_the_configuration_names_is_not_ours_to_make() -> None:
    finding = account("bucket", replace(WANTS, bucket="named"), bucket=Bucket(None, ("named",), "us-east-1"))
    assert "`cloudtrain config unset bucket`" in finding.fix


def test_on_the_embedded_cloud_the_fix_is_its_own_setup() -> None:
    finding = account("bucket", cloud="local", bucket=Bucket(None, (BUCKET,), "us-east-1"))
    assert finding.fix == "`cloudtrain setup --cloud local`"


def test_a_bucket_that_may_not_be_used() -> None:
    finding = account("bucket", bucket=Bucket(BUCKET, (BUCKET,), "us-east-1", denied=DENIED))
    assert finding.level is Level.FAIL
    assert "another account owns it" in finding.what


def test_a_probe_object_that_can_t_be_written_fails() -> None:
    probe = Unread(Why.DENIED, "s3:PutObject", "AccessDenied: no")
    finding = account("bucket", bucket=Bucket(BUCKET, (BUCKET,), "us-east-1", region="us-east-1", probe=probe))
    assert finding.level is Level.FAIL
    assert finding.what.startswith("s3:PutObject of control/doctor/ failed")


def test_a_bucket_in_another_region_costs_transfer() -> None:
    found = findings("bucket", replace(FACTS, bucket=Bucket(BUCKET, (BUCKET,), "us-east-1", region="eu-west-1")))
    [warning] = [f for f in found if f.level is Level.WARN]
    assert "it lies in eu-west-1, not in us-east-1" in warning.what


def test_public_access_that_is_not_blocked_is_a_warning_with_the_whole_command() -> None:
    bucket = Bucket(BUCKET, (BUCKET,), "us-east-1", region="us-east-1", public_access_blocked=False)
    [warning] = [f for f in findings("bucket", replace(FACTS, bucket=bucket)) if f.level is Level.WARN]
    assert f"`aws s3api put-public-access-block --region us-east-1 --bucket {BUCKET} " in warning.fix
    assert "RestrictPublicBuckets=true`" in warning.fix


# ---- the spot role


@pytest.mark.parametrize(
    ("can_be_made", "level"), [(True, Level.WARN), (False, Level.FAIL), (None, Level.WARN)], ids=str
)
def test_a_missing_spot_role_is_a_failure_unless_ec2_may_make_it(can_be_made: bool | None, level: Level) -> None:
    finding = account("spot-role", spot_role=SpotRole(False, can_be_made))
    assert finding.level is level
    assert finding.pools == (WANTS.spot_pools if level is Level.FAIL else ())
    assert "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`" in finding.fix


def test_what_ec2_says_of_the_spot_role_counts_more_than_a_simulation() -> None:
    tried = DryRun(WANTS.spot_pools[0], "AuthFailure.ServiceLinkedRoleCreationNotPermitted", "no")
    regions = (replace(REGION_FACTS, dry_runs=(tried,)),)
    [finding] = troubles(replace(FACTS, spot_role=SpotRole(False, True), regions=regions))
    assert (finding.check, finding.level) == ("spot-role", Level.FAIL)


def test_on_demand_machines_need_no_spot_role() -> None:
    wants = replace(WANTS, offerings=(offering(spot=False),))
    assert findings("spot-role", replace(FACTS, spot_role=SpotRole(False, False)), wants) == []
