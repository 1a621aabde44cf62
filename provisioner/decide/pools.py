"""Which pool a job's next attempt asks, which are left alone, and when there is none left to ask. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.decide.refusals import avoided, next_offering
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint

TOKEN_LIMIT = 64  # ASCII characters; EC2 developer guide, "Ensuring idempotency", seen 2026-11


def next_attempt(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """Claim the cheapest pool that is not left alone; without one, end (nothing ran yet) or wait (in recovery)."""
    # A machine that EC2 still has to take has not ended: the wait begins now.
    ends = (now if a.ended_at is None else a.ended_at for a in record.attempts if a.started_at is not None)
    last = max(ends, default=None)
    fits = allowance.fitting(record, now, limits)
    if record.offerings and not fits:
        if any(a.phase is not Phase.ENDED for a in record.attempts):
            return record, []  # a machine that EC2 takes in its first hour costs nothing: that is soon known
        outcome, detail = allowance.nothing_fits(record, now, limits)
        return replace(record, outcome=outcome, detail=detail), [detail]
    may_wait = last is not None or bool(record.spec.max_wait_s)
    offering = next_offering(replace(record, offerings=fits), now, may_wait=may_wait)
    if offering is not None:
        generation = record.generation + 1
        attempt = Attempt(
            generation=generation,
            pool=offering.pool,
            client_token=client_token(record.job_id, generation, offering),
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
    if last is not None and now - last < limits.recovery_wait_s:
        return record, []  # the avoided pools come back within minutes
    return _out_of_pools(record)


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
    detail = f"no capacity: {tried} pools refused; try later, other accelerators, or use_spot: false{words}"
    return replace(record, outcome=EndReason.NO_CAPACITY, detail=detail), [detail]


def client_token(job_id: str, generation: int, offering: Offering) -> str:
    """The attempt's client token. It holds the pool, so that one token can't make two machines in two zones."""
    digest = hashlib.sha256(str(offering.pool).encode()).hexdigest()[:12]
    return f"ct-{job_id[:32]}-{generation}-{digest}"[:TOKEN_LIMIT]
