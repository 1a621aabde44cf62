"""What an effect's outcome makes of the record. Pure."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.endings import conclude
from cloudtrain.provisioner.decide.job import Decision
from cloudtrain.provisioner.decide.leaving import too_dear
from cloudtrain.provisioner.decide.limits import DEFAULT, Limits
from cloudtrain.provisioner.decide.outcomes import (
    Collected,
    Launched,
    LaunchRefused,
    LaunchUnknown,
    NotCollected,
    Outcome,
    Repriced,
    Resolved,
    Shipped,
    ShipRefused,
    SnapshotKept,
    StopHeard,
    Swept,
)
from cloudtrain.provisioner.decide.refusals import REFUSALS, leave_alone, pause_s
from cloudtrain.provisioner.errors import Scope
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint


def absorb(record: JobRecord, outcome: Outcome, now: float, limits: Limits = DEFAULT) -> Decision:
    """The record once an effect's outcome is known. Holds no effects."""
    if isinstance(outcome, Collected):
        home = record.home_bytes + outcome.bytes
        return Decision(replace(record, collected=True, collect_trouble=None, home_bytes=home))
    if isinstance(outcome, SnapshotKept):
        return Decision(replace(record, snapshot_kept=True))
    if isinstance(outcome, NotCollected):
        news = () if record.collect_trouble == outcome.detail else (f"{outcome.detail}; it is tried again",)
        tries = record.closing_tries + 1
        home = record.home_bytes + outcome.bytes
        return Decision(replace(record, collect_trouble=outcome.detail, closing_tries=tries, home_bytes=home), (), news)
    if isinstance(outcome, Swept):
        tries = record.closing_tries + bool(outcome.left)
        return Decision(replace(record, swept=not outcome.left, closing_tries=tries))
    old = next(a for a in record.attempts if a.generation == outcome.generation)
    new, events = _absorb_attempt(old, outcome, now, limits)
    if isinstance(outcome, Resolved) and (why := too_dear(record, new, now, limits)):
        new = at.ended(new, EndReason.TOO_DEAR, why, now)
    record = replace(record, attempts=tuple(new if a is old else a for a in record.attempts))
    record, lines = conclude(record, old, new, now, limits)
    if isinstance(outcome, LaunchRefused) and outcome.reason in REFUSALS:
        record = leave_alone(record, old, outcome, now, limits)
    if isinstance(outcome, LaunchUnknown) and (new.phase is Phase.ENDED or new.given_up):
        scope = Scope.POOL if outcome.broken else Scope.REGION  # an outage or a throttle is the region's
        record = leave_alone(record, old, LaunchRefused(old.generation, outcome.detail, scope=scope), now, limits)
    return Decision(record, (), (*events, *lines))


def _absorb_attempt(old: Attempt, outcome: Outcome, now: float, limits: Limits) -> tuple[Attempt, tuple[str, ...]]:
    match outcome:
        case Resolved(price=price, image=image):
            prices = old.prices if price is None else (PricePoint(now, price),)
            return at.pinned(replace(old, prices=prices), image), ()
        case Launched(machine=machine):
            text = f"attempt {old.generation}: {machine.instance_id} at ${old.prices[0].usd_per_hour}/h"
            return at.launched(old, machine, now), (text,)
        case LaunchRefused(detail=detail, reason=reason, asked=asked):
            return _given_up(old, reason, detail, now, limits, asked=asked)
        case LaunchUnknown():
            return _launch_unknown(old, outcome, now, limits)
        case Shipped() if old.started_at is not None:
            return old, ()
        case Shipped():
            return replace(old, phase=Phase.WORKING, started_at=now), (f"attempt {old.generation}: agent started",)
        case ShipRefused(detail=detail, image=image_unfit):
            reason = EndReason.IMAGE_UNFIT if image_unfit else EndReason.MACHINE_UNFIT
            return at.end(old, reason, detail, now).attempt, ()
        case StopHeard():
            return replace(old, stop_heard_at=now), ()
        case Repriced(price=price):
            paid = price if price is not None else old.prices[-1].usd_per_hour
            return replace(old, prices=(*old.prices, PricePoint(now, paid))), ()
    raise AssertionError(outcome)


def _launch_unknown(
    old: Attempt, outcome: LaunchUnknown, now: float, limits: Limits
) -> tuple[Attempt, tuple[str, ...]]:
    """Ask again, less and less often, with the same token; give up in the end. Said once."""
    broken = outcome.broken and old.unknown_launches + 1 >= limits.broken_tries
    late = now - (old.launch_asked_at or old.claimed_at) > limits.launch_unknown_s
    if broken or (late and old.unknown_launches >= limits.unknown_tries):
        detail = f"no answer to the launch: {outcome.detail}"
        return _given_up(old, EndReason.NO_CAPACITY, detail, now, limits, asked=outcome.asked)
    new = replace(
        old,
        unknown_launches=old.unknown_launches + 1,
        retry_at=now + pause_s(old, limits),
        launch_asked_at=old.launch_asked_at if outcome.asked else None,
    )
    first = (f"attempt {old.generation}: {outcome.detail}; asking again",) if old.unknown_launches == 0 else ()
    return new, first


def _given_up(
    old: Attempt, reason: EndReason, detail: str, now: float, limits: Limits, *, asked: bool
) -> tuple[Attempt, tuple[str, ...]]:
    words = f"{detail}; looking {limits.launch_unseen_s:.0f} s for a machine that an earlier asking may have made"
    new = at.give_up(old, reason, detail, now, asked=asked)
    return new, (f"attempt {old.generation}: {words}",) if asked else ()
