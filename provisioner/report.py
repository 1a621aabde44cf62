"""What is said about jobs, as values for JSON, CSV and tables. Pure: the record, the live view and the time come in.

The forms are those of ``outputs.py``, which says what each field means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from cloudtrain.pricing.model import Offering
from cloudtrain.pricing.transfer import GB
from cloudtrain.provisioner import errors
from cloudtrain.provisioner.decide.allowance import left
from cloudtrain.provisioner.ledger import MINIMUM_S, Bill, Line, bill
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.outputs import (
    SCHEMA_VERSION,
    AtMost,
    Configuration,
    Configured,
    Costs,
    DataCost,
    Ended,
    EndedJob,
    Job,
    JobCost,
    Listed,
    Listing,
    Mounted,
    Offered,
    Parts,
    Planned,
    Shown,
    Started,
    Try,
    TryCost,
)
from cloudtrain.provisioner.plan import Plan
from cloudtrain.provisioner.settings import KEYS, Setting
from cloudtrain.provisioner.shipping.mounts import DataPlan, Estimate, Sized
from cloudtrain.provisioner.shipping.snapshot import Snapshot
from cloudtrain.provisioner.spec import JobSpec

LIST_FIELDS = tuple(Listed.__annotations__)
COST_FIELDS = ("job", "name", "status", *TryCost.__annotations__)
Live = Mapping[str, Any]  # the job's live view: what the controller last saw, {} before that


def iso(at: float) -> str:
    """The time as people and JSON write it, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _iso(at: float | None) -> str | None:
    return None if at is None else iso(at)


def final(record: JobRecord, now: float) -> Job:
    """The whole job: each attempt, what was trained, what it cost and saved. Also valid while it runs."""
    total = bill(record, now)
    return {
        "schema_version": SCHEMA_VERSION,
        "job": record.job_id,
        "name": record.spec.name,
        "status": record.status,
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
        "home_usd": float(total.home_usd),
        "usd_on_demand": _number(total.usd_on_demand),
        "savings_pct": _number(total.savings_pct),
        "started": iso(record.created_at),
        "ended": _iso(record.finished_at),
        "deadline": None if record.spec.deadline_s is None else iso(record.created_at + record.spec.deadline_s),
        "late": record.late_at is not None,
        "results": record.results,
    }


def shown(record: JobRecord, live: Live, now: float) -> Shown:
    """``final`` plus what is known of the moment: for ``show``."""
    seen: Live = {} if record.status.resting else live
    row, rest = listed(record, live, now), left(record, now)
    return {
        **final(record, now),
        "phase": seen.get("phase"),
        "loss": seen.get("loss"),
        "cpu_percent": seen.get("cpu_percent"),
        "gpu_percent": seen.get("gpu_percent"),
        "memory_percent": seen.get("memory_percent"),
        "durable_step": seen.get("durable_step"),
        "mounted_bytes": seen.get("mounted_bytes"),
        "mount_bytes": seen.get("mount_bytes"),
        "usd_per_hour": seen.get("usd_per_hour"),
        "left_s": seen.get("left_s"),
        "budget_left_usd": _number(rest.usd),
        "max_run_left_s": rest.run_s,
        "machine_id": seen.get("machine_id"),
        "checks": live.get("checks"),
        "trouble": seen.get("trouble"),
        "step": row["step"],
        "attempt": row["attempt"],
        "pool": row["pool"],
        "capacity_type": row["capacity_type"],
        "first_step_at": live.get("first_step_at"),
    }


def listed(record: JobRecord, live: Live, now: float) -> Listed:
    """One job of ``ls``, its keys in the order of LIST_FIELDS."""
    total = bill(record, now)
    current = record.attempts[-1] if record.attempts else None
    return {
        "job": record.job_id,
        "name": record.spec.name,
        "status": record.status,
        "step": max(total.steps, live.get("step") or 0) if record.attempts else None,
        "total_steps": record.total_steps,
        "attempt": current.generation if current else None,
        "pool": str(current.pool) if current else None,
        "capacity_type": str(current.pool.capacity_type) if current else None,
        "usd": float(total.usd),
        "usd_per_hour": usd_per_hour(record),
        "started": iso(record.created_at),
    }


def planned(spec: JobSpec, cloud: str, plan: Plan, shot: Snapshot, data: DataPlan | None = None) -> Planned:
    """A plan: for ``launch --dry-run``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": spec.name,
        "cloud": cloud,
        "simulated_prices": cloud == "local",
        "offerings": [_offering(offering) for offering in plan.offerings],
        "dropped": [{"instance_type": d.instance_type, "why": str(d.why), "reason": d.reason} for d in plan.dropped],
        "usd_per_hour_on_demand": _number(plan.on_demand_usd_per_hour),
        "snapshot": {"files": shot.files, "bytes": shot.bytes, "omitted": list(shot.omitted)},
        "file_mounts": [_mounted(item) for item in data.sized] if data is not None else [],
        "data_cost": _data_cost(data.estimate) if data is not None else None,
        "at_most": at_most(spec, plan),
    }


def at_most(spec: JobSpec, plan: Plan) -> AtMost:
    """The worst that the limits allow."""
    dearest = max(offering.price_per_hour.amount for offering in plan.offerings)
    run_s = spec.max_run_s
    return {
        "budget_usd": _number(spec.budget_usd),
        "max_run_s": run_s,
        "max_run_usd": None
        if run_s is None
        else _number((dearest * Decimal(str(run_s)) / 3600).quantize(Decimal("0.0001"))),
        "max_wait_s": spec.max_wait_s,
        "deadline_s": spec.deadline_s,
    }


def _mounted(item: Sized) -> Mounted:
    return {
        "target": item.mount.target,
        "source": item.mount.source,
        "files": item.files,
        "bytes": item.bytes,
        "omitted": list(item.omitted),
        "region": item.region,
        "trouble": item.trouble,
    }


def _data_cost(found: Estimate) -> DataCost:
    return {
        "restore_s": found.restore_s,
        "upload_s": found.upload_s,
        "transfer_usd": _number(found.transfer_usd),
        "transfer_usd_elsewhere": _number(found.elsewhere_usd),
        "storage_usd_per_month": _number(found.storage_usd_per_month),
    }


def listing(jobs: Sequence[Listed]) -> Listing:
    """All of ``ls``."""
    return {"schema_version": SCHEMA_VERSION, "jobs": list(jobs)}


def started(job_id: str, status: JobStatus = JobStatus.PENDING) -> Started:
    """A job that is under way: for ``--detach`` and ``adopt``."""
    return {"schema_version": SCHEMA_VERSION, "job": job_id, "status": status}


def configured(found: Mapping[str, Setting], defaults: Mapping[str, str]) -> Configuration:
    """Each setting, its value and where that comes from: for ``config show``."""
    rows: dict[str, Configured] = {}
    for key in KEYS:
        if key in found:
            rows[key] = {"value": found[key].value, "origin": found[key].origin}
        else:
            rows[key] = {"value": defaults.get(key), "origin": "default"}
    return {"schema_version": SCHEMA_VERSION, "settings": rows}


def ended(record: JobRecord, now: float, *, done: bool) -> EndedJob:
    """One job of ``stop`` or ``down``."""
    return {
        "job": record.job_id,
        "status": record.status,
        "done": done,
        "machines": sum(a.instance_id is not None for a in record.attempts),
        "usd": float(bill(record, now).usd),
    }


def all_ended(jobs: Sequence[EndedJob]) -> Ended:
    """All of ``stop`` or ``down``."""
    return {"schema_version": SCHEMA_VERSION, "jobs": list(jobs)}


def costs(records: Sequence[JobRecord], now: float) -> Costs:
    """What each job cost and why, and what it comes to: for ``cost``."""
    rows = [_job_cost(record, now) for record in records]
    bills = [bill(record, now) for record in records]
    compared = [total for record, total in zip(records, bills, strict=True) if record.outcome is EndReason.SUCCEEDED]
    pairs = [
        (sum((line.machine_usd for line in total.lines), Decimal(0)), total.usd_on_demand)
        for total in compared
        if total.usd_on_demand is not None
    ]
    on_demand = sum((price for _, price in pairs), Decimal(0))
    saved = (1 - sum((paid for paid, _ in pairs), Decimal(0)) / on_demand) * 100 if on_demand else None
    return {
        "schema_version": SCHEMA_VERSION,
        "jobs": rows,
        "total": {
            "jobs": len(rows),
            "seconds": round(sum(row["seconds"] for row in rows), 3),
            "free_seconds": round(sum(row["free_seconds"] for row in rows), 3),
            "usd": float(sum((total.usd for total in bills), Decimal(0))),
            "home_usd": float(sum((total.home_usd for total in bills), Decimal(0))),
            **parts(*(line for total in bills for line in total.lines)),
            "usd_on_demand": float(on_demand) if pairs else None,
            "savings_pct": None if saved is None else round(float(saved), 1),
        },
    }


def cost_rows(found: Costs) -> list[dict[str, Any]]:
    """A row for each attempt, its keys in the order of COST_FIELDS: for CSV."""
    return [
        {"job": job["job"], "name": job["name"], "status": job["status"], **attempt}
        for job in found["jobs"]
        for attempt in job["attempts"]
    ]


def _job_cost(record: JobRecord, now: float) -> JobCost:
    total = bill(record, now)
    tried = list(zip(record.attempts, total.lines, strict=True))
    return {
        "job": record.job_id,
        "name": record.spec.name,
        "status": record.status,
        "started": iso(record.created_at),
        "simulated_prices": record.cloud == "local",
        "attempts": [_try_cost(attempt, line) for attempt, line in tried],
        "seconds": round(total.seconds, 3),
        "free_seconds": round(sum(line.seconds for line in total.lines if line.free), 3),
        "usd": float(total.usd),
        "home_usd": float(total.home_usd),
        "home_bytes": total.home_bytes,
        "unpriced": unpriced(total),
        "assumed": list(total.assumed),
        **parts(*total.lines),
        "usd_on_demand": _number(total.usd_on_demand),
        "savings_pct": _number(total.savings_pct),
    }


def parts(*lines: Line) -> Parts:
    """What lines of a bill are made of, each kind together."""
    return {
        "machine_usd": float(sum((line.machine_usd for line in lines), Decimal(0))),
        "volume_usd": float(sum((line.volume_usd for line in lines), Decimal(0))),
        "address_usd": float(sum((line.address_usd for line in lines), Decimal(0))),
        "transfer_usd": float(sum((line.transfer_usd for line in lines), Decimal(0))),
    }


def unpriced(total: Bill) -> list[str]:
    """Each way that data took at a price that nobody knows, in words."""
    ways = Counter[tuple[str, str]]()
    for item in total.unpriced:
        ways[item.source, item.target] += item.bytes
    return [f"{count / GB:.3f} GB from {source} to {target}" for (source, target), count in ways.items()]


def _try_cost(attempt: Attempt, line: Line) -> TryCost:
    charged = 0.0 if line.free or attempt.running_at is None else max(line.seconds, float(MINIMUM_S))
    if attempt.running_at is None:
        why = "no machine"
    elif line.free:
        why = "first hour free"
    elif line.seconds < MINIMUM_S:
        why = "a minute at least"
    elif len({point.usd_per_hour for point in attempt.prices}) > 1:
        why = "the price moved"
    else:
        why = "time x price"
    return {
        "attempt": attempt.generation,
        "pool": str(attempt.pool),
        "capacity_type": str(attempt.pool.capacity_type),
        "started": _iso(attempt.running_at),
        "seconds": round(line.seconds, 3),
        "charged_seconds": round(charged, 3),
        "usd_per_hour": float(line.usd_per_hour),
        "usd": float(line.usd),
        **parts(line),
        "why": why,
    }


def usd_per_hour(record: JobRecord) -> float | None:
    """What the newest attempt's machine costs now; None when nothing of it runs."""
    current = record.attempts[-1] if record.attempts else None
    if current is None or current.running_at is None or current.phase is Phase.ENDED or not current.prices:
        return None
    return float(current.prices[-1].usd_per_hour)


def exit_code(record: JobRecord) -> int:
    """The exit code of a command that waited for the job."""
    if record.status is JobStatus.SUCCEEDED:
        return errors.EXIT_OK if record.late_at is None else errors.EXIT_LIMIT
    if record.status is JobStatus.CANCELLED:
        return errors.EXIT_CANCELLED
    if record.status is not JobStatus.FAILED:
        return errors.EXIT_NOT_FINISHED
    codes = {
        EndReason.NO_CAPACITY: errors.EXIT_NO_CAPACITY,
        EndReason.PREEMPTIONS: errors.EXIT_NO_CAPACITY,
        EndReason.BUDGET: errors.EXIT_LIMIT,
        EndReason.MAX_RUN: errors.EXIT_LIMIT,
        EndReason.REFUSED: errors.EXIT_ACCESS,
        EndReason.IMAGE_UNFIT: errors.EXIT_USAGE,
        EndReason.CLOUD_LOST: errors.EXIT_ERROR,
    }
    return codes.get(record.outcome, errors.EXIT_JOB_FAILED) if record.outcome else errors.EXIT_JOB_FAILED


def _attempt(attempt: Attempt, line: Line) -> Try:
    return {
        "pool": str(attempt.pool),
        "capacity_type": str(attempt.pool.capacity_type),
        "started": _iso(attempt.running_at),
        "ended": _iso(attempt.ended_at),
        "end_reason": str(attempt.end_reason) if attempt.end_reason else None,
        "end_detail": attempt.end_detail,
        "seconds": round(line.seconds, 3),
        "usd": float(line.usd),
        **parts(line),
        "free": line.free,
        "usd_per_hour": float(line.usd_per_hour),
        "start_step": attempt.start_step,
        "last_step": attempt.last_step,
        "lost_steps": line.lost_steps,
        "lost_steps_exact": line.lost_steps_exact,
        "restore_s": attempt.restore_s,
    }


def _offering(offering: Offering) -> Offered:
    return {
        "pool": str(offering.pool),
        "instance_type": offering.instance.name,
        "capacity_type": str(offering.pool.capacity_type),
        "accelerator": offering.instance.accelerator,
        "accelerator_count": offering.instance.accelerator_count,
        "usd_per_hour": float(offering.price_per_hour.amount),
        "as_of": offering.as_of.isoformat(),
    }


def _number(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
