"""What a launch makes of the findings: what is left of the plan, what refuses it, and how far is looked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.account.facts import AccountFacts, Finding, Level, Unread, Wants, Why
from cloudtrain.provisioner.account.findings import fail, ok, warn
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.cli import account
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import preflight
from cloudtrain.provisioner.launch.access import Access
from cloudtrain.provisioner.launch.preflight import Ground, Verdict, judge, sift

from .account_world import BUCKET, FACTS, offering

A, B, C, D = (offering(zone) for zone in ("use1-az4", "use2-az1", "euw1-az1", "usw2-az1"))
GROUND = Ground(Clients("aws"), "us-east-1")
FOUND = "found by a call of its own"


def test_only_named_pools_are_taken_out() -> None:
    verdict = sift((A, B), [ok("x", "here", "well"), fail("quota", "us-east-1", "0 vCPUs", "ask", (A.pool,))])
    assert verdict.offerings == (B,)
    assert [f.check for f in verdict.findings] == ["quota"]
    assert verdict.refusals == ()


def test_a_failure_of_the_account_refuses_whatever_is_left() -> None:
    verdict = sift(
        (A, B), [fail("bucket", "account", "none", "setup"), fail("quota", "us-east-1", "0", "ask", (A.pool,))]
    )
    assert [f.check for f in verdict.refusals] == ["bucket"]


def test_where_nothing_is_left_all_that_took_a_pool_refuses() -> None:
    found = [
        warn("offered", "us-east-1", "not there", "elsewhere", (A.pool,)),
        fail("quota", "us-east-2", "0", "ask", (B.pool,)),
        warn("clock", "account", "off", "set it"),
    ]
    assert [f.check for f in sift((A, B), found).refusals] == ["offered", "quota"]


def test_warnings_alone_refuse_nothing() -> None:
    verdict = sift((A,), [warn("clock", "account", "off", "set it")])
    assert (verdict.offerings, verdict.refusals) == ((A,), ())
    assert [f.level for f in verdict.findings] == [Level.WARN]


class Examined:
    """Findings by region, and which regions were asked for."""

    def __init__(self, bad: Sequence[str], account: Sequence[Finding] = ()) -> None:
        self.bad = bad
        self.account = account
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, ground: Ground, wants: Wants) -> tuple[AccountFacts, tuple[Finding, ...]]:
        self.asked.append(wants.regions)
        out = [fail("quota", region, "0", "ask", wants.pools(region)) for region in wants.regions if region in self.bad]
        return FACTS, (*self.account, *out)


@pytest.fixture
def wants() -> Wants:
    return Wants((A, B, C, D))


def examined(monkeypatch: pytest.MonkeyPatch, bad: Sequence[str], account: Sequence[Finding] = ()) -> Examined:
    found = Examined(bad, account)
    monkeypatch.setattr(preflight, "examine", found)
    return found


def test_two_regions_are_looked_at_and_later_pools_stay(monkeypatch: pytest.MonkeyPatch, wants: Wants) -> None:
    look = examined(monkeypatch, ["us-east-2", "us-west-2"])
    assert judge(GROUND, wants).offerings == (A, C, D)
    assert look.asked == [("us-east-1", "us-east-2")]


def test_the_order_of_the_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    another = offering("use1-az6")
    examined(monkeypatch, ["us-east-2"])
    assert judge(GROUND, Wants((A, B, C, another))).offerings == (A, C, another)


def test_all_regions_are_looked_at_where_the_first_give_nothing(monkeypatch: pytest.MonkeyPatch, wants: Wants) -> None:
    note = warn("clock", "account", "off", "set it")
    look = examined(monkeypatch, ["us-east-1", "us-east-2", "eu-west-1"], [note])
    verdict = judge(GROUND, wants)
    assert look.asked == [("us-east-1", "us-east-2"), ("eu-west-1", "us-west-2")]
    assert (verdict.offerings, verdict.refusals) == ((D,), ())
    assert [f.check for f in verdict.findings].count("clock") == 1


def test_nothing_anywhere_refuses(monkeypatch: pytest.MonkeyPatch, wants: Wants) -> None:
    examined(monkeypatch, ["us-east-1", "us-east-2", "eu-west-1", "us-west-2"])
    verdict = judge(GROUND, wants)
    assert verdict.offerings == ()
    assert [f.where for f in verdict.refusals] == ["us-east-1", "us-east-2", "eu-west-1", "us-west-2"]


def test_a_failure_of_the_account_ends_the_looking(monkeypatch: pytest.MonkeyPatch, wants: Wants) -> None:
    look = examined(monkeypatch, ["us-east-1", "us-east-2", "eu-west-1"], [fail("bucket", "account", "none", "setup")])
    assert [f.check for f in judge(GROUND, wants).refusals] == ["bucket"]
    assert len(look.asked) == 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, home: Path) -> Callable[[AccountFacts], object]:
    """Opens an account of such facts."""
    monkeypatch.setattr(account, "ground", lambda cloud, home: GROUND)
    monkeypatch.setattr(account, "enter", lambda cloud, home, region: FOUND)
    monkeypatch.setattr(account, "open_bucket", lambda entry, bucket: entry)

    def opened(facts: AccountFacts) -> object:
        monkeypatch.setattr(account, "judge", lambda ground, wants: Verdict((A,), (), facts))
        return account.open_checked("aws", Home.from_env(), Wants((A,)))[1]

    return opened


def test_what_the_checks_learnt_is_not_asked_again(opened: Callable[[AccountFacts], object]) -> None:
    access = opened(FACTS)
    assert isinstance(access, Access)
    assert (access.bucket, access.entry.region, access.entry.identity) == (BUCKET, "us-east-1", FACTS.caller)


def test_a_bucket_that_did_not_answer_is_asked_again(opened: Callable[[AccountFacts], object]) -> None:
    assert opened(replace(FACTS, bucket=Unread(Why.UNREACHABLE, "s3:ListBucket", "no answer in time"))) is FOUND
