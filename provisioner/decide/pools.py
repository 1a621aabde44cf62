"""Which pool a job's next attempt asks, which are left alone, and when there is none left to ask. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.decide.refusals import avoided, next_offering
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint
from cloudtrain.provisioner.names import client_token


def next_attempt(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """Claim the cheapest pool that is not left alone; without one, end (nothing ran yet) or wait (in recovery)."""
    if (detail := _taken_too_often(record)) is not None:
        return replace(record, outcome=EndReason.PREEMPTIONS, detail=detail), [detail]
    fits = allowance.fitting(record, now, limits)
    if record.offerings and not fits:
        if any(a.phase is not Phase.ENDED for a in record.attempts):
            return record, []  # a machine that EC2 takes in its first hour costs nothing: that is soon known
        outcome, detail = allowance.nothing_fits(record, now, limits)
        return replace(record, outcome=outcome, detail=detail), [detail]
    until_at = _waits_until(record, now, limits)
    offering = next_offering(replace(record, offerings=fits), now, may_wait=until_at is not None)
    if offering is not None:
        generation = record.generation + 1
        attempt = Attempt(
            generation=generation,
            pool=offering.pool,
            client_token=_token(record, generation, offering),
            phase=Phase.CLAIMED,
            claimed_at=now,
            prices=(PricePoint(now, offering.price_per_hour.amount),),
        )
        record = replace(
            record,
            generation=generation,
            attempts=(*record.attempts, attempt),
            avoid=avoided(record, now),
        )
        again = f", {record.preemptions} interruption(s) so far" if record.preemptions else ""
        return record, [f"attempt {generation}: asking for {offering.pool}{again}"]
    back_at = min(
        (entry.until_at for entry in avoided(record, now) if entry.pool in {o.pool for o in fits}), default=now
    )
    if until_at is None or max(now, back_at) >= until_at:
        return _out_of_pools(record)
    until = datetime.fromtimestamp(until_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    line = f"waiting for a machine until {until}: none of its {len(fits)} pools has one now; they are asked again"
    return (record, []) if record.detail == line else (replace(record, detail=line), [line])


def _taken_too_often(record: JobRecord) -> str | None:
    """Why no further machine is asked for, in words: EC2 took, or is about to take, more than the job allows."""
    most = record.spec.recovery.max_preemptions
    taken = record.preemptions + sum(a.handed_over and a.end_reason is None for a in record.attempts)
    if most is None or taken <= most:
        return None
    return f"EC2 took {taken} machines, recovery.max_preemptions is {most}; its last checkpoint is kept"


def _waits_until(record: JobRecord, now: float, limits: Limits) -> float | None:
    """Until when the job may be without a machine, this time; None where it does not wait. The time counts from the
    first pool that was asked since its last machine, or since nobody asked for longer than any pool is left alone: a
    computer that slept meanwhile has not waited."""
    started = [n for n, a in enumerate(record.attempts) if a.started_at is not None]
    most = record.spec.max_wait_s
    if most is None and not started:
        return None
    asked = record.attempts[started[-1] + 1 :] if started else record.attempts
    last = record.attempts[started[-1]].ended_at if started else record.created_at
    since = asked[-1].claimed_at if asked else now if last is None else last  # None: EC2 still has to take it
    for attempt in reversed(asked):
        if since - attempt.claimed_at > 2 * limits.avoid_s:
            break
        since = attempt.claimed_at
    return since + (most if most is not None else limits.recovery_wait_s)


def _out_of_pools(record: JobRecord) -> tuple[JobRecord, list[str]]:
    """Every pool has refused. Where it was the quota or a permission each time, waiting would not help."""
    tried = len({a.pool for a in record.attempts})
    last = record.attempts[-1].end_detail if record.attempts else None
    words = f"; the last: {last}" if last else ""
    if record.attempts and all(a.end_reason is EndReason.QUOTA for a in record.attempts):
        detail = f"the account's quotas allow none of the pools{words}"
        return replace(record, outcome=EndReason.REFUSED, detail=detail), [detail]
    if record.attempts and all(a.end_reason in (EndReason.QUOTA, EndReason.DENIED) for a in record.attempts):
        detail = f"the account may use none of the pools{words}"
        return replace(record, outcome=EndReason.REFUSED, detail=detail), [detail]
    if record.attempts and all(a.end_reason is EndReason.TOO_DEAR for a in record.attempts):
        detail = f"every pool is too dear now: raise the limit, or wait with max_wait{words}"
        return replace(record, outcome=EndReason.NO_CAPACITY, detail=detail), [detail]
    detail = (
        f"no capacity: {tried} pools refused; wait with max_wait, or try other accelerators, or use_spot: false{words}"
    )
    return replace(record, outcome=EndReason.NO_CAPACITY, detail=detail), [detail]


def _token(record: JobRecord, generation: int, offering: Offering) -> str:
    """It holds the pool, so that one token can't make two machines in two zones."""
    return client_token(record.job_id, generation, hashlib.sha256(str(offering.pool).encode()).hexdigest()[:12])
