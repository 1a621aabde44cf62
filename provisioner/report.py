"""What is said about jobs, as values for JSON, CSV and tables. Pure: the record, the live view and the time come in.

Times are ISO 8601 in UTC; ``first_step_at``, which is there to be measured with, is Unix seconds. Money is USD as a
number, durations are seconds. A value that is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner import errors
from cloudtrain.provisioner.ledger import Line, bill
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.plan import Plan
from cloudtrain.provisioner.settings import KEYS, Setting
from cloudtrain.provisioner.snapshot import Snapshot

SCHEMA_VERSION = 1
LIST_FIELDS = (
    "job",
    "name",
    "status",
    "step",
    "total_steps",
    "attempt",
    "pool",
    "capacity_type",
    "usd",
    "usd_per_hour",
    "started",
)
Live = Mapping[str, Any]  # the job's live view: what the controller last saw, {} before that


def iso(at: float | None) -> str | None:
    """The time as people and JSON write it, to the second."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def final(record: JobRecord, now: float) -> dict[str, Any]:
    """The whole job: each attempt, what was trained, what it cost and saved. Also valid while it runs."""
    total = bill(record, now)
    return {
        "schema_version": SCHEMA_VERSION,
        "job": record.job_id,
        "name": record.spec.name,
        "status": str(record.status),
        "detail": record.detail,
        "cloud": record.cloud,
        "simulated_prices": record.cloud == "local",
        "attempts": [_attempt(a, line) for a, line in zip(record.attempts, total.lines, strict=True)],
        "steps": total.steps,
        "total_steps": record.total_steps,
        "lost_steps": total.lost_steps,
        "lost_steps_exact": total.lost_steps_exact,
        "interruptions": total.interruptions,
        "metrics": dict(record.metrics),
        "seconds": round(total.seconds, 3),
        "usd": float(total.usd),
        "usd_on_demand": _number(total.usd_on_demand),
        "savings_pct": _number(total.savings_pct),
        "started": iso(record.created_at),
        "ended": iso(record.finished_at),
        "results": record.results,
    }


def shown(record: JobRecord, live: Live, now: float) -> dict[str, Any]:
    """``final`` plus what is known of the moment: for ``show``."""
    moment = ("phase", "step", "loss", "cpu_percent", "gpu_percent", "memory_percent", "durable_step", "usd_per_hour")
    place = ("left_s", "attempt", "pool", "capacity_type", "machine_id", "checks", "trouble")
    seen = {key: None if record.status.final else live.get(key) for key in (*moment, *place)}
    row = listed(record, live, now)
    return {
        **final(record, now),
        **seen,
        "step": row["step"],
        "attempt": row["attempt"],
        "pool": row["pool"],
        "capacity_type": row["capacity_type"],
        "first_step_at": live.get("first_step_at"),
    }


def listed(record: JobRecord, live: Live, now: float) -> dict[str, Any]:
    """One job of ``ls``, its keys in the order of LIST_FIELDS."""
    total = bill(record, now)
    current = record.attempts[-1] if record.attempts else None
    return {
        "job": record.job_id,
        "name": record.spec.name,
        "status": str(record.status),
        "step": max(total.steps, live.get("step") or 0) if record.attempts else None,
        "total_steps": record.total_steps,
        "attempt": current.generation if current else None,
        "pool": str(current.pool) if current else None,
        "capacity_type": str(current.pool.capacity_type) if current else None,
        "usd": float(total.usd),
        "usd_per_hour": _usd_per_hour(current),
        "started": iso(record.created_at),
    }


def planned(name: str, cloud: str, plan: Plan, shot: Snapshot) -> dict[str, Any]:
    """A plan: for ``launch --dry-run``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "cloud": cloud,
        "simulated_prices": cloud == "local",
        "offerings": [_offering(offering) for offering in plan.offerings],
        "dropped": [{"instance_type": d.instance_type, "why": str(d.why), "reason": d.reason} for d in plan.dropped],
        "usd_per_hour_on_demand": _number(plan.on_demand_usd_per_hour),
        "snapshot": {"files": shot.files, "bytes": shot.bytes, "omitted": list(shot.omitted)},
    }


def configured(found: Mapping[str, Setting], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Each setting, its value and where that comes from: for ``config show``."""
    rows = {
        key: {
            "value": found[key].value if key in found else defaults.get(key),
            "origin": found[key].origin if key in found else "default",
        }
        for key in KEYS
    }
    return {"schema_version": SCHEMA_VERSION, "settings": rows}


def exit_code(record: JobRecord) -> int:
    """The exit code of a command that waited for the job."""
    if record.status is JobStatus.SUCCEEDED:
        return errors.EXIT_OK
    if record.status is JobStatus.CANCELLED:
        return errors.EXIT_CANCELLED
    if record.status is not JobStatus.FAILED:
        return errors.EXIT_NOT_FINISHED
    codes = {
        EndReason.NO_CAPACITY: errors.EXIT_NO_CAPACITY,
        EndReason.MAX_RUN: errors.EXIT_LIMIT,
        EndReason.REFUSED: errors.EXIT_ACCESS,
        EndReason.CLOUD_LOST: errors.EXIT_ERROR,
    }
    return codes.get(record.outcome, errors.EXIT_JOB_FAILED) if record.outcome else errors.EXIT_JOB_FAILED


def _attempt(attempt: Attempt, line: Line) -> dict[str, Any]:
    return {
        "pool": str(attempt.pool),
        "capacity_type": str(attempt.pool.capacity_type),
        "started": iso(attempt.running_at),
        "ended": iso(attempt.ended_at),
        "end_reason": str(attempt.end_reason) if attempt.end_reason else None,
        "end_detail": attempt.end_detail,
        "seconds": round(line.seconds, 3),
        "usd": float(line.usd),
        "free": line.free,
        "usd_per_hour": float(line.usd_per_hour),
        "start_step": attempt.start_step,
        "last_step": attempt.last_step,
        "lost_steps": line.lost_steps,
        "lost_steps_exact": line.lost_steps_exact,
    }


def _offering(offering: Offering) -> dict[str, Any]:
    return {
        "pool": str(offering.pool),
        "instance_type": offering.instance.name,
        "capacity_type": str(offering.pool.capacity_type),
        "accelerator": offering.instance.accelerator,
        "accelerator_count": offering.instance.accelerator_count,
        "usd_per_hour": float(offering.price_per_hour.amount),
        "as_of": offering.as_of.isoformat(),
    }


def _usd_per_hour(current: Attempt | None) -> float | None:
    """What the newest attempt's machine costs now; None when nothing of it runs."""
    if current is None or current.running_at is None or current.phase is Phase.ENDED or not current.prices:
        return None
    return float(current.prices[-1].usd_per_hour)


def _number(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
