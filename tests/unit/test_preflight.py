"""What a launch makes of the findings: what is left of the plan, what refuses it, and how far is looked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cloudtrain.provisioner.account.facts import Finding, Level, Wants
from cloudtrain.provisioner.account.findings import fail, ok, warn
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.launch import preflight
from cloudtrain.provisioner.launch.preflight import Ground, judge, sift

from .account_world import offering

A, B, C, D = (offering(zone) for zone in ("use1-az4", "use2-az1", "euw1-az1", "usw2-az1"))
GROUND = Ground(Clients("aws"), "us-east-1")


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

    def __call__(self, ground: Ground, wants: Wants) -> tuple[Finding, ...]:
        self.asked.append(wants.regions)
        out = [fail("quota", region, "0", "ask", wants.pools(region)) for region in wants.regions if region in self.bad]
        return (*self.account, *out)


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
