"""What a job's limits leave it: money and machine time for what runs and for the next machine. Pure.

Everything is asked of the ledger, as it would stand a little later: so the first minute that is charged whole, two
machines at once, volumes and addresses count as they do on the bill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from cloudtrain.pricing.model import Offering, Pool
from cloudtrain.provisioner.charges import rates
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint
from cloudtrain.provisioner.shipping.mounts import restore_s

_ROOT_GIB = 75  # of the reviewed images, until an attempt has found its own
_LONGEST_S = 366 * 86400.0  # a limit further off than this is none


@dataclass(frozen=True, slots=True)
class Need:
    """What a machine takes to get a job on: boot, restore, one checkpoint interval, and to save and go."""

    seconds: float
    usd: Decimal  # of one pool, at the price known of it


@dataclass(frozen=True, slots=True)
class Left:
    """None where the job has no such limit. Below zero once it is passed."""

    usd: Decimal | None
    run_s: float | None


def left(record: JobRecord, now: float) -> Left:
    """What is left of budget and max_run."""
    spec, spent = record.spec, bill(record, now)
    usd = None if spec.budget_usd is None else spec.budget_usd - spent.usd
    return Left(usd, None if spec.max_run_s is None else spec.max_run_s - spent.seconds)


def reached(record: JobRecord, now: float, ahead_s: float) -> EndReason | None:
    """BUDGET or MAX_RUN, if that is reached ``ahead_s`` from now where all that runs goes on; None where neither is."""
    if record.spec.budget_usd is None and record.spec.max_run_s is None:
        return None
    then = left(record, now + ahead_s)
    if then.usd is not None and then.usd <= 0:
        return EndReason.BUDGET
    return EndReason.MAX_RUN if then.run_s is not None and then.run_s <= 0 else None


def near(record: JobRecord, now: float, limits: Limits) -> EndReason | None:
    """Which limit would be reached if all that runs were asked to save now and had then gone: time and traffic."""
    return reached(_saved(record, now, limits), now, reserve_s(record, limits))


def _saved(record: JobRecord, now: float, limits: Limits) -> JobRecord:
    """The job once what works has sent as much again as in one checkpoint interval so far: a bucket in another region
    is paid by the byte, and a checkpoint arrives at once."""
    if record.spec.budget_usd is None:
        return record
    span_s = max(_interval_s(record), reserve_s(record, limits))

    def more(a: Attempt) -> Attempt:
        if a.started_at is None or a.ended_at is not None or a.phase is not Phase.WORKING:
            return a
        share = min(1.0, span_s / max(1.0, now - a.started_at))
        return replace(a, sent_bytes=a.sent_bytes + int(a.sent_bytes * share))

    return replace(record, attempts=tuple(more(a) for a in record.attempts))


def seconds_left(record: JobRecord, now: float) -> tuple[float, EndReason] | None:
    """In how many seconds, to the second and never below zero, which limit is reached if all that runs goes on at
    today's prices; None where that is more than a year, or never."""
    if (limit := reached(record, now, _LONGEST_S)) is None:
        return None
    low, high = 0.0, _LONGEST_S  # high: where one is known to be reached
    while high - low > 1.0:
        middle = (low + high) / 2
        found = reached(record, now, middle)
        low, high, limit = (middle, high, limit) if found is None else (low, middle, found)
    return low, limit


def machine_limit(record: JobRecord, attempt: Attempt, now: float, limits: Limits) -> tuple[float, EndReason] | None:
    """Seconds from now after which the attempt's machine must save and go by itself, whoever watches, and for which
    limit; None where there is none within a year. At today's price, and as if it ran by itself: one that EC2 is about
    to take costs no more. Two passes after the controller would ask, who knows the price of the day."""
    alone = tuple(
        replace(a, running_at=a.running_at or now, ended_at=None)
        if a.generation == attempt.generation
        else replace(a, ended_at=now if a.ended_at is None else a.ended_at)
        for a in record.attempts
    )
    found = seconds_left(_saved(replace(record, attempts=alone), now, limits), now)
    return None if found is None else (max(0.0, found[0] - reserve_s(record, limits) + 2 * limits.poll_s), found[1])


def seconds_per_gb(record: JobRecord, attempt: Attempt) -> float:
    """For how long the attempt's machine could run for what a GB (10^9 bytes) from there to the bucket costs; 0.0 where
    that is free, or its price not known."""
    found = rates(record, attempt.pool.region)
    usd = found.out_usd(record.region) if found is not None else None
    hourly = attempt.prices[-1].usd_per_hour if attempt.prices else Decimal(0)
    return float(usd / hourly * 3600) if usd is not None and hourly > 0 else 0.0


def reserve_s(record: JobRecord, limits: Limits) -> float:
    """From asking an attempt to save to a machine that bills no more: what we assume, or what it took before."""
    went = [(a.stop_asked_at, a.ended_at if a.ending_at is None else a.ending_at) for a in record.attempts]
    took = [gone - asked for asked, gone in went if asked is not None and gone is not None]
    return max([limits.reserve_s, *took])


def need_s(record: JobRecord, limits: Limits) -> float:
    """Seconds of machine time until a new machine has the job one checkpoint further, saved and gone."""
    booted = [a.started_at - a.running_at for a in record.attempts if a.started_at is not None and a.running_at]
    restored = [a.restore_s for a in record.attempts if a.restore_s is not None]
    total, files = sum(m.bytes for m in record.mounts), sum(m.files for m in record.mounts)
    restore = max(restored, default=restore_s(total, files, nvme=False))
    return max(booted, default=limits.boot_guess_s) + restore + _interval_s(record) + reserve_s(record, limits)


def _interval_s(record: JobRecord) -> float:
    """Between two checkpoints. One that is counted in steps takes as long as steps took before; at first, no time."""
    interval = record.spec.checkpoint_interval
    if interval.seconds is not None:
        return interval.seconds
    steps = sum(max(0, a.last_step - (a.start_step or 0)) for a in record.attempts)
    return (interval.steps or 0) * sum(a.run_seconds for a in record.attempts) / steps if steps else 0.0


def need(record: JobRecord, offering: Offering, now: float, limits: Limits, price: Decimal | None = None) -> Need:
    """What a new machine of the pool takes, all that it is charged with included. ``price``: per hour, where it is
    known better than from the plan and from what was paid within the last hour."""
    seconds = need_s(record, limits)
    if price is None:
        price = _known_price(record, offering.pool, now, limits) or offering.price_per_hour.amount
    checkpoint = max((a.received_bytes for a in record.attempts), default=0)  # as large as what was restored before
    trial = Attempt(
        generation=record.generation + 1,
        pool=offering.pool,
        client_token="",
        phase=Phase.WORKING,
        claimed_at=now,
        launched_at=now,
        running_at=now,
        prices=(PricePoint(now, price),),
        root_gib=max((a.root_gib or 0 for a in record.attempts), default=0) or _ROOT_GIB,
        instance_id="",
        mounted_bytes=sum(mount.bytes for mount in record.mounts),
        received_bytes=checkpoint,
        sent_bytes=checkpoint,
    )
    return Need(seconds, bill(replace(record, attempts=(trial,), home_bytes=0), now + seconds).usd)


def _known_price(record: JobRecord, pool: Pool, now: float, limits: Limits) -> Decimal | None:
    seen = [point for a in record.attempts if a.pool == pool for point in a.prices]
    fresh = [point for point in seen if now - point.at < limits.reprice_s]
    return max(fresh, key=lambda point: point.at).usd_per_hour if fresh else None


def short(
    record: JobRecord, offering: Offering, now: float, limits: Limits, price: Decimal | None = None
) -> tuple[EndReason, str] | None:
    """Which limit leaves too little for a machine of the pool, and by how much, in words; None where it fits."""
    if record.spec.budget_usd is None and record.spec.max_run_s is None:
        return None
    rest, wanted = left(record, now), need(record, offering, now, limits, price)
    if rest.usd is not None and rest.usd < wanted.usd:
        words = f"${_down(rest.usd)} of the budget of ${record.spec.budget_usd} is left, a machine takes ${wanted.usd}"
        return EndReason.BUDGET, f"{words} to get on by one checkpoint"
    if rest.run_s is not None and rest.run_s < wanted.seconds:
        words = f"{max(0.0, rest.run_s):.0f} s of max_run ({record.spec.max_run_s:.0f} s) are left"
        return EndReason.MAX_RUN, f"{words}, a machine takes {wanted.seconds:.0f} s to get on by one checkpoint"
    return None


def fitting(record: JobRecord, now: float, limits: Limits) -> tuple[Offering, ...]:
    """The pools, in the order of the plan, that what is left pays for."""
    return tuple(o for o in record.offerings if short(record, o, now, limits) is None)


def nothing_fits(record: JobRecord, now: float, limits: Limits) -> tuple[EndReason, str]:
    """Why no pool of the plan fits any more: of the one that needs least."""
    cheapest = min(record.offerings, key=lambda o: need(record, o, now, limits).usd)
    found = short(record, cheapest, now, limits)
    assert found is not None, "asked only where nothing fits"
    return found


def too_little(record: JobRecord, now: float, limits: Limits) -> str:
    """What to say of a job whose limits pay for nothing, before it is launched: the least that would do, and why."""
    limit, _ = nothing_fits(record, now, limits)
    cheapest = min(record.offerings, key=lambda o: need(record, o, now, limits).usd)
    least = need(record, cheapest, now, limits)
    parts = f"{limits.boot_guess_s:.0f} s to boot, {_interval_s(record):.0f} s to a first checkpoint"
    parts = f"{parts}, {reserve_s(record, limits):.0f} s to save it and go"
    if limit is EndReason.MAX_RUN:
        return f"max_run of {record.spec.max_run_s:.0f} s is too little: {least.seconds:.0f} s would do ({parts})"
    where = f"on {cheapest.pool.instance_type} in {cheapest.pool.zone_id}"
    return f"a budget of ${record.spec.budget_usd} is too little: ${least.usd} would do, {where} ({parts})"


def spent(record: JobRecord, limit: EndReason, now: float) -> str:
    """What of the limit is used up, in words."""
    so_far = bill(record, now)
    if limit is EndReason.BUDGET:
        return f"${so_far.usd} of the budget of ${record.spec.budget_usd} is spent"
    return f"{so_far.seconds:.0f} s of max_run ({record.spec.max_run_s:.0f} s) are used up"


def _down(usd: Decimal) -> Decimal:
    return max(Decimal(0), usd)
