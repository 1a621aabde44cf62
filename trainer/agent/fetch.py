"""The files of one mount, from the bucket to a folder: several at a time, large ones in parts, each verified before it
has its name."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .objects import Conflict, Denied, ObjectMissing, Objects, ObjectsError
from .placing import Owner
from .unpack import Entry, remove

logger = logging.getLogger(__name__)

PART_BYTES = 16 << 20
WORKERS = 16
STALL_S = 120.0
DENIED_TRIES = 4  # a right that was given a moment ago takes seconds to hold everywhere
DAMAGED_TRIES = 3
_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_CHUNK_BYTES = 1 << 20
_LOOK_S = 0.05


class FetchError(Exception):
    """It can't be brought. One line. ``fault``: "job", another machine would do no better, or "machine"."""

    def __init__(self, text: str, *, fault: str) -> None:
        super().__init__(text)
        self.fault = fault


class _Damaged(Exception):
    pass


@dataclass
class _File:
    """A file on its way. ``left``: parts that have not arrived."""

    entry: Entry
    target: Path
    partial: Path
    left: int
    md5: bool = True  # whether its ETag is a digest


@dataclass(frozen=True)
class _Part:
    file: _File
    start: int
    length: int
    whole: bool


class Fetch:
    """Brings ``files`` of a bucket to ``folder``. ``moved_bytes`` grows meanwhile, ``trouble`` is the last error."""

    def __init__(
        self,
        objects: Objects,
        files: Iterable[Entry],
        folder: Path,
        *,
        partial: Path,
        key_of: Callable[[Entry], str],
        name_of: Callable[[Entry], str],
        source: str,
        owner: Owner = None,
        stop: threading.Event,
    ) -> None:
        """``partial``: a folder of ours on the same disk. ``key_of``: where the object is; ``name_of``: how it is named
        to people; ``source``: what all of them are from. ``stop``: leave, with what is there."""
        self._objects = objects
        self._folder = folder
        self._partial = partial
        self._key_of = key_of
        self._name_of = name_of
        self._source = source
        self._owner = owner
        self._stop = stop
        self._leave = threading.Event()
        self._lock = threading.Lock()  # of the plan and of the files' parts
        self._count_lock = threading.Lock()
        self._parts = self._planned(files)
        self._failure: Exception | None = None
        self._moved_at = time.monotonic()
        self.moved_bytes = 0
        self.trouble: str | None = None

    def run(self) -> None:
        """Return when everything is there, or ``stop`` is set. Raises FetchError, OSError (a full disk)."""
        remove(self._partial)
        self._partial.mkdir(parents=True)
        workers = [threading.Thread(target=self._work, name=f"fetch-{n}", daemon=True) for n in range(WORKERS)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            if self._stop.is_set():
                self._leave.set()
                return  # they hang in the network for half a minute at most, and write nowhere that counts
            if self._failure is not None:
                break
            if time.monotonic() - self._moved_at > STALL_S:
                self._leave.set()
                words = f": {self.trouble}" if self.trouble else ""
                raise FetchError(f"no data has come for {STALL_S:.0f} s{words}", fault="machine")
            time.sleep(_LOOK_S)
        if self._failure is not None:
            raise self._failure

    def _planned(self, files: Iterable[Entry]) -> Iterator[_Part]:
        for number, entry in enumerate(files):
            target = self._folder / entry.path
            count = max(1, -(-entry.size // PART_BYTES))
            file = _File(entry, target, self._partial / str(number), count)
            if self._is_there(file):
                self._moved(entry.size)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                start = index * PART_BYTES
                yield _Part(file, start, min(PART_BYTES, entry.size - start), count == 1)

    def _is_there(self, file: _File) -> bool:
        """From an agent before us, which died: believed only as far as it can be checked."""
        entry = file.entry
        if not file.target.is_file() or file.target.is_symlink() or file.target.stat().st_size != entry.size:
            return False
        expected = _digest_of(entry, md5=True)
        return expected is not None and self._hashed(file.target, expected[0]) == expected[1]

    # ---- one worker

    def _work(self) -> None:
        try:
            while not self._leave.is_set():
                with self._lock:
                    part = next(self._parts, None)
                if part is None:
                    return
                self._bring(part)
        except Exception as error:
            if not isinstance(error, (FetchError, OSError)):
                logger.exception("fetching failed")
            self._failure = self._failure or error
            self._leave.set()

    def _bring(self, part: _Part) -> None:
        """Until it is there; raises FetchError where trying again is no use."""
        denied = damaged = failures = 0
        name = self._name_of(part.file.entry)
        while not self._leave.is_set():
            try:
                self._fetch(part)
                self.trouble = None
                return
            except Conflict:
                text = f"{name} was changed after the launch; launch again to take it as it is now"
                raise FetchError(text, fault="job") from None
            except ObjectMissing:
                text = f"{name} was deleted after the launch; bring it back, or launch again"
                raise FetchError(text, fault="job") from None
            except Denied as error:
                denied += 1
                if denied == DENIED_TRIES:
                    raise FetchError(_denied(name, self._source, error), fault="job") from None
                self.trouble = str(error)
            except _Damaged:
                damaged += 1
                if damaged == DAMAGED_TRIES or not part.whole:
                    text = f"{name} does not arrive as it was at the launch: its digest is another"
                    raise FetchError(text, fault="job") from None
                self.trouble = f"{name} arrived damaged"
            except ObjectsError as error:
                self.trouble = str(error)
            logger.warning("%s: %s", name, self.trouble)
            self._leave.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    def _fetch(self, part: _Part) -> None:
        file, entry = part.file, part.file.entry
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if part.whole else 0)
        expected = _digest_of(entry, md5=True) if part.whole else None
        digest = hashlib.new(expected[0], usedforsecurity=False) if expected is not None else None
        arrived = 0
        handle = os.open(file.partial, flags, 0o600)
        try:
            length = None if part.whole else part.length  # of a whole object botocore verifies S3's own checksum
            piece = self._objects.read(self._key_of(entry), start=part.start, length=length, if_match=entry.etag)
            file.md5 = file.md5 and piece.etag_is_md5
            for chunk in piece.chunks:
                _write_all(handle, chunk, part.start + arrived)
                arrived += len(chunk)
                self._moved(len(chunk))
                if digest is not None:
                    digest.update(chunk)
                if self._leave.is_set():
                    return
            if arrived != part.length:
                raise ObjectsError(f"{self._name_of(entry)} broke off after {arrived} of {part.length} bytes")
            if part.whole:
                expected = _digest_of(entry, md5=file.md5)
                if expected is not None and digest is not None and digest.hexdigest() != expected[1]:
                    raise _Damaged
        except BaseException:
            with self._count_lock:  # it comes again; and that it went is no sign of life
                self.moved_bytes -= arrived
            raise
        finally:
            os.close(handle)
        with self._lock:
            file.left -= 1
            last = file.left == 0
        if last:
            self._finish(file, verified=part.whole)

    def _finish(self, file: _File, *, verified: bool) -> None:
        entry = file.entry
        expected = None if verified else _digest_of(entry, md5=file.md5)
        if expected is not None and self._hashed(file.partial, expected[0]) != expected[1]:
            raise _Damaged
        file.partial.chmod(entry.mode & 0o777)
        if self._owner is not None:
            os.chown(file.partial, *self._owner)
        file.partial.replace(file.target)

    def _hashed(self, path: Path, algorithm: str) -> str:
        digest: Any = hashlib.new(algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                self._moved_at = time.monotonic()  # a large file takes a while, and is no standstill
        return str(digest.hexdigest())

    def _moved(self, count: int) -> None:
        with self._count_lock:
            self.moved_bytes += count
        self._moved_at = time.monotonic()


def _digest_of(entry: Entry, *, md5: bool) -> tuple[str, str] | None:
    """Algorithm and hexadecimal digest that the file's bytes must have; None where none is known."""
    if entry.sha256 is not None:
        return "sha256", entry.sha256
    etag = (entry.etag or "").strip('"')
    return ("md5", etag) if md5 and len(etag) == 32 and "-" not in etag else None


def _write_all(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, at)
        view, at = view[count:], at + count


def _denied(name: str, source: str, error: Exception) -> str:
    if not source.startswith("s3://"):
        return f"the machine's role may not read its data: `cloudtrain setup` gives it the right ({error})"
    if "kms:" in str(error):
        return f"{name}: its KMS key does not serve the machine's role: allow that role kms:Decrypt in the key's policy"
    return (
        f"{name}: the machine's role may not read it, or it is gone: `cloudtrain setup --read {source}` gives the right"
    )
