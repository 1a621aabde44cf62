"""Which attempts save and go because a limit is near, and which are ended because it is reached. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.effects import Effect
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Observed, Phase
from cloudtrain.provisioner.plan import price_limit


@dataclass(frozen=True, slots=True)
class Held:
    """The record with its limits held, what must be done for that, and what to say."""

    record: JobRecord
    effects: tuple[Effect, ...] = ()
    events: tuple[str, ...] = ()


def hold(record: JobRecord, seen: Observed, now: float, limits: Limits) -> Held:
    """Mark the attempts that are to save and go from now on, and end those whose machine would still run when a limit
    is reached, before the next pass. What is not seen to run is left alone: it may have ended by itself long ago."""
    over = allowance.reached(record, now, limits.poll_s)
    near = allowance.near(record, now, limits)
    attempts, effects, events = list[Attempt](), list[Effect](), list[str]()
    for attempt in record.attempts:
        if over is not None and _runs(attempt, seen):
            reason = record.outcome or attempt.leave or over
            step = at.end(attempt, reason, f"{allowance.spent(record, over, now)}: ended without waiting for it", now)
            attempts.append(step.attempt)
            effects += step.effects
            continue
        why = _why(record, attempt, near, now) if record.outcome is None and _may_leave(attempt, seen) else None
        if why is None:
            attempts.append(attempt)
            continue
        attempts.append(replace(attempt, leave=why[0]))
        events.append(f"attempt {attempt.generation}: {why[1]}; it saves a last checkpoint and goes")
    return Held(replace(record, attempts=tuple(attempts)), tuple(effects), tuple(events))


def _runs(attempt: Attempt, seen: Observed) -> bool:
    """Whether its machine is there and is charged, and nobody has ended it yet."""
    working = attempt.phase in (Phase.BOOTING, Phase.WORKING) and attempt.ended_at is None
    return working and seen.machine(attempt) is not None


def _may_leave(attempt: Attempt, seen: Observed) -> bool:
    if attempt.leave is not None or not at.live(attempt):
        return False
    return attempt.phase is Phase.CLAIMED or _runs(attempt, seen)


def _why(record: JobRecord, attempt: Attempt, near: EndReason | None, now: float) -> tuple[EndReason, str] | None:
    if near is not None:
        return near, allowance.spent(record, near, now)
    offering = next((o for o in record.offerings if o.pool == attempt.pool), None)
    most = price_limit(record.spec, offering) if offering is not None else None
    price = attempt.prices[-1].usd_per_hour if attempt.prices else None
    if most is None or price is None or price <= most or attempt.phase is Phase.CLAIMED:
        return None
    return EndReason.TOO_DEAR, f"its price has risen to ${price}/h, max_hourly_cost is ${most}"


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
