"""The bucket, and how many bytes went to it and came from it: what the transfer between regions is billed by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from .objects import Objects, Piece


class Counted:
    """``objects.Objects`` on another. What failed half-way is not counted."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def moved_bytes(self) -> int:
        """As the bucket's: it grows while a transfer runs."""
        return self._objects.moved_bytes

    def get(self, key: str) -> tuple[bytes, str] | None:
        """As the bucket's."""
        found = self._objects.get(key)
        self.received_bytes += len(found[0]) if found is not None else 0
        return found

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """As the bucket's."""
        etag = self._objects.put(key, data, if_match=if_match, if_none_match=if_none_match)
        self.sent_bytes += len(data)
        return etag

    def read(self, key: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> Piece:
        """As the bucket's. Counted as it arrives."""
        piece = self._objects.read(key, start=start, length=length, if_match=if_match)
        return Piece(self._counting(piece.chunks), piece.etag_is_md5)

    def _counting(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.received_bytes += len(chunk)
            yield chunk

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """As the bucket's."""
        return self._objects.list(prefix)

    def download(self, key: str, path: Path) -> None:
        """As the bucket's."""
        self._objects.download(key, path)
        self.received_bytes += path.stat().st_size

    def upload_file(self, path: Path, key: str) -> None:
        """As the bucket's."""
        size = path.stat().st_size
        self._objects.upload_file(path, key)
        self.sent_bytes += size

    def delete(self, keys: Iterable[str]) -> None:
        """As the bucket's."""
        self._objects.delete(keys)
