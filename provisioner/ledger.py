"""What each attempt cost and what it was good for. Pure; every figure comes from the job's record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from cloudtrain.pricing.extras import GIB_MONTH, IOPS_MONTH, MIB_S_MONTH
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.charges import (
    BASE_IOPS,
    BASE_MIB_S,
    Moved,
    address_usd,
    iops,
    moved,
    moved_home,
    rates,
    volume_usd,
)
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord

# EC2 bills Linux by the second with one minute at least for each start (StopInstances, API reference, seen 2026-11).
MINIMUM_S = 60
# A spot machine that EC2 itself takes back in its first hour is free ("Billing for interrupted Spot Instances",
# EC2 user guide, seen 2026-11): the machine alone, its volume and its address are paid.
FREE_WHEN_TAKEN_S = 3600


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt on the bill, and its parts."""

    generation: int
    seconds: float  # of machine time, running to shutting down
    machine_usd: Decimal
    volume_usd: Decimal
    address_usd: Decimal
    transfer_usd: Decimal  # between regions, where the bytes are known
    usd_per_hour: Decimal  # of the machine, paid at the end
    free: bool  # taken by EC2 within its first hour: the machine alone costs nothing
    lost_steps: int  # trained there, as far as was seen, and not resumed from
    lost_steps_exact: bool  # False: it went without last words, and what it trained after its last report is not known

    @property
    def usd(self) -> Decimal:
        """All of it."""
        return self.machine_usd + self.volume_usd + self.address_usd + self.transfer_usd


@dataclass(frozen=True, slots=True)
class Bill:
    """The whole job. ``savings_pct`` compares machines alone."""

    lines: tuple[Line, ...]
    seconds: float
    usd: Decimal
    home_usd: Decimal  # for results brought home over the internet
    home_bytes: int
    unpriced: tuple[Moved, ...]  # in no figure here: nobody knows the rate
    assumed: tuple[str, ...]  # regions whose volumes are counted at another region's rate, for want of their own
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
    home = tuple(moved_home(record))
    home_usd = _sum(home)
    machines = sum((line.machine_usd for line in lines), Decimal(0))
    on_demand = _on_demand(record, lines)
    savings = None
    if on_demand:
        savings = ((1 - machines / on_demand) * 100).quantize(Decimal("0.1"), ROUND_HALF_UP)
    everything = (*(item for attempt in record.attempts for item in moved(record, attempt)), *home)
    return Bill(
        lines=lines,
        seconds=sum(line.seconds for line in lines),
        usd=sum((line.usd for line in lines), home_usd),
        home_usd=home_usd,
        home_bytes=record.home_bytes,
        unpriced=tuple(item for item in everything if item.usd is None),
        assumed=_assumed(record),
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
    machine = Decimal(0) if free or attempt.running_at is None else _paid(attempt, max(seconds, MINIMUM_S))
    return Line(
        generation=attempt.generation,
        seconds=seconds,
        machine_usd=_cents(machine),
        volume_usd=_cents(volume_usd(record, attempt, now)),
        address_usd=_cents(address_usd(record, attempt, now)),
        transfer_usd=_sum(moved(record, attempt)),
        usd_per_hour=attempt.prices[-1].usd_per_hour if attempt.prices else Decimal(0),
        free=free,
        lost_steps=lost_steps(record, index),
        lost_steps_exact=_last_words_known(attempt),
    )


def _paid(attempt: Attempt, seconds: float) -> Decimal:
    """Seconds at the price of their time. A price noted before the machine ran, or, by another computer's clock, before
    the one that it follows, holds from there on."""
    begin = attempt.running_at or 0.0
    end = begin + seconds
    total, since = Decimal(0), begin
    for index, point in enumerate(attempt.prices):
        following = attempt.prices[index + 1].at if index + 1 < len(attempt.prices) else end
        until = min(end, max(since, following))
        total += Decimal(str(until - since)) * point.usd_per_hour / 3600
        since = until
    return total


def _sum(items: Iterable[Moved]) -> Decimal:
    return _cents(sum((item.usd for item in items if item.usd is not None), Decimal(0)))


def _assumed(record: JobRecord) -> tuple[str, ...]:
    """The regions where the job had a volume whose rate is another region's, as far as the bill counts with it."""
    regions = sorted({a.pool.region for a in record.attempts if a.instance_id is not None})
    found = {region: rates(record, region) for region in regions}
    counted = {GIB_MONTH}
    if iops(record.spec.aws) > BASE_IOPS:
        counted.add(IOPS_MONTH)
    if (record.spec.aws.volume_throughput or 0) > BASE_MIB_S:
        counted.add(MIB_S_MONTH)
    return tuple(region for region, known in found.items() if known is not None and counted & {*known.assumed})


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
