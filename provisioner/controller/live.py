"""The live view of a job: what ``ls``, ``show`` and the foreground show between two saves of its record. Pure."""

from __future__ import annotations

from cloudtrain.provisioner.decide.attempts import live
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import Attempt, JobRecord, Observed
from cloudtrain.trainer.contract import AgentStatus

PACE_STEPS = 10  # fewer say nothing of the pace: the first seconds are imports and warm-up
PACE_S = 5.0


def view(
    record: JobRecord, seen: Observed, now: float, *, first_step_at: float | None, trouble: str | None
) -> dict[str, object]:
    """JSON-ready; None where a value is not known. Percentages 0 to 100, ``left_s`` seconds, ``_at`` Unix seconds."""
    current = next((a for a in reversed(record.attempts) if live(a)), None)
    report = seen.report(current.generation) if current else None
    newest = max(seen.reports, key=lambda r: r.generation, default=None)  # what was checked stays of interest
    return {
        "status": record.status,
        "total_steps": record.total_steps,
        "usd": float(bill(record, now).usd),
        "first_step_at": first_step_at,
        "trouble": trouble or (report.error if report else None),
        "at": now,
        **_machine(current),
        **_agent(record, current, report),
        "checks": list(newest.checks) if newest else [],
    }


def _machine(current: Attempt | None) -> dict[str, object]:
    return {
        "attempt": current.generation if current else None,
        "pool": str(current.pool) if current else None,
        "capacity_type": current.pool.capacity_type if current else None,
        "machine_id": current.instance_id if current else None,
        "usd_per_hour": float(current.prices[-1].usd_per_hour) if current and current.prices else None,
    }


def _agent(record: JobRecord, current: Attempt | None, report: AgentStatus | None) -> dict[str, object]:
    reached = max((a.last_step for a in record.attempts), default=None)
    return {
        "phase": report.phase if report else current.phase if current else None,
        "step": (report.progress.step if report else 0) or reached,  # a machine that restores has made no step yet
        "loss": report.progress.loss if report else None,
        "cpu_percent": report.utilisation.cpu_percent if report else None,
        "gpu_percent": report.utilisation.gpu_percent if report else None,
        "memory_percent": report.utilisation.memory_percent if report else None,
        "durable_step": report.durable_step if report else None,
        "mounted_bytes": report.mounted_bytes if report else None,
        "mount_bytes": report.mount_bytes if report else None,
        "left_s": left_s(report) if report and record.outcome is None else None,
    }


def left_s(report: AgentStatus) -> float | None:
    """Seconds of training left at this attempt's own pace; None while there is no pace yet."""
    progress = report.progress
    done = progress.step - (report.resumed_step or 0)
    if not progress.total_steps or done < PACE_STEPS or report.run_seconds < PACE_S:
        return None
    return (progress.total_steps - progress.step) * report.run_seconds / done
