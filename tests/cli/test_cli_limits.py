"""What is said of a job's limits, before it starts and while it runs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cloudtrain.provisioner import report
from cloudtrain.provisioner.cli import limits
from cloudtrain.provisioner.model import EndReason, JobStatus
from cloudtrain.provisioner.plan import Plan
from tests.records import OFFERINGS, job, over

NOW = 1_800_000_000.0
PLAN = Plan(OFFERINGS, (), None)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "moment", lambda at: f"+{at - NOW:.0f}s")


def test_the_worst_that_limits_allow() -> None:
    spec = job().spec
    assert limits.at_most(report.at_most(spec, PLAN)) == []
    both = replace(spec, budget_usd=Decimal("0.50"), max_run_s=3600.0, max_wait_s=7200.0)
    assert limits.at_most(report.at_most(both, PLAN)) == [
        "at most $0.50 by its budget, 1h00m of machine time by max_run",
        "it waits for a machine for 2h00m at most, each time",
    ]
    timed = replace(spec, max_run_s=7200.0)  # the dearest of the plan: $0.17 an hour
    (line,) = limits.at_most(report.at_most(timed, PLAN))
    assert line == "at most 2h00m of machine time by max_run, $0.3400 for machines at today's prices"


def test_what_is_left_of_them() -> None:
    record = job(over(1, 1000, EndReason.INTERRUPTED), created_at=NOW)
    spec = replace(record.spec, budget_usd=Decimal(250), max_run_s=7200.0, deadline_s=3600.0)
    live = replace(record, spec=spec, status=JobStatus.RUNNING)
    assert limits.left(live, NOW + 1000) == [
        "deadline: +3600s, in 43m20s",
        "left: $249.90 of $250.00, 1h43m of 2h00m machine time",
    ]
    late = replace(live, late_at=NOW + 3601)
    assert limits.left(late, NOW + 4000)[0] == "its deadline, +3600s, has passed: exit code 5 at the end"
    assert limits.left(replace(record, status=JobStatus.RUNNING), NOW) == []
    assert limits.left(replace(live, status=JobStatus.SUCCEEDED), NOW) == []
    found = report.shown(live, {}, NOW + 1000)
    assert (found["budget_left_usd"], found["max_run_left_s"], found["late"]) == (249.9, 6200.0, False)


@pytest.mark.parametrize(
    ("cloud", "expires_s", "words"),
    [
        ("local", None, "deadline +3600s: it counts on this computer being awake"),
        ("aws", None, "with its controller running and valid AWS credentials"),
        ("aws", 7200.0, "; your credentials are valid until +7200s"),
        ("aws", 1800.0, ", and your credentials end before it, at +1800s: log in again by then"),
    ],
)
def test_what_a_deadline_depends_on(cloud: str, expires_s: float | None, words: str) -> None:
    spec = replace(job().spec, deadline_s=3600.0)
    expires_at = None if expires_s is None else NOW + expires_s
    said = limits.deadline(spec, cloud, expires_at, NOW)
    assert said is not None and said.endswith(words)
    assert limits.deadline(job().spec, cloud, expires_at, NOW) is None
