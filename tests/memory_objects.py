"""A bucket in memory for the agent's tests: S3's conditions, and errors where a test wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cloudtrain.trainer.agent.objects import Conflict, ObjectMissing, ObjectsError, Piece


class MemoryObjects:
    """``agent.objects.Objects``. ``before`` is called with (call, key) and may raise or change the bucket."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda call, key: None
        self.after: Callable[[str, str], None] = lambda call, key: None
        self.chunk_bytes = 1 << 16
        self.moved_bytes = 0
        self.etag_is_md5 = True
        self.after_read: Callable[[bytes], bytes] = lambda data: data

    def get(self, key: str) -> tuple[bytes, str] | None:
        self._note("get", key)
        return (self.data[key], _etag(self.data[key])) if key in self.data else None

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        self._note("put", key)
        if if_none_match and key in self.data:
            raise Conflict(key)
        if if_match is not None and (key not in self.data or _etag(self.data[key]) != if_match):
            raise Conflict(key)
        self.data[key] = data
        self.after("put", key)
        return _etag(data)

    def read(self, key: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> Piece:
        self._note("read", key)
        if key not in self.data:
            raise ObjectMissing(key)
        if if_match is not None and _etag(self.data[key]) != if_match.strip('"'):
            raise Conflict(key)
        data = self.after_read(self.data[key])[start : None if length is None else start + length]
        chunks = (data[at : at + self.chunk_bytes] for at in range(0, len(data), self.chunk_bytes))
        return Piece(chunks, etag_is_md5=self.etag_is_md5)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        self._note("list", prefix)
        return iter([(key, len(data)) for key, data in sorted(self.data.items()) if key.startswith(prefix)])

    def download(self, key: str, path: Path) -> None:
        self._note("download", key)
        if key not in self.data:
            raise ObjectsError(f"no such object: {key}")
        path.write_bytes(self.data[key])
        self.moved_bytes += len(self.data[key])

    def upload_file(self, path: Path, key: str) -> None:
        self._note("upload", key)
        self.data[key] = path.read_bytes()
        self.moved_bytes += len(self.data[key])
        self.after("upload", key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._note("delete", key)
            self.data.pop(key, None)

    def _note(self, call: str, key: str) -> None:
        self.before(call, key)
        self.calls.append((call, key))


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
