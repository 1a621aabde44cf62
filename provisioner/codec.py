"""The JSON form of a job's record, as SQLite and the bucket hold it."""

from __future__ import annotations

import msgspec

from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.model import JobRecord


def encode(record: JobRecord) -> bytes:
    """The JSON bytes of a record."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> JobRecord:
    """A record. Raises CloudtrainError for bytes of another form."""
    try:
        return msgspec.json.decode(data, type=JobRecord)
    except msgspec.DecodeError as error:
        raise CloudtrainError(f"a job record can't be read ({error}); it was written by another version") from error
