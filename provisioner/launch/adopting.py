"""Taking over a job that another computer launched: found in its bucket, fetched, claimed, driven from here."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.collect import collect
from cloudtrain.provisioner.controller.job_secrets import keep_secrets, secrets_missing
from cloudtrain.provisioner.controller.process import ensure, renew
from cloudtrain.provisioner.controller.takeover import Found, RecordUnreadable
from cloudtrain.provisioner.errors import Conflict, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.access import Access
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import ObjectStore

READERS = 16  # records are read so many at a time: a thousand take some seconds


def in_bucket(access: Access) -> tuple[tuple[JobRecord, ...], tuple[str, ...]]:
    """The jobs that the bucket holds, newest first: all of them, as one left out may be live and cost money. And the
    trouble with each whose record can't be read, a line each."""
    objects = access.objects
    ids = takeover.job_ids(objects)
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda job_id: _read(objects, job_id), ids))
    records = [one for one in found if isinstance(one, JobRecord)]
    records.sort(key=lambda record: -record.created_at)
    return tuple(records), tuple(one for one in found if isinstance(one, str))


def _read(objects: ObjectStore, job_id: str) -> JobRecord | str:
    try:
        return takeover.look(objects, job_id).record
    except RecordUnreadable as error:
        return str(error)


def find(access: Access, wanted: str) -> Found:
    """The job that ``wanted`` means: an id, the beginning of one, or the newest of that name. Raises NotFound,
    UsageError where the beginning fits several."""
    objects = access.objects
    ids = takeover.job_ids(objects)
    if wanted in ids:
        return takeover.look(objects, wanted)
    fitting = [job_id for job_id in ids if job_id.startswith(wanted)]
    found = [takeover.look(objects, job_id) for job_id in fitting]
    namesakes = [f for f in found if f.record.spec.name == wanted]
    if namesakes:
        return max(namesakes, key=lambda f: (not f.record.status.final, f.record.created_at))
    if not found:
        raise NotFound(f"bucket {access.bucket} holds no job {wanted!r}; `cloudtrain adopt` lists those that it holds")
    if len(found) > 1:
        raise UsageError(f"{wanted!r} fits {len(found)} jobs ({', '.join(fitting[-5:])}); type more of the id")
    return found[0]


def adopt(
    found: Found, access: Access, home: Home, results: Path, environ: Mapping[str, str], *, end: bool = False
) -> JobRecord:
    """Make the job ours: its snapshot and keys come here, its record names this home, and our controller drives it.

    One that is over is only brought home, to be looked at. Nothing is changed in the bucket before everything that is
    needed has arrived; the values of secrets, which the bucket lacks, come from ``environ``. ``end``: only to end it,
    which needs neither snapshot nor secrets. Raises NotFound, Conflict, UsageError, CloudtrainError.
    """
    record, objects = found.record, access.objects
    if (record.cloud, record.bucket) != (access.entry.cloud, access.bucket):
        raise UsageError(
            f"the record of job {record.job_id} in bucket {access.bucket} says that it belongs to bucket "
            f"{record.bucket!r} of {record.cloud!r}: not taken over"
        )
    if record.cloud == "local" and record.cloud_id != access.entry.cloud_id:
        raise UsageError(f"job {record.job_id} was lost with its cloud: the embedded cloud that held it has ended")
    store = SqliteStore(home.db)
    job_dir = home.job_dir(record.job_id)
    if not record.status.final:
        refuse_namesake(store, record)
        if end:
            takeover.fetch_keys(record, objects, job_dir)
        else:
            bring_secrets(record, home, environ)
            takeover.fetch(record, objects, job_dir)
    found = takeover.take(found, home.id, results, objects)
    if not record.status.final:  # another machine came meanwhile, or one changed its host key, and its driver let go
        takeover.fetch_keys(found.record, objects, job_dir)
    if record.status.final:
        collect(found.record, objects, job_dir)
    try:
        store.put(found.record, found.etag)
    except Conflict as error:
        raise UsageError(str(error)) from error
    if end:
        store.want(record.job_id, "cancel")
    if record.cloud == "aws":
        renew(home)
    ensure(home)
    return found.record


def driven_here(record: JobRecord, home: Home) -> bool:
    """Whether this home drives the job, and knows it: its store may have been lost."""
    known = {stored.record.job_id for stored in SqliteStore(home.db).list(live_only=True)}
    return record.driver == home.id and record.job_id in known


def bring_secrets(record: JobRecord, home: Home, environ: Mapping[str, str]) -> None:
    """Keep the values of the job's secrets that this computer lacks. Raises UsageError where one is not set."""
    if secrets_missing(record, home):
        keep_secrets(record.spec, environ, home.job_dir(record.job_id))


def refuse_namesake(store: SqliteStore, record: JobRecord) -> None:
    """A live job of the same name here: two of one name could not be told apart."""
    for stored in store.list(live_only=True):
        other = stored.record
        if other.spec.name == record.spec.name and other.job_id != record.job_id:
            raise UsageError(
                f"job {other.job_id} here has the same name {other.spec.name!r} and is live; "
                f"end it first with `cloudtrain down {other.job_id}`"
            )
