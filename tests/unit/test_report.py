"""The values behind `-o json`: fields that scripts rely on, and the exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from cloudtrain.pricing.requirements import Dropped, Why
from cloudtrain.provisioner import report
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.plan import Plan
from cloudtrain.provisioner.shipping.snapshot import Snapshot
from tests.records import OFFERINGS, job, over

NOW = 1_800_001_000.0


def finished() -> JobRecord:
    return replace(
        job(
            over(1, 100, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True),
            over(2, 200, EndReason.SUCCEEDED, steps=(140, 900)),
        ),
        status=JobStatus.SUCCEEDED,
        outcome=EndReason.SUCCEEDED,
        metrics=(("accuracy", 0.98), ("loss", 0.1 + 0.2)),
        total_steps=900,
        finished_at=NOW,
    )


def test_the_final_object_has_the_fields_that_people_rely_on() -> None:
    found = json.loads(json.dumps(report.final(finished(), NOW)))
    assert set(found) >= {"schema_version", "job", "status", "attempts", "steps", "lost_steps", "interruptions"}
    assert set(found) >= {"metrics", "usd", "usd_on_demand", "savings_pct"}
    assert set(found["attempts"][0]) >= {"pool", "capacity_type", "started", "ended", "end_reason", "seconds", "usd"}
    assert found["attempts"][0]["started"] == "2027-01-15T08:00:00Z"
    assert found["attempts"][0]["ended"] == "2027-01-15T08:01:40Z"
    assert found["attempts"][0]["end_reason"] == "interrupted"
    assert (found["attempts"][0]["usd"], found["attempts"][1]["usd"]) == (0, 0.02)
    assert (found["steps"], found["lost_steps"], found["interruptions"]) == (900, 0, 1)
    assert found["metrics"] == {"accuracy": 0.98, "loss": 0.30000000000000004}  # bit for bit
    assert found["usd"] == 0.02
    assert found["savings_pct"] == pytest.approx(100 * (1 - 0.02 / found["usd_on_demand"]), abs=0.2)


def test_what_is_not_known_is_null() -> None:
    found = report.final(replace(job(), on_demand_usd_per_hour=None), NOW)
    assert (found["usd_on_demand"], found["savings_pct"], found["ended"], found["attempts"]) == (None, None, None, [])


def test_a_listed_job_has_just_the_fields_of_the_list() -> None:
    running = replace(
        over(1, 0, EndReason.SUCCEEDED, steps=(0, 10)), phase=Phase.WORKING, ended_at=None, end_reason=None
    )
    row = report.listed(job(running), {"step": 14, "total_steps": 900}, NOW)
    assert tuple(row) == report.LIST_FIELDS
    assert (row["step"], row["attempt"], row["usd_per_hour"]) == (14, 1, 0.36)
    assert row["usd"] == 0.1  # 1,000 s
    assert row["pool"] == "aws/us-east-1/use1-az1/g4dn.xlarge/spot"


def test_nothing_is_paid_for_a_machine_that_is_gone_or_not_there_yet() -> None:
    claimed = replace(over(1, 0, EndReason.SUCCEEDED), phase=Phase.CLAIMED, running_at=None, ended_at=None)
    assert report.listed(job(claimed), {}, NOW)["usd_per_hour"] is None
    assert report.listed(finished(), {}, NOW)["usd_per_hour"] is None
    assert report.listed(job(), {}, NOW)["step"] is None


def test_show_adds_the_moment_while_there_is_one() -> None:
    live = {"phase": "running", "loss": 0.5, "cpu_percent": 98.0, "first_step_at": 12.5, "machine_id": "i-1"}
    running = replace(job(over(1, 0, EndReason.SUCCEEDED)), status=JobStatus.RUNNING)
    now = report.shown(running, live, NOW)
    assert (now["loss"], now["machine_id"], now["first_step_at"]) == (0.5, "i-1", 12.5)
    after = report.shown(finished(), live, NOW)
    assert (after["loss"], after["machine_id"], after["first_step_at"]) == (None, None, 12.5)


@pytest.mark.parametrize(
    ("status", "outcome", "code"),
    [
        (JobStatus.SUCCEEDED, EndReason.SUCCEEDED, 0),
        (JobStatus.FAILED, EndReason.JOB_FAILED, 100),
        (JobStatus.FAILED, EndReason.NO_CAPACITY, 4),
        (JobStatus.FAILED, EndReason.MAX_RUN, 5),
        (JobStatus.FAILED, EndReason.BUDGET, 5),
        (JobStatus.FAILED, EndReason.PREEMPTIONS, 4),
        (JobStatus.FAILED, EndReason.REFUSED, 6),
        (JobStatus.FAILED, EndReason.CLOUD_LOST, 1),
        (JobStatus.FAILED, None, 100),
        (JobStatus.CANCELLED, EndReason.CANCELLED, 103),
        (JobStatus.RUNNING, None, 101),
    ],
)
def test_exit_codes(status: JobStatus, outcome: EndReason | None, code: int) -> None:
    assert report.exit_code(replace(job(), status=status, outcome=outcome)) == code


def test_a_plan_as_json() -> None:
    plan = Plan(OFFERINGS, (Dropped("p4d.24xlarge", Why.OTHER_ACCELERATOR, "A100:8 is not T4:1"),), Decimal("0.526"))
    found = json.loads(json.dumps(report.planned(job().spec, "local", plan, Snapshot("ab", 3, 100, ("data/",)))))
    assert found["offerings"][0]["pool"] == "aws/us-east-1/use1-az1/g4dn.xlarge/spot"
    assert found["offerings"][0]["usd_per_hour"] == 0.15
    assert found["dropped"] == [{"instance_type": "p4d.24xlarge", "why": "accelerator", "reason": "A100:8 is not T4:1"}]
    assert found["usd_per_hour_on_demand"] == 0.526
    assert found["snapshot"] == {"files": 3, "bytes": 100, "omitted": ["data/"]}
    assert found["simulated_prices"] is True
