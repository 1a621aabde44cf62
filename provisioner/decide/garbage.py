"""Which things of an account nobody needs any more: pure, over what was found and what is known of the jobs.

Ours is what carries our tags, whole, and our owner; everything else is not looked at twice. What a live job owns stays,
and so does whatever can't be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.names import (
    JOB_ID,
    TAG_GENERATION,
    TAG_JOB,
    TAG_OWNER,
    TAG_TOKEN,
    job_name,
    job_of_key,
    token_head,
)
from cloudtrain.provisioner.things import Kind, Thing

YOUNG_S = 900.0
"""A thing without a record is nobody's once it is older. The record is written before a launch, so this only covers
clocks that differ."""
UPLOAD_YOUNG_S = 24 * 3600.0
"""An upload of file contents belongs to no job yet: the launch that began it may go on, or a later one with its parts.
"""
_LAUNCHED = (Kind.MACHINE, Kind.VOLUME, Kind.INTERFACE, Kind.SPOT_REQUEST)
_NAMED = (Kind.GROUP, Kind.KEY_PAIR)
CONTENT = re.compile(r"files/([0-9a-f]{64})")
"""The key of a file's content, as ``contract.content_key`` makes it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job: its record where one could be read; ``unreadable``: why not, in one line. Neither: there
    is none, in any bucket that could be asked."""

    record: JobRecord | None = None
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one of our things, and why. ``damaged``: it stays since its job's record can't be read."""

    thing: Thing
    job_id: str
    end: bool
    why: str
    damaged: bool = False


def job_of(thing: Thing, owner: str) -> str | None:
    """The job that one of ``owner``'s things belongs to; None for what is not ours. A tag that only looks like ours
    makes nothing ours: a launch tags whatever it makes with the job, the owner, the generation and the token, and the
    token names job and generation again; groups and keys have the job's name, which can't be changed."""
    if thing.kind is Kind.UPLOAD:
        return job_of_key(thing.name)
    job_id = thing.tag(TAG_JOB)
    if not owner or thing.tag(TAG_OWNER) != owner or not JOB_ID.fullmatch(job_id):
        return None
    if thing.kind in _NAMED:
        return job_id if thing.name == job_name(job_id) else None
    generation = thing.tag(TAG_GENERATION)
    if thing.kind in _LAUNCHED and generation.isdecimal():
        return job_id if thing.tag(TAG_TOKEN).startswith(token_head(job_id, generation)) else None
    return None


def judge(things: Iterable[Thing], known: Mapping[str, Known], owner: str, now: float) -> tuple[Verdict, ...]:
    """A verdict on each of our things, in the order in which they are ended. A job that is not in ``known`` was not
    looked up: what it owns stays. One young thing of a job without a record keeps them all."""
    ours = [(thing, job_id) for thing in things if (job_id := job_of(thing, owner)) is not None]
    young = {job for thing, job in ours if thing.made_at is not None and now - thing.made_at < YOUNG_S}
    found = []
    for thing, job_id in ours:
        reason = _keeps(known.get(job_id), owner, young=job_id in young)
        if thing.kind is Kind.UPLOAD and not _known_ours(known.get(job_id), owner):
            continue  # nothing but a record says whose an upload is
        damaged = job_id in known and bool(known[job_id].unreadable)
        found.append(Verdict(thing, job_id, not reason, reason or _over(known[job_id]), damaged))
    order = {kind: number for number, kind in enumerate(Kind)}
    return tuple(sorted(found, key=lambda v: (order[v.thing.kind], v.thing.region, v.thing.thing_id)))


def stale_content(things: Iterable[Thing], me: str, now: float) -> tuple[Verdict, ...]:
    """Uploads of file contents that nobody goes on with: those that ``me`` (an ARN) began, more than a day ago."""
    return tuple(
        Verdict(thing, "", True, "broken off more than a day ago")
        for thing in things
        if thing.kind is Kind.UPLOAD
        and CONTENT.fullmatch(thing.name)
        and same_caller(thing.initiator, me)
        and thing.made_at is not None
        and now - thing.made_at > UPLOAD_YOUNG_S
    )


def same_caller(one: str, other: str) -> bool:
    """Whether two ARNs are one user, or sessions of one role: the session's own name is new with each login."""

    def who(arn: str) -> str:
        head, found, rest = arn.partition(":assumed-role/")
        return f"{head}{found}{rest.partition('/')[0]}" if found else arn

    return bool(one) and who(one) == who(other)


def _known_ours(known: Known | None, owner: str) -> bool:
    return known is not None and known.record is not None and known.record.owner == owner


def _keeps(known: Known | None, owner: str, *, young: bool) -> str:
    """Why a job's things stay; "" where they may go."""
    if known is None:
        return "its job was not looked up"
    if known.unreadable:
        return f"its record can't be read, so its job counts as live: {known.unreadable}"
    record = known.record
    if record is None:
        return f"it has no record, and was made less than {YOUNG_S / 60:.0f} minutes ago" if young else ""
    if record.owner != owner:
        return "its record names another owner"
    return "" if record.status.resting else f"its job is {record.status}"


def _over(known: Known) -> str:
    record = known.record
    if record is None:
        return "no job: it has no record"
    return "its job is stopped" if record.status is JobStatus.STOPPED else f"its job is over ({record.status})"
