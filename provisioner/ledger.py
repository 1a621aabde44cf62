"""What each attempt cost and what it was good for. Pure; every figure comes from the job's record."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord

# EC2 bills Linux by the second with one minute at least for each start (StopInstances, API reference, seen 2026-11).
MINIMUM_S = 60
# A spot machine that EC2 itself takes back in its first hour is free ("Billing for interrupted Spot Instances",
# EC2 user guide, seen 2026-11). Volumes and addresses are not in this ledger yet.
FREE_WHEN_TAKEN_S = 3600


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt on the bill."""

    generation: int
    seconds: float  # of machine time, running to gone
    usd: Decimal
    usd_per_hour: Decimal  # paid at the end
    free: bool  # taken by EC2 within its first hour
    lost_steps: int  # trained there, as far as was seen, and not resumed from
    lost_steps_exact: bool  # False: it went without last words, and what it trained after its last report is not known


@dataclass(frozen=True, slots=True)
class Bill:
    """The whole job."""

    lines: tuple[Line, ...]
    seconds: float
    usd: Decimal
    usd_on_demand: Decimal | None  # productive seconds at the cheapest on-demand price; None where no price is known
    savings_pct: Decimal | None
    steps: int
    lost_steps: int
    lost_steps_exact: bool
    interruptions: int


def bill(record: JobRecord, now: float) -> Bill:
    """The bill as it stands at ``now``; a machine that still runs counts up to now, or to what is known here."""
    now = now if record.let_go_at is None else record.let_go_at
    lines = tuple(_line(record, index, now) for index in range(len(record.attempts)))
    usd = sum((line.usd for line in lines), Decimal(0))
    on_demand = _on_demand(record, lines)
    savings = None
    if on_demand:
        savings = ((1 - usd / on_demand) * 100).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return Bill(
        lines=lines,
        seconds=sum(line.seconds for line in lines),
        usd=usd,
        usd_on_demand=on_demand,
        savings_pct=savings,
        steps=max((a.last_step for a in record.attempts), default=0),
        lost_steps=sum(line.lost_steps for line in lines),
        lost_steps_exact=all(line.lost_steps_exact for line in lines),
        interruptions=sum(a.end_reason is EndReason.INTERRUPTED for a in record.attempts),
    )


def running_s(attempt: Attempt, now: float) -> float:
    """Seconds of machine time: from first seen running to first seen shutting down."""
    if attempt.running_at is None:
        return 0.0
    return max(0.0, (now if attempt.ended_at is None else attempt.ended_at) - attempt.running_at)


def _line(record: JobRecord, index: int, now: float) -> Line:
    attempt = record.attempts[index]
    seconds = running_s(attempt, now)
    spot = attempt.pool.capacity_type is CapacityType.SPOT
    free = attempt.ended_by_cloud and spot and seconds < FREE_WHEN_TAKEN_S
    usd = Decimal(0) if free or attempt.running_at is None else _paid(attempt, max(seconds, MINIMUM_S))
    price = attempt.prices[-1].usd_per_hour if attempt.prices else Decimal(0)
    return Line(
        attempt.generation, seconds, _cents(usd), price, free, lost_steps(record, index), _last_words_known(attempt)
    )


def _paid(attempt: Attempt, seconds: float) -> Decimal:
    """Seconds at the price of their time."""
    started = attempt.running_at or 0.0
    total = Decimal(0)
    for index, point in enumerate(attempt.prices):
        since = started if index == 0 else point.at
        until = attempt.prices[index + 1].at if index + 1 < len(attempt.prices) else started + seconds
        total += Decimal(str(max(0.0, min(until, started + seconds) - since))) * point.usd_per_hour / 3600
    return total


def lost_steps(record: JobRecord, index: int) -> int:
    """Steps that an attempt trained and the next one had to train again; 0 while no next one has resumed."""
    attempt = record.attempts[index]
    resumed = next((a.start_step for a in record.attempts[index + 1 :] if a.start_step is not None), None)
    return 0 if resumed is None else max(0, attempt.last_step - resumed)


def _last_words_known(attempt: Attempt) -> bool:
    """Whether the last step that was seen is the last that was trained."""
    without = (EndReason.INTERRUPTED, EndReason.MACHINE_LOST, EndReason.AGENT_LOST)
    return attempt.started_at is None or attempt.handed_over or attempt.end_reason not in without


def _on_demand(record: JobRecord, lines: tuple[Line, ...]) -> Decimal | None:
    """What the seconds that counted would have cost on demand: the job's running time less the share of lost steps, in
    one piece, a minute at least as for any start."""
    if record.on_demand_usd_per_hour is None:
        return None
    productive = Decimal(0)
    for attempt, line in zip(record.attempts, lines, strict=True):
        done = attempt.last_step - (attempt.start_step or 0)
        kept = Decimal(max(0, done - line.lost_steps)) / done if done > 0 else Decimal(line.lost_steps == 0)
        productive += Decimal(str(attempt.run_seconds)) * kept
    billed = max(productive, Decimal(MINIMUM_S)) if productive else productive
    return _cents(billed * record.on_demand_usd_per_hour / 3600)


def _cents(usd: Decimal) -> Decimal:
    """Ten-thousandths of a dollar: a minute on a small machine costs less than a cent."""
    return usd.quantize(Decimal("0.0001"), ROUND_HALF_UP)
