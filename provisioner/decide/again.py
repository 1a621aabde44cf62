"""A job that a limit ended, or that got no machine, taken up again from its last checkpoint. Pure."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_UP, Decimal

from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from cloudtrain.provisioner.spec import JobSpec

LIMITED = (EndReason.BUDGET, EndReason.MAX_RUN, EndReason.PREEMPTIONS, EndReason.NO_CAPACITY)
"""Ends that say nothing against the job itself: with more money, time or luck it goes on where it was."""


def resumable(record: JobRecord) -> bool:
    """Whether `resume` can take the job up again: it is stopped, or over for one of ``LIMITED``."""
    return record.status is JobStatus.STOPPED or (record.status is JobStatus.FAILED and record.outcome in LIMITED)


def reopened(record: JobRecord, spec: JobSpec) -> JobRecord:
    """The job as one that was stopped, with the limits of ``spec``; pools that refused are asked anew. Where EC2 took
    its machines too often, as many may be taken once more."""
    most = spec.recovery.max_preemptions
    if record.outcome is EndReason.PREEMPTIONS and most is not None:
        spec = replace(spec, recovery=replace(spec.recovery, max_preemptions=record.preemptions + most))
    detail = f"can go on; `cloudtrain resume {record.job_id}`"
    stopped = replace(record, status=JobStatus.STOPPED, outcome=EndReason.STOPPED, detail=detail)
    return replace(stopped, spec=spec, avoid=())


def refusal(record: JobRecord, now: float, limits: Limits) -> str | None:
    """Why its limits let the job not go on by as much as a checkpoint, and what would; None where they do."""
    if not record.offerings or allowance.fitting(record, now, limits):
        return None
    limit, why = allowance.nothing_fits(record, now, limits)
    spent = bill(record, now)
    cheapest = min((allowance.need(record, o, now, limits) for o in record.offerings), key=lambda need: need.usd)
    if limit is EndReason.BUDGET:
        least = f"--budget {_cents_up(spent.usd + cheapest.usd)}"
    else:
        least = f"--max-run {int(spent.seconds + cheapest.seconds) + 1}s"
    return f"job {record.job_id} can't go on: {why}; `cloudtrain resume {record.job_id} {least}` or more would do"


def next_step(record: JobRecord) -> str:
    """What to type to take the job up again, with twice the limit that ended it, and what it does."""
    spec, flags = record.spec, ""
    if record.outcome is EndReason.BUDGET and spec.budget_usd is not None:
        flags = f" --budget {2 * spec.budget_usd:f}"
    elif record.outcome is EndReason.MAX_RUN and spec.max_run_s is not None:
        flags = f" --max-run {2 * spec.max_run_s:.0f}s"
    saved = any(attempt.durable_step for attempt in record.attempts)
    does = "goes on from its last checkpoint" if saved else "tries again"
    return f"`cloudtrain resume {record.job_id}{flags}` {does}"


def _cents_up(usd: Decimal) -> Decimal:
    return usd.quantize(Decimal("0.01"), rounding=ROUND_UP)
