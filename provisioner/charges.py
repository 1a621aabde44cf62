"""What a machine costs beside its hours, from a job's record alone: volume, address, transfer. Pure.

Everything is counted at the rates that the record holds since the launch, whatever the catalogue says by now.
"""

from __future__ import annotations

import calendar
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from cloudtrain.pricing.model import Rates
from cloudtrain.pricing.transfer import GB, INTERNET
from cloudtrain.provisioner.model import Attempt, JobRecord
from cloudtrain.provisioner.spec import AwsOptions

# What a gp3 volume has by itself, and the most throughput that each of its IOPS allows (EBS User Guide, "General
# Purpose SSD volumes", read 2026-11). A request for more throughput without the IOPS is refused.
BASE_IOPS = 3_000
BASE_MIB_S = 125
_MIB_S_PER_IOPS = 0.25
# gp3 is billed by the second, a minute at least (EBS pricing page, read 2026-11). So little is known of addresses:
# they are counted by the second.
VOLUME_MINIMUM_S = 60


@dataclass(frozen=True, slots=True)
class Moved:
    """Data that left a region. ``usd``: None where nobody knows the rate."""

    source: str
    target: str  # a region, or "internet"
    bytes: int
    usd: Decimal | None


def iops(options: AwsOptions) -> int:
    """What the root volume is given: what gp3 has by itself, or more where the wanted throughput needs it."""
    return max(BASE_IOPS, math.ceil((options.volume_throughput or 0) / _MIB_S_PER_IOPS))


def disk_gib(record: JobRecord, attempt: Attempt) -> int:
    """The size of the attempt's root volume."""
    return max(attempt.root_gib or 0, record.spec.disk_size_gib or 0)


def rates(record: JobRecord, region: str) -> Rates | None:
    """What the region charges, as it was pinned at the launch; None in a record without it."""
    return next((found for found in record.rates if found.region == region), None)


def life(attempt: Attempt, now: float) -> tuple[float, float]:
    """From when until when something of the attempt's machine was there. Empty where it had none.

    The two may have been read on two computers: an end before the beginning is no time.
    """
    begin = attempt.launched_at if attempt.launched_at is not None else attempt.running_at
    if begin is None:
        return 0.0, 0.0
    end = attempt.gone_at if attempt.gone_at is not None else attempt.ended_at
    return begin, max(begin, now if end is None else end)


def volume_usd(record: JobRecord, attempt: Attempt, now: float) -> Decimal:
    """The root volume, from the machine's launch until it was gone; also where the machine itself was free."""
    found = rates(record, attempt.pool.region)
    begin, end = life(attempt, now)
    if found is None or begin == 0.0:
        return Decimal(0)
    options = record.spec.aws
    beyond_mib_s = max(0, (options.volume_throughput or 0) - BASE_MIB_S)
    month = disk_gib(record, attempt) * found.gib_month_usd
    month += (iops(options) - BASE_IOPS) * found.iops_month_usd + beyond_mib_s * found.mib_s_month_usd
    return month * months(begin, max(end, begin + VOLUME_MINIMUM_S))


def address_usd(record: JobRecord, attempt: Attempt, now: float) -> Decimal:
    """The public IPv4 address, while the machine had one: from its launch until it shut down."""
    found = rates(record, attempt.pool.region)
    begin, end = life(attempt, now)
    if found is None or begin == 0.0 or not record.spec.aws.public_ip:
        return Decimal(0)
    end = end if attempt.ended_at is None else max(begin, min(end, attempt.ended_at))
    return Decimal(str(end - begin)) * found.address_hour_usd / 3600


def moved(record: JobRecord, attempt: Attempt) -> Iterator[Moved]:
    """What the attempt fetched from other regions, and sent to the bucket's."""
    here = attempt.pool.region
    total = sum(mount.bytes for mount in record.mounts)
    for mount in record.mounts:
        share = mount.bytes * min(attempt.mounted_bytes, total) // total if total else 0
        yield from _moved(record, mount.region or record.region, here, share)
    yield from _moved(record, record.region, here, attempt.received_bytes)
    yield from _moved(record, here, record.region, attempt.sent_bytes)


def moved_home(record: JobRecord) -> Iterator[Moved]:
    """What was brought home over the internet."""
    yield from _moved(record, record.region, INTERNET, record.home_bytes)


def _moved(record: JobRecord, source: str, target: str, count: int) -> Iterator[Moved]:
    if count <= 0 or source == target or not record.rates:
        return
    found = rates(record, source)
    rate = found.out_usd(target) if found is not None else None
    yield Moved(source, target, count, None if rate is None else rate * count / GB)


def months(begin: float, end: float) -> Decimal:
    """How many months lie between two moments: each second is a share of its own calendar month, in UTC."""
    total, at = Decimal(0), begin
    while at < end:
        day = datetime.fromtimestamp(at, UTC)
        length_s = calendar.monthrange(day.year, day.month)[1] * 86400
        first = datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()
        until = min(end, first + length_s)
        total += Decimal(str(until - at)) / length_s
        at = until
    return total
