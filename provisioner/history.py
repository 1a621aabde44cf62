"""A job's history for machines: each fact that its bill rests on, once, as it became known. Pure.

The facts follow from the record, and are stored with it in one transaction; a fact that was written stays. Who adds
them up by other means than ``ledger`` must come to the same bill (tests/recount.py does).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.charges import disk_gib, iops
from cloudtrain.provisioner.model import Attempt, JobRecord, Phase


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. ``generation`` is 0 where it is the job's. ``document``: JSON, money as text."""

    at: float
    kind: str
    generation: int
    document: str

    @property
    def values(self) -> dict[str, Any]:
        """The document."""
        found: dict[str, Any] = json.loads(self.document)
        return found


def facts(record: JobRecord) -> tuple[Fact, ...]:
    """Everything of that kind that the record says now, the oldest first within the job and each attempt.

    ``created``, ``rates``, ``data``, ``home`` of the job; ``claimed``, ``price``, ``launched``, ``running``,
    ``ending``, ``ended``, ``over``, ``taken`` (by EC2), ``gone``, ``moved`` of an attempt.
    """
    return (*_of_job(record), *(fact for attempt in record.attempts for fact in _of_attempt(record, attempt)))


def _fact(at: float, kind: str, generation: int, **values: object) -> Fact:
    return Fact(at, kind, generation, json.dumps(values, sort_keys=True, default=str))


def _of_job(record: JobRecord) -> Iterator[Fact]:
    at = record.created_at
    yield _fact(at, "created", 0, bucket_region=record.region, name=record.spec.name)
    for rates in record.rates:
        yield _fact(at, "rates", 0, **asdict(rates))
    for mount in record.mounts:
        yield _fact(at, "data", 0, target=mount.target, bytes=mount.bytes, region=mount.region or record.region)
    if record.home_bytes:
        yield _fact(at, "home", 0, bytes=record.home_bytes)


def _of_attempt(record: JobRecord, attempt: Attempt) -> Iterator[Fact]:
    number, pool = attempt.generation, attempt.pool
    spot = pool.capacity_type is CapacityType.SPOT
    yield _fact(attempt.claimed_at, "claimed", number, pool=str(pool), region=pool.region, spot=spot)
    for point in attempt.prices:
        yield _fact(point.at, "price", number, usd_per_hour=point.usd_per_hour)
    if attempt.launched_at is not None:
        aws = record.spec.aws
        volume = {"gib": disk_gib(record, attempt), "iops": iops(aws), "mib_s": aws.volume_throughput or 0}
        machine = attempt.instance_id
        yield _fact(attempt.launched_at, "launched", number, machine=machine, **volume, address=aws.public_ip)
    if attempt.running_at is not None:
        yield _fact(attempt.running_at, "running", number)
    if attempt.phase is not Phase.ENDED:
        if attempt.ended_at is not None:  # as far as is known: once it is over, an earlier moment may have been found
            yield _fact(attempt.ended_at, "ending", number)
        return
    if attempt.ended_at is not None:
        yield _fact(attempt.ended_at, "ended", number)
    yield _fact(attempt.ended_at or attempt.claimed_at, "over", number, reason=attempt.end_reason)
    if attempt.ended_by_cloud:
        yield _fact(attempt.ended_at or attempt.claimed_at, "taken", number)
    if attempt.gone_at is not None:
        yield _fact(attempt.gone_at, "gone", number)
    moved = {"mounted": attempt.mounted_bytes, "received": attempt.received_bytes, "sent": attempt.sent_bytes}
    if any(moved.values()):
        yield _fact(attempt.ended_at or attempt.claimed_at, "moved", number, **moved)
