"""Which attempts save and go because a limit is near, and which are ended because it is reached. Pure."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase
from cloudtrain.provisioner.plan import price_limit


def ask_to_leave(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """The record with those attempts marked that are to save and go from now on, and a line for each."""
    if record.outcome is not None:
        return record, []
    near = allowance.reached(record, now, allowance.reserve_s(record, limits))
    attempts, lines = list[Attempt](), list[str]()
    for attempt in record.attempts:
        why = _why(record, attempt, near, now) if at.live(attempt) and attempt.leave is None else None
        if why is None or attempt.phase is Phase.ENDING:
            attempts.append(attempt)
            continue
        reason, words = why
        attempts.append(replace(attempt, leave=reason))
        lines.append(f"attempt {attempt.generation}: {words}; it saves a last checkpoint and goes")
    return replace(record, attempts=tuple(attempts)), lines


def _why(record: JobRecord, attempt: Attempt, near: EndReason | None, now: float) -> tuple[EndReason, str] | None:
    if near is not None:
        return near, allowance.spent(record, near, now)
    offering = next((o for o in record.offerings if o.pool == attempt.pool), None)
    most = price_limit(record.spec, offering) if offering is not None else None
    price = attempt.prices[-1].usd_per_hour if attempt.prices else None
    if most is None or price is None or price <= most or attempt.phase is Phase.CLAIMED:
        return None
    return EndReason.TOO_DEAR, f"its price has risen to ${price}/h, max_hourly_cost is ${most}"


def cut_off(record: JobRecord, step: at.Step, now: float, limits: Limits) -> at.Step:
    """The step of an attempt whose machine still runs when a limit is reached, before the next pass: it is ended,
    whatever it says. Its last checkpoint in the bucket stays."""
    attempt = step.attempt
    runs = attempt.phase in (Phase.BOOTING, Phase.WORKING) and attempt.ended_at is None
    over = allowance.reached(record, now, limits.poll_s) if runs else None
    if over is None:
        return step
    reason = record.outcome or attempt.leave or over
    end = at.end(attempt, reason, f"{allowance.spent(record, over, now)}: ended without waiting for it", now)
    return replace(end, events=step.events)


def too_dear(record: JobRecord, attempt: Attempt, now: float, limits: Limits) -> str | None:
    """Why a pool is not launched at the price that it has now; None where it is."""
    offering = next((o for o in record.offerings if o.pool == attempt.pool), None)
    if offering is None or not attempt.prices:
        return None
    price = attempt.prices[-1].usd_per_hour
    most = price_limit(record.spec, offering)
    if most is not None and price > most:
        market = "spot" if attempt.pool.capacity_type is CapacityType.SPOT else "on-demand"
        return f"its {market} price is ${price}/h now, max_hourly_cost is ${most}"
    found = allowance.short(record, offering, now, limits, price)
    return None if found is None else f"at ${price}/h: {found[1]}"
