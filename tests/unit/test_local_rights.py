"""The evaluation of IAM policies: what is allowed, what is denied, and what conditions do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.localcloud.rights import Asked, verdict

ROLE = "arn:aws:iam::123456789012:role/machine"
OBJECT = "arn:aws:s3:::b/jobs/a/1"


def policy(effect: str = "Allow", action: Any = "s3:GetObject", resource: Any = OBJECT, **more: Any) -> dict[str, Any]:
    return {"Statement": [{"Effect": effect, "Action": action, "Resource": resource, **more}]}


def ask(action: str = "s3:GetObject", resource: str = OBJECT, **context: str) -> Asked:
    return Asked(action, resource, {name.replace("__", ":"): value for name, value in context.items()})


@pytest.mark.parametrize(
    ("action", "resource", "found"),
    [
        ("s3:GetObject", OBJECT, "allow"),
        ("S3:getobject", OBJECT, "allow"),
        ("s3:Get*", "arn:aws:s3:::b/jobs/*", "allow"),
        (["s3:PutObject", "s3:?etObject"], ["arn:aws:s3:::x", "*"], "allow"),
        ("s3:PutObject", OBJECT, "none"),
        ("s3:GetObject", "arn:aws:s3:::b/control/*", "none"),
        ("s3:GetObject", "arn:aws:s3:::B/jobs/*", "none"),
        ("s3:GetObject", "arn:aws:s3:::b/jobs/[a]/1", "none"),
    ],
)
def test_what_a_statement_allows(action: Any, resource: Any, found: str) -> None:
    assert verdict([policy(action=action, resource=resource)], ask()) == found


def test_nothing_is_allowed_by_no_policy() -> None:
    assert verdict([], ask()) == "none"


@given(st.permutations([policy(), policy("Deny", "s3:*", "*"), policy(action="*", resource="*")]))
def test_an_explicit_deny_wins_wherever_it_stands(policies: list[dict[str, Any]]) -> None:
    assert verdict(policies, ask()) == "deny"


def test_not_action_and_not_resource() -> None:
    statement = {"Effect": "Allow", "NotAction": "s3:Delete*", "NotResource": "arn:aws:s3:::b/control/*"}
    document = {"Statement": statement}
    assert verdict([document], ask()) == "allow"
    assert verdict([document], ask("s3:DeleteObject")) == "none"
    assert verdict([document], ask(resource="arn:aws:s3:::b/control/1")) == "none"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"StringLike": {"s3:prefix": ["jobs/*", "files/*"]}}, True),
        ({"StringLike": {"s3:prefix": "control/*"}}, False),
        ({"StringEquals": {"s3:prefix": "jobs/a/"}}, True),
        ({"StringEquals": {"S3:Prefix": "jobs/a/"}}, True),
        ({"StringEquals": {"s3:prefix": "jobs/*"}}, False),
        ({"StringNotEquals": {"s3:prefix": "jobs/a/"}}, False),
        ({"StringNotEquals": {"s3:prefix": ["x", "y"]}}, True),
        ({"StringEquals": {"s3:prefix": "jobs/a/"}, "Bool": {"aws:SecureTransport": "true"}}, True),
        ({"StringEquals": {"s3:prefix": "jobs/a/"}, "Bool": {"aws:SecureTransport": "false"}}, False),
        ({"NumericLessThan": {"s3:TlsVersion": "1.2"}}, False),
        ({"NumericGreaterThanEquals": {"s3:TlsVersion": "1.2"}}, True),
        ({"NumericLessThanEquals": {"s3:TlsVersion": "1.3"}}, True),
        ({"Null": {"aws:TagKeys": "true"}}, True),
        ({"Null": {"s3:prefix": "true"}}, False),
        ({"StringEquals": {"aws:missing": "x"}}, False),
        ({"StringEqualsIfExists": {"aws:missing": "x"}}, True),
        ({"StringNotEquals": {"aws:missing": "x"}}, True),
        ({"SomethingNew": {"s3:prefix": "jobs/a/"}}, False),
    ],
)
def test_conditions(condition: dict[str, Any], holds: bool) -> None:
    asked = ask(s3__prefix="jobs/a/", aws__securetransport="true", s3__tlsversion="1.3")
    assert verdict([policy(Condition=condition)], asked) == ("allow" if holds else "none")


def test_a_condition_that_is_not_understood_lets_no_deny_slip() -> None:
    condition = {"SomethingNew": {"s3:prefix": "x"}}
    assert verdict([policy(), policy("Deny", Condition=condition)], ask(s3__prefix="x")) == "deny"


@pytest.mark.parametrize(
    ("principal", "meant"),
    [
        ("*", True),
        ({"AWS": "*"}, True),
        ({"AWS": ROLE}, True),
        ({"AWS": ["arn:aws:iam::999999999999:root", "123456789012"]}, True),
        ({"AWS": "arn:aws:iam::123456789012:root"}, True),
        ({"AWS": "arn:aws:iam::123456789012:role/other"}, False),
        ({"Service": "ec2.amazonaws.com"}, False),
    ],
)
def test_whom_a_resource_policy_means(principal: Any, meant: bool) -> None:
    found = verdict([policy("Deny", Principal=principal)], ask(), ROLE)
    assert found == ("deny" if meant else "none")
