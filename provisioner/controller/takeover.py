"""What another computer needs to take a job over: put into the bucket while the job runs, and fetched by ``adopt``.

All of it lies under ``control/``, where a machine's role has no right: the record, the workdir's snapshot, and each
attempt's SSH keys and user data. The values of secrets are not there; who takes over brings their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.controller.attempt_files import accepted_name
from cloudtrain.provisioner.errors import CloudtrainError, Conflict, NotFound
from cloudtrain.provisioner.home import write_private
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.names import CONTROL, JOB_ID, RECORD, record_key
from cloudtrain.provisioner.ports import ObjectStore
from cloudtrain.provisioner.shipping.snapshot import MANIFEST_NAME, TAR_NAME

TRIES = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A job's record in the bucket, and the ETag that a change of it must name."""

    record: JobRecord
    etag: str


class RecordUnreadable(CloudtrainError):
    """What the bucket holds as a job's record is not one, or another job's."""


def keep_attempt(record: JobRecord, generation: int, objects: ObjectStore, job_dir: Path) -> None:
    """Put an attempt's keys and user data into the bucket. Before its launch: who takes over must reach the machine,
    and must repeat a launch whose answer was lost with the very same request. Idempotent."""
    names = _names(generation)
    files = {name: (job_dir / name).read_text(encoding="utf-8") for name in names if (job_dir / name).exists()}
    objects.put(_attempt_key(record, generation), msgspec.json.encode(files))


def keep_snapshot(record: JobRecord, objects: ObjectStore, job_dir: Path) -> None:
    """Put the workdir's snapshot into the bucket. Idempotent."""
    for name in (TAR_NAME, MANIFEST_NAME):
        objects.upload(job_dir / name, f"{record.control}/{name}")


def look(objects: ObjectStore, job_id: str) -> Found:
    """The job as its bucket knows it. Raises NotFound, RecordUnreadable."""
    found = objects.get(record_key(job_id))
    if found is None:
        raise NotFound(f"the bucket holds no job {job_id!r}; `cloudtrain adopt` lists those that it holds")
    try:
        record = decode(found[0])
    except CloudtrainError as error:
        raise RecordUnreadable(f"{record_key(job_id)} in the bucket: {error}") from error
    if record.job_id != job_id:  # it names folders here, and tags there
        raise RecordUnreadable(f"{record_key(job_id)} in the bucket is the record of {record.job_id!r}: not taken over")
    return Found(record, found[1])


def job_ids(objects: ObjectStore) -> tuple[str, ...]:
    """The jobs that the bucket holds, in the order of their ids."""
    parts = (key.removeprefix(CONTROL).split("/") for key, _ in objects.list(CONTROL))
    return tuple(sorted({job_id for job_id, *rest in parts if rest == [RECORD] and JOB_ID.fullmatch(job_id)}))


def fetch(record: JobRecord, objects: ObjectStore, job_dir: Path) -> None:
    """Bring snapshot and keys into the job's folder here. Raises CloudtrainError where the snapshot never got there."""
    fetch_keys(record, objects, job_dir)
    if record.snapshot_sha256 is None:
        return
    try:
        for name in (TAR_NAME, MANIFEST_NAME):
            objects.download(f"{record.control}/{name}", job_dir / name)
    except NotFound as error:
        raise CloudtrainError(
            f"job {record.job_id} has no snapshot of its workdir in the bucket yet, so it can't go on from here: "
            f"`cloudtrain adopt {record.job_id} --end` takes it over and ends it; or adopt it once it trains"
        ) from error


def fetch_keys(record: JobRecord, objects: ObjectStore, job_dir: Path) -> None:
    """Bring what reaches the attempts' machines into the job's folder here. Raises CloudtrainError."""
    for attempt in record.attempts:
        key = _attempt_key(record, attempt.generation)
        found = objects.get(key)
        try:
            files = msgspec.json.decode(found[0], type=dict[str, str]) if found is not None else {}
        except msgspec.DecodeError as error:
            raise CloudtrainError(f"{key} in the bucket can't be read ({error}): not taken over") from error
        for name, text in files.items():
            if name not in _names(attempt.generation):
                raise CloudtrainError(f"the bucket names a file {name!r} of job {record.job_id}: not taken over")
            write_private(job_dir / name, text)


def take(found: Found, driver: str, results: Path, objects: ObjectStore) -> Found:
    """Make ``driver`` the home that drives the job; whoever drove it lets go when it next writes.

    Raises Conflict when it keeps changing under us, which a living controller's progress does not.
    """
    for _ in range(TRIES):
        mine = replace(found.record, driver=driver, results=str(results), revision=found.record.revision + 1)
        try:
            etag = objects.put(record_key(mine.job_id), encode(mine), if_match=found.etag)
        except Conflict:
            found = look(objects, mine.job_id)
            continue
        return Found(mine, etag)
    raise Conflict(f"the record of job {found.record.job_id} keeps changing; run `cloudtrain adopt` again")


def _names(generation: int) -> tuple[str, ...]:
    """The files of an attempt, and the job's own key, that travel."""
    keys = f"attempt-{generation}.host-key.json", accepted_name(generation)
    return "client-key.json", *keys, f"attempt-{generation}.user-data"


def _attempt_key(record: JobRecord, generation: int) -> str:
    return f"{record.control}/attempt-{generation:04d}.json"
