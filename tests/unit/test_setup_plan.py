from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.account.policies import bucket_policy, read_policy
from cloudtrain.provisioner.account.setup_plan import (
    LIFECYCLE_ID,
    Place,
    added_reads,
    bucket_names,
    covers,
    is_ours,
    joined_policy,
    joined_rules,
    lifecycle_rule,
    partition_of,
    place,
    region_of,
    wanted,
)
from cloudtrain.provisioner.errors import UsageError

ACCOUNT = "123456789012"
IT = wanted(ACCOUNT, "us-east-1", "AIDAEXAMPLE", reads=["s3://data/train"])
OTHERS = st.lists(
    st.fixed_dictionaries({"Sid": st.text("abc", min_size=1, max_size=3), "Effect": st.just("Deny")}),
    max_size=3,
    unique_by=lambda statement: statement["Sid"],
)


def test_the_account_regional_name_comes_first_where_it_is_offered() -> None:
    both = (f"cloudtrain-{ACCOUNT}-eu-west-1-an", f"cloudtrain-{ACCOUNT}-eu-west-1")
    assert bucket_names(ACCOUNT, "eu-west-1") == both
    assert bucket_names(ACCOUNT, "me-south-1") == (f"cloudtrain-{ACCOUNT}-me-south-1",)
    assert all(len(name) <= 63 for name in bucket_names(ACCOUNT, "us-isob-northwest-1"))


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("us-east-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("eusc-de-east-1", "aws-eusc"),
        ("eu-central-1", "aws"),
    ],
)
def test_every_arn_is_of_the_regions_partition(region: str, partition: str) -> None:
    assert partition_of(region) == partition
    it = wanted(ACCOUNT, region, "AIDAEXAMPLE")
    assert it.arn("s3", it.bucket) == f"arn:{partition}:s3:::cloudtrain-{ACCOUNT}-{region}-an"
    assert it.arn("iam", "role/x") == f"arn:{partition}:iam::{ACCOUNT}:role/x"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s3://data", Place("data")),
        ("s3://data/", Place("data")),
        ("s3://data/a/b", Place("data", "a/b")),
        ("s3://data/a/", Place("data", "a/")),
        ("s3://data/a/*", Place("data", "a/")),
    ],
)
def test_a_place_is_a_bucket_and_a_prefix(text: str, found: Place) -> None:
    assert place(text) == found


@pytest.mark.parametrize(
    "text", ["data", "s3://", "s3://Data", "https://data", "s3://data/a?b", "s3://data/${aws:userid}", "s3://data/*/x"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--read .*: "):
        place(text)


@pytest.mark.parametrize(("account", "region"), [("12", "us-east-1"), (ACCOUNT, "use1-az4"), (ACCOUNT, "us-east")])
def test_an_account_and_a_region_are_checked(account: str, region: str) -> None:
    with pytest.raises(UsageError, match=r"--(account|region)"):
        wanted(account, region, "AIDAEXAMPLE")


def test_the_mark_is_ours_alone() -> None:
    assert is_ours(IT.tags)
    assert not is_ours({}) and not is_ours({"cloudtrain:made-by": "cloudformation"})
    assert wanted(ACCOUNT, "us-east-1", "AROA:a,b").tags["cloudtrain:owner"] == "AROA:a_b"


def test_the_roles_policies_say_their_region() -> None:
    assert region_of(IT.role_policy) == "us-east-1"
    assert [region_of(name) for name in ("cloudtrain-read", "cloudtrain-ssm", "us-east-1")] == [None, None, None]


@given(OTHERS)
def test_joining_a_policy_keeps_the_others_and_ends(others: list[dict[str, Any]]) -> None:
    ours = bucket_policy(IT)
    joined = joined_policy({"Version": "2008-10-17", "Id": "x", "Statement": others}, ours)
    assert joined is not None
    assert joined["Statement"] == [*others, *ours["Statement"]]
    assert joined["Id"] == "x"
    assert joined_policy(joined, ours) is None


def test_a_statement_of_ours_that_was_changed_is_put_right() -> None:
    ours = bucket_policy(IT)
    changed = copy.deepcopy(ours)
    changed["Statement"][0]["Condition"] = {}
    assert joined_policy(changed, ours) == ours
    assert joined_policy(None, ours) == ours


def test_what_aws_hands_back_in_another_form_is_the_same() -> None:
    ours = bucket_policy(IT)
    back = copy.deepcopy(ours)
    back["Statement"].reverse()
    for statement in back["Statement"]:
        statement["Resource"] = (
            list(reversed(statement["Resource"])) if len(statement["Resource"]) == 2 else [statement["Resource"]]
        )
        statement["Action"] = [statement["Action"]]
    assert joined_policy(back, ours) is None


@given(
    st.lists(st.sampled_from(["s3://one", "s3://two/x", "s3://three/y/"]), max_size=4),
    st.sampled_from(["s3://one", "s3://four"]),
)
def test_reads_only_grow(before: list[str], more: str) -> None:
    then = read_policy(wanted(ACCOUNT, "us-east-1", "A", reads=before))
    new = read_policy(wanted(ACCOUNT, "us-east-1", "A", reads=[more]))
    after = added_reads(then, new)
    assert (after is None) == (more in before)
    assert covers(after or then, then) and covers(after or then, new)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ([], []),
        ([{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": "a"}}], ["x"]),
        ([{**lifecycle_rule(), "ID": "x", "Status": "Disabled"}], ["x"]),
        ([{**lifecycle_rule(), "ID": "x", "Filter": {"Prefix": "a"}}], ["x"]),
        ([{**lifecycle_rule(), "Status": "Disabled"}], []),
    ],
)
def test_our_rule_joins_the_others(rules: list[dict[str, Any]], kept: list[str]) -> None:
    joined = joined_rules(rules)
    assert joined is not None
    assert [rule["ID"] for rule in joined] == [*kept, LIFECYCLE_ID]
    assert joined_rules(joined) is None


@pytest.mark.parametrize(
    "rule",
    [
        {**lifecycle_rule(), "ID": "theirs"},
        {"Status": "Enabled", "Prefix": "", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
        {**lifecycle_rule(), "Filter": {}},
    ],
)
def test_a_rule_of_theirs_that_does_the_same_serves(rule: dict[str, Any]) -> None:
    assert joined_rules([rule]) is None
