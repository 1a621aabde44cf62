"""Which objects of a bucket are of jobs that are over: pure, over a listing and the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cloudtrain.provisioner.decide.again import resumable
from cloudtrain.provisioner.decide.garbage import CONTENT, Known
from cloudtrain.provisioner.model import JobStatus
from cloudtrain.provisioner.names import MOUNTS, job_of_key, record_key
from cloudtrain.provisioner.things import StoredObject

YOUNG_S = 24 * 3600.0
"""File contents that were sent within a day may be a launch's that has not written its manifest yet."""
BEGUN = "begun.json"
"""Beside a job's manifests from before its contents are sent: a launch counts on what is in the bucket already."""


@dataclass(frozen=True, slots=True)
class JobData:
    """A job's objects in its bucket, the record last: what a broken-off deletion leaves is found by it again.

    ``end``: they may go; ``why`` they may, or why they stay.
    """

    job_id: str
    keys: tuple[str, ...]
    size: int
    end: bool
    why: str


def jobs_in(contents: Iterable[StoredObject]) -> tuple[str, ...]:
    """The jobs that have objects in the bucket."""
    found = (job_of_key(item.key) for item in contents)
    return tuple(sorted({job_id for job_id in found if job_id is not None}))


def job_data(contents: Iterable[StoredObject], known: Mapping[str, Known], owner: str) -> tuple[JobData, ...]:
    """What each job keeps in the bucket, and whether it may go: only what a readable record says is the owner's, and
    over, with its results at home."""
    by_job: dict[str, list[StoredObject]] = {}
    for item in contents:
        if (job_id := job_of_key(item.key)) is not None:
            by_job.setdefault(job_id, []).append(item)
    found = []
    for job_id, items in sorted(by_job.items()):
        stays = _stays(known.get(job_id), owner)
        last = record_key(job_id)
        keys = sorted((item.key for item in items), key=lambda key: (key == last, key))
        record = known[job_id].record if job_id in known else None
        why = stays or f"its job is over ({record.status if record is not None else ''})"
        if not stays and record is not None and resumable(record):
            why = "ended by a limit, resumable till then"
        found.append(JobData(job_id, tuple(keys), sum(item.size for item in items), not stays, why))
    return tuple(found)


def _stays(known: Known | None, owner: str) -> str:
    """Why a job's objects stay; "" where they may go."""
    if known is None or (known.record is None and not known.unreadable):
        return "it has no record, which would say whose it is"
    if known.unreadable:
        return f"its record can't be read: {known.unreadable}"
    record = known.record
    assert record is not None
    if record.owner != owner:
        return "its record names another owner"
    if record.status is JobStatus.STOPPED:
        return "its job is stopped, and can be resumed from them"
    if not record.status.final:
        return f"its job is {record.status}"
    if not record.collected and any(attempt.started_at is not None for attempt in record.attempts):
        return "its results were never brought home"
    return ""


def manifests(contents: Iterable[StoredObject], ending: Iterable[JobData]) -> tuple[str, ...]:
    """The keys of the manifests of every job whose data stays: what they name is needed."""
    going = {data.job_id for data in ending if data.end}
    return tuple(
        item.key
        for item in contents
        if item.key.startswith(MOUNTS)
        and (job_id := job_of_key(item.key)) is not None
        and job_id not in going
        and not item.key.endswith(f"/{BEGUN}")
    )


def launching(contents: Iterable[StoredObject], known: Mapping[str, Known], now: float) -> tuple[str, ...]:
    """Jobs whose launch may be sending contents right now: they have no record yet, and began within a day."""
    found = []
    for item in contents:
        job_id = job_of_key(item.key)
        if job_id is not None and item.key == f"{MOUNTS}{job_id}/{BEGUN}" and now - item.modified_at < YOUNG_S:
            found += [job_id] if known.get(job_id, Known()).record is None else []
    return tuple(found)


def unneeded(contents: Iterable[StoredObject], named: Iterable[str], now: float) -> tuple[StoredObject, ...]:
    """File contents that no manifest names (``named``: their SHA-256), and that no launch sent within a day."""
    needed = set(named)
    found = []
    for item in contents:
        match = CONTENT.fullmatch(item.key)
        if match and match[1] not in needed and now - item.modified_at > YOUNG_S:
            found.append(item)
    return tuple(found)
