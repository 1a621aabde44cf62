"""What an attempt's notice or end means for its job. Pure."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.model import Attempt, Avoid, EndReason, JobRecord


def conclude(record: JobRecord, old: Attempt, new: Attempt, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """What an attempt's notice or end means for the job, once, when it becomes known."""
    if old.notice_at is None and new.notice_at is not None:  # the next attempt may start before this one has ended
        record = replace(record, avoid=(*record.avoid, Avoid(new.pool, now + limits.avoid_s, "reclaimed")))
    reason = new.end_reason
    if reason is None or old.end_reason is not None:
        return record, []
    detail = f": {new.end_detail}" if new.end_detail else ""
    lines = [f"attempt {new.generation}: {reason}{detail}"]
    if reason is EndReason.INTERRUPTED:
        avoid = Avoid(new.pool, now + limits.avoid_s, "reclaimed")
        return replace(record, preemptions=record.preemptions + 1, avoid=(*record.avoid, avoid)), lines
    last_words = (
        EndReason.SUCCEEDED,
        EndReason.JOB_FAILED,
        EndReason.BUDGET,
        EndReason.MAX_RUN,
        EndReason.REFUSED,
        EndReason.IMAGE_UNFIT,
    )
    if record.outcome is None and new.leave is None and _pays_for_more(record, new, now, limits):
        return record, lines
    if reason is EndReason.JOB_FAILED and record.outcome is None:
        failed, most = sum(a.end_reason is reason for a in record.attempts), record.spec.recovery.max_failures
        if failed <= most:
            return record, [*lines, f"it starts again from its last checkpoint: failure {failed} of {most} allowed"]
    if reason in last_words:
        if record.outcome in (None, EndReason.STOPPED):  # it was over before it could stop
            record = replace(record, outcome=reason, detail=new.end_detail or _spent(record, reason, now))
        return record, lines
    if reason is EndReason.TOO_DEAR:
        avoid = Avoid(new.pool, now + limits.avoid_s, new.end_detail or str(reason))
        return replace(record, avoid=(*record.avoid, avoid)), lines
    unfit = (EndReason.MACHINE_LOST, EndReason.BOOT_TIMEOUT, EndReason.AGENT_LOST, EndReason.MACHINE_UNFIT)
    if reason in unfit:
        avoid = Avoid(new.pool, now + limits.avoid_s, str(reason))
        record = replace(record, failures=record.failures + 1, avoid=(*record.avoid, avoid))
        if record.failures >= limits.machine_failures and record.outcome is None:
            detail = new.end_detail or str(reason)
            record = replace(
                record, outcome=EndReason.JOB_FAILED, detail=f"{record.failures} machines failed: {detail}"
            )
    return record, lines


def _spent(record: JobRecord, reason: EndReason, now: float) -> str | None:
    """What there is to say of a job that saved and went at a limit, as it was asked to."""
    if reason not in (EndReason.BUDGET, EndReason.MAX_RUN):
        return None
    step = max((attempt.durable_step or 0 for attempt in record.attempts), default=0)
    saved = f"its checkpoint of step {step} is kept" if step else "no checkpoint was made yet"
    return f"{allowance.spent(record, reason, now)}; {saved}"


def _pays_for_more(record: JobRecord, attempt: Attempt, now: float, limits: Limits) -> bool:
    """Whether a machine that kept the budget by itself did so too early: it counts at the price of its launch."""
    offering = next((o for o in record.offerings if o.pool == attempt.pool), None)
    if attempt.end_reason not in (EndReason.BUDGET, EndReason.MAX_RUN) or offering is None or not attempt.prices:
        return False
    return allowance.short(record, offering, now, limits, attempt.prices[-1].usd_per_hour) is None
