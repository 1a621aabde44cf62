"""What a job and its things are called, in a cloud and in its bucket: by these names they are found again. Pure."""

from __future__ import annotations

import re

TAG_OWNER = "cloudtrain:owner"
TAG_JOB = "cloudtrain:job"
TAG_GENERATION = "cloudtrain:generation"
TAG_TOKEN = "cloudtrain:token"  # noqa: S105 - the name of a tag
TAG_BUCKET = "cloudtrain:bucket"  # where its job's record is: so that anybody's `gc` can tell whether it lives

TAG_LOCAL_SSH = "cloudtrain:local-ssh"  # "127.0.0.1:PORT", where a machine of the embedded cloud is reached

INSTANCE_PROFILE = "cloudtrain-machine"  # the machine's role: its job's prefix of the bucket and nothing else

JOB_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")  # also a folder's name on this computer
CONTROL = "control/"
RECORD = "record.json"
MOUNTS = "mounts/"  # each job's manifests; the contents lie beside them, under `files/`, for all jobs
_OF_A_JOB = re.compile(rf"(?:jobs|control|mounts)/({JOB_ID.pattern})/.+")
_TOKEN_LIMIT = 64  # ASCII characters; EC2 developer guide, "Ensuring idempotency", seen 2026-11


def job_name(job_id: str) -> str:
    """The name of everything that a job has in a cloud: its machines, its security groups, its key pairs."""
    return f"cloudtrain-{job_id}"


def client_token(job_id: str, generation: int, rest: str) -> str:
    """An attempt's client token."""
    return f"{token_head(job_id, generation)}{rest}"[:_TOKEN_LIMIT]


def token_head(job_id: str, generation: int | str) -> str:
    """What the client token of each of a job's attempts begins with."""
    return f"ct-{job_id[:32]}-{generation}-"


def record_key(job_id: str) -> str:
    """Where a job's record lies in its bucket."""
    return f"{CONTROL}{job_id}/{RECORD}"


def job_of_key(key: str) -> str | None:
    """The job that an object of a bucket belongs to; None for one that is no job's."""
    found = _OF_A_JOB.fullmatch(key)
    return found[1] if found else None
