"""Taking up again, from here, a job that rests: with other limits, or after one of its limits ended it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.job_secrets import require_secrets, secrets_missing
from cloudtrain.provisioner.decide.again import reopened, resumable
from cloudtrain.provisioner.errors import Conflict, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.access import enter, open_bucket
from cloudtrain.provisioner.launch.adopting import bring_secrets, refuse_namesake
from cloudtrain.provisioner.localcloud import client as local
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.ports import ObjectStore
from cloudtrain.provisioner.shipping.snapshot import TAR_NAME
from cloudtrain.provisioner.spec import JobSpec


def require_cloud(record: JobRecord, home: Home) -> None:
    """Raise UsageError for a job of an embedded cloud that is gone, and its checkpoints with it."""
    if record.cloud == "local":
        running = local.find(home.local_home)
        if running is None or running.id != record.cloud_id:
            raise UsageError(
                f"job {record.job_id} was lost with its cloud: the embedded cloud that held its checkpoints has "
                "ended; launch it again"
            )


def reopen(record: JobRecord, spec: JobSpec, home: Home, environ: Mapping[str, str]) -> JobRecord:
    """Make a job that rests a stopped one with the limits of ``spec``, in its bucket and then here; ``resume`` does the
    rest. Nothing is changed before all that it needs is here.

    Raises UsageError where it can't go on from here, NotFound where the bucket has lost it, Conflict.
    """
    require_cloud(record, home)
    store, job_dir = SqliteStore(home.db), home.job_dir(record.job_id)
    objects = open_bucket(enter(record.cloud, home, region=record.region), bucket=record.bucket).objects
    refuse_namesake(store, record)
    if secrets_missing(record, home):
        require_secrets(record.spec, environ)
    known, etag = _newest(record, objects)
    if known.snapshot_sha256 is not None and not (job_dir / TAR_NAME).exists():
        takeover.fetch(known, objects, job_dir)
    again = replace(reopened(known, spec), revision=known.revision + 1)
    try:
        etag = objects.put(record_key(again.job_id), encode(again), if_match=etag)
    except Conflict as error:
        raise Conflict(f"the record of job {again.job_id} has just changed; repeat the command") from error
    store.put(again, etag)
    bring_secrets(again, home, environ)
    return again


def _newest(record: JobRecord, objects: ObjectStore) -> tuple[JobRecord, str]:
    """The job as it is known here or in the bucket, whichever is newer, and the ETag of the bucket's copy."""
    try:
        found = takeover.look(objects, record.job_id)
    except NotFound as error:
        raise NotFound(
            f"bucket {record.bucket} holds nothing of job {record.job_id} any more, its checkpoints neither "
            "(`cloudtrain gc --data` deletes them): launch it again"
        ) from error
    theirs = found.record
    if theirs.driver != record.driver:
        raise UsageError(
            f"job {record.job_id} is driven from another computer; `cloudtrain adopt {record.job_id}` takes it over"
        )
    newest = theirs if theirs.revision > record.revision else record
    if not resumable(newest):
        raise UsageError(f"job {record.job_id} is {newest.status}; `cloudtrain show {record.job_id}` tells more")
    return newest, found.etag
