"""Checkpoints on a local disk: written whole or not at all, and believed only when every byte still matches.

A checkpoint is a directory ``step-000000123`` that holds parts and ``MANIFEST.json``:

    {"v": 1, "step": 123, "files": {"model.pt": {"bytes": 10, "sha256": "..."}}, "extra": {...}, "sha256": "..."}

The manifest's own ``sha256`` is that of its other keys, so a flipped byte is noticed in whichever file it lies:
torch.load, DCP and safetensors all load one silently. Standard library only: the agent reads and writes checkpoints
without torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from .contract import MANIFEST_NAME, checkpoint_name, parse_checkpoint_name

VERSION = 1
_CHUNK_BYTES = 1 << 20
_TEMPORARY = re.compile(r"\.step-\d+\.(?:tmp|old)-(\d+)")

Part = Callable[[BinaryIO], None] | bytes


class CheckpointRejected(Exception):
    """A directory that can't be used as a checkpoint. ``reason`` is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says about one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read and checked. File names are relative POSIX paths."""

    step: int
    files: dict[str, FileEntry] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """The size of all parts, without the manifest."""
        return sum(entry.bytes for entry in self.files.values())


class _HashingWriter(io.RawIOBase):
    """Passes bytes on and digests them on the way, so that what is hashed is what was meant, not what was stored."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self._count += len(view)
        return len(view)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def entry(self) -> FileEntry:
        return FileEntry(self._count, self._digest.hexdigest())


def write(directory: Path, step: int, parts: Mapping[str, Part], extra: Mapping[str, Any] | None = None) -> Path:
    """Write the checkpoint of ``step`` under ``directory`` and return its path, durable when this returns.

    A part is its bytes, or a function that writes them in order (no seek) to the file it is given. ``extra`` must be
    JSON. An earlier directory of the same step is replaced. One writer per process. Raises OSError (a full disk);
    then nothing of the attempt is left, and earlier checkpoints are as they were.
    """
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{_short(step)}.tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        entries = {name: _write_file(temporary / _safe(name), part) for name, part in parts.items()}
        _write_file(temporary / MANIFEST_NAME, encode(_manifest(step, entries, extra or {})))
        for folder in {temporary, *(path.parent for path in map(temporary.joinpath, entries))}:
            _fsync_directory(folder)
        target = directory / checkpoint_name(step)
        if target.exists():
            retired = directory / f".{_short(step)}.old-{os.getpid()}"
            shutil.rmtree(retired, ignore_errors=True)
            target.rename(retired)
            temporary.rename(target)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            temporary.rename(target)
        _fsync_directory(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint at ``path``, itself intact; the parts are not looked at.

    Raises CheckpointRejected.
    """
    try:
        text = (path / MANIFEST_NAME).read_bytes()
    except FileNotFoundError:
        raise CheckpointRejected(f"no {MANIFEST_NAME}: the checkpoint is incomplete") from None
    except OSError as error:
        raise CheckpointRejected(f"{MANIFEST_NAME} can't be read: {error.strerror}") from None
    return decode(text, step=parse_checkpoint_name(path.name))


def decode(text: bytes, step: int | None = None) -> Manifest:
    """The manifest in ``text``, of ``step`` if one is given. Raises CheckpointRejected."""
    try:
        raw = json.loads(text)
        claimed = raw.pop("sha256")
        if raw["v"] != VERSION:
            raise CheckpointRejected(f"{MANIFEST_NAME} has version {raw['v']}, this program reads version {VERSION}")
        if claimed != _digest(raw):
            raise CheckpointRejected(f"{MANIFEST_NAME} does not match its own digest")
        files = {name: FileEntry(int(entry["bytes"]), str(entry["sha256"])) for name, entry in raw["files"].items()}
        manifest = Manifest(int(raw["step"]), files, dict(raw["extra"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointRejected(f"{MANIFEST_NAME} is {'damaged' if text else 'empty'}") from None
    for name in files:
        _safe(name)
    if step is not None and manifest.step != step:
        raise CheckpointRejected(f"{MANIFEST_NAME} is of step {manifest.step}, not of step {step}")
    return manifest


def encode(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of ``MANIFEST.json`` for a manifest dict, as ``describe`` returns it."""
    return json.dumps(manifest, ensure_ascii=False, indent=1).encode()


def verify(path: Path, *, digests: bool = True) -> Manifest:
    """The manifest of the checkpoint at ``path``, every part there, of its size and, with ``digests``, of its hash.

    Files that the manifest does not name are ignored. Raises CheckpointRejected.
    """
    manifest = read_manifest(path)
    for name, expected in manifest.files.items():
        try:
            size = (path / name).stat().st_size
            if size != expected.bytes:
                raise CheckpointRejected(f"{name} has {size} bytes, not {expected.bytes}")
            if digests and _hash_file(path / name).sha256 != expected.sha256:
                raise CheckpointRejected(f"{name} does not match its digest")
        except FileNotFoundError:
            raise CheckpointRejected(f"{name} is missing") from None
        except OSError as error:
            raise CheckpointRejected(f"{name} can't be read: {error.strerror}") from None
    return manifest


def newest(directory: Path) -> tuple[Path | None, list[tuple[str, str]]]:
    """The checkpoint of the highest step that verifies, and (name, reason) of each higher one that did not."""
    rejected: list[tuple[str, str]] = []
    for path in _steps(directory):
        try:
            verify(path)
        except CheckpointRejected as error:
            rejected.append((path.name, error.reason))
        else:
            return path, rejected
    return None, rejected


def describe(path: Path, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The manifest dict of a directory as it is now: for a script's own checkpoint, made whole by a rename.

    Links to files are followed. A ``MANIFEST.json`` in it is left out. Raises CheckpointRejected for a name that is no
    checkpoint's, an empty directory, and anything in it that is neither a file nor a directory.
    """
    step = parse_checkpoint_name(path.name)
    if step is None:
        raise CheckpointRejected(f"{path.name!r} is not named like a checkpoint (step-123)")
    try:
        entries = {name: _hash_file(path / name) for name in sorted(_files(path)) if name != MANIFEST_NAME}
    except OSError as error:
        raise CheckpointRejected(f"{error.filename or path.name} can't be read: {error.strerror}") from None
    if not entries:
        raise CheckpointRejected("it holds no file")
    return _manifest(step, entries, extra or {})


def prune(directory: Path, keep: int, own: Collection[str] | None = None) -> list[str]:
    """Remove all but the ``keep`` newest valid checkpoints (at least one), and what dead writers left behind.

    Only valid ones are counted, and only valid ones are removed: what does not verify stays for its owner to look at.
    With ``own``, the names that the caller wrote or verified, nothing but those is considered, and they are not hashed
    again. Returns the names removed, newest first.
    """
    sweep(directory)
    valid = 0
    removed = []
    for path in _steps(directory):
        if own is not None and path.name not in own:
            continue
        try:
            # One that is to go needs no hashing: enough better ones are there.
            verify(path, digests=own is None and valid < max(keep, 1))
        except CheckpointRejected:
            continue
        valid += 1
        if valid > max(keep, 1):
            # Renamed first: a kill in the middle must not leave half a checkpoint under a checkpoint's name.
            retired = directory / f".{_short(parse_checkpoint_name(path.name) or 0)}.old-{os.getpid()}"
            path.rename(retired)
            shutil.rmtree(retired, ignore_errors=True)
            removed.append(path.name)
    return removed


def sweep(directory: Path) -> None:
    """Remove the temporary directories of writers that no longer live. Not while this process writes a checkpoint."""
    for path in _children(directory):
        match = _TEMPORARY.fullmatch(path.name)
        if match and (int(match[1]) == os.getpid() or not _alive(int(match[1]))):
            shutil.rmtree(path, ignore_errors=True)


def _short(step: int) -> str:
    return f"step-{step}"


def _safe(name: str) -> str:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or str(pure) in (".", MANIFEST_NAME) or str(pure) != name:
        raise CheckpointRejected(f"{name!r} is no file name for a part of a checkpoint")
    return name


def _manifest(step: int, entries: Mapping[str, FileEntry], extra: Mapping[str, Any]) -> dict[str, Any]:
    files = {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in entries.items()}
    manifest = {"v": VERSION, "step": step, "files": files, "extra": dict(extra)}
    return {**manifest, "sha256": _digest(manifest)}


def _digest(manifest: Mapping[str, Any]) -> str:
    canonical = json.dumps(manifest, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _write_file(path: Path, part: Part) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = _HashingWriter(file)
        if isinstance(part, bytes):
            writer.write(part)
        else:
            part(cast(BinaryIO, writer))
        file.flush()
        os.fsync(file.fileno())
    return writer.entry()


def _hash_file(path: Path) -> FileEntry:
    digest = hashlib.sha256()
    count = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            count += len(chunk)
    return FileEntry(count, digest.hexdigest())


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(path: Path) -> Iterator[str]:
    for folder, directories, names in os.walk(path):
        for name in directories + names:
            child = Path(folder, name)
            relative = child.relative_to(path).as_posix()
            if name in names and child.is_file():
                yield relative
            elif name in names or child.is_symlink():
                raise CheckpointRejected(f"{relative} is neither a file nor a directory")


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _steps(directory: Path) -> list[Path]:
    """The directories named like checkpoints, the highest step first; by number: as text, step-1000 < step-900."""
    found = [(parse_checkpoint_name(path.name), path) for path in _children(directory) if path.is_dir()]
    return [path for _, path in sorted(((s, p) for s, p in found if s is not None), reverse=True)]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
