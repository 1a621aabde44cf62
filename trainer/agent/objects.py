"""The bucket as the agent sees it. ``storage.S3Objects`` is the adapter; tests also use a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol


class ObjectsError(Exception):
    """The bucket did not answer, or refused. One line; trying again later may help."""


class Conflict(ObjectsError):
    """A condition of ``put`` did not hold: somebody wrote first. Read again."""


class Fenced(Exception):
    """A newer generation runs the job: this one publishes nothing any more."""


class Objects(Protocol):
    """One bucket. Each call is bounded in time and may be repeated; all raise ObjectsError."""

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object's bytes and its ETag; None where there is none."""
        ...

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write an object; returns its ETag. Raises Conflict when the condition does not hold."""
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
