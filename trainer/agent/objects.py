"""The bucket as the agent sees it. ``storage.S3Objects`` is the adapter; tests also use a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ObjectsError(Exception):
    """The bucket did not answer, or refused. One line; trying again later may help."""


class Conflict(ObjectsError):
    """A condition of ``put`` did not hold: somebody wrote first. Read again."""


class ObjectMissing(ObjectsError):
    """There is no such object."""


class Denied(ObjectsError):
    """The credentials here may not do that."""


@dataclass(frozen=True)
class Piece:
    """A part of an object, as it arrives. ``chunks`` raises ObjectsError where it breaks off.

    ``etag_is_md5``: its ETag, where it has no "-", is the MD5 of the whole object (not so under SSE-KMS and SSE-C: S3
    API reference, "Object", 2026-11).
    """

    chunks: Iterator[bytes]
    etag_is_md5: bool


class Fenced(Exception):
    """A newer generation runs the job: this one publishes nothing any more."""


class Objects(Protocol):
    """One bucket. Each call is bounded in time and may be repeated; all raise ObjectsError."""

    @property
    def moved_bytes(self) -> int:
        """By ``download`` and ``upload_file``, so far. It grows while they run, and is no bill: a lost update counts
        for nothing."""
        ...

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object's bytes and its ETag; None where there is none."""
        ...

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write an object; returns its ETag. Raises Conflict when the condition does not hold."""
        ...

    def read(self, key: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> Piece:
        """``length`` bytes of an object from ``start``; None: all of it. Raises Conflict where its ETag is another than
        ``if_match``, ObjectMissing, Denied."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of every object under the prefix."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Write the object to a file. A missing object is an ObjectsError."""
        ...

    def upload_file(self, path: Path, key: str) -> None:
        """Write a file's bytes as an object. Raises OSError where the file can't be read."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        ...
