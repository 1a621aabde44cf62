"""The workdir, taken once, by content: what every attempt of a job runs, whatever is edited later.

Honours ``.cloudtrainignore`` where the workdir has one at its top, else ``.gitignore``; nested ones count as in git.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.ignorefile import IgnoreFile, ignored, parse
from cloudtrain.trainer.contract import parse_checkpoint_name

TAR_NAME = "snapshot.tar"
MANIFEST_NAME = "snapshot.json"
LIMIT_BYTES = 1 << 30  # ships in minutes at most; data belongs in a bucket
ALWAYS_OUT = frozenset({".git", "__pycache__", ".venv"})
TRIES = 3
# One time for every member, so that the same content makes the same tar; after 1980 in every time zone, because zip
# files (a `pip install .` on the machine makes one) can't hold earlier ones.
MTIME = 315_619_200  # 1980-01-02T00:00:00Z


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was taken. ``sha256`` is that of the tar; None where the job has no workdir."""

    sha256: str | None
    files: int
    bytes: int
    omitted: tuple[str, ...]  # relative paths; a folder ends in "/"; "(socket)" and the like for what can't travel


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    mode: int
    size: int = 0
    target: str | None = None  # of a link
    is_folder: bool = False

    @property
    def sort_key(self) -> bytes:
        return os.fsencode(self.path)


def _is_checkpoints(folder: Path) -> bool:
    """Whether a Session keeps its checkpoints there when its script is run by hand: gigabytes that no job needs."""
    if folder.name != "checkpoints" or not folder.is_dir() or folder.is_symlink():
        return False
    return any(parse_checkpoint_name(item.name) is not None for item in folder.iterdir())


class _Changed(Exception):
    """A file was not the same after it was read as before."""


def take(workdir: Path | None, into: Path, *, leave_out: Iterable[Path] = ()) -> Snapshot:
    """Write ``into/snapshot.tar`` and ``into/snapshot.json`` (its manifest); ``into`` is made where it is missing.

    ``leave_out`` names paths that never travel (our own state, earlier results). Raises UsageError for a workdir that
    can't be shipped as it stands: too big, links that lead out of it, unreadable or for ever changing files.
    """
    if workdir is None:
        return Snapshot(None, 0, 0, ())
    if not workdir.is_dir():
        raise UsageError(f"workdir {workdir}: no such folder; correct `workdir` in the job file")
    root = workdir.resolve()
    hidden = {path.resolve() for path in (into, *leave_out)}
    into.mkdir(parents=True, exist_ok=True)
    changed = ""
    for _ in range(TRIES):
        try:
            return _Scan(root, hidden).write(into)
        except _Changed as change:
            changed = str(change)
    raise UsageError(
        f"workdir {workdir}: {changed} keeps changing while it is read; "
        f"stop what writes to it, or name it in {_ignore_name(root)}"
    )


def _ignore_name(root: Path) -> str:
    return ".cloudtrainignore" if (root / ".cloudtrainignore").is_file() else ".gitignore"


class _Scan:
    """One walk over the workdir and what it found."""

    def __init__(self, root: Path, hidden: set[Path]) -> None:
        self.root = root
        self.ignore_name = _ignore_name(root)
        self.omitted: list[str] = []
        self.entries = sorted(self._walk(hidden), key=lambda entry: entry.sort_key)

    def _walk(self, hidden: set[Path]) -> Iterator[_Entry]:
        todo: list[tuple[str, tuple[IgnoreFile, ...]]] = [("", ())]
        while todo:
            folder, above = todo.pop()
            rules = (*above, *self._rules(folder))
            for item in self._listed(folder):
                path = f"{folder}/{item.name}" if folder else item.name
                is_folder = item.is_dir(follow_symlinks=False)
                out = item.name in ALWAYS_OUT or self.root / path in hidden or _is_checkpoints(self.root / path)
                if out or ignored(rules, path, is_folder=is_folder):
                    self.omitted.append(f"{path}/" if is_folder else path)
                    continue
                entry = self._entry(path, item)
                if entry is not None:
                    yield entry
                if is_folder:
                    todo.append((path, rules))

    def _rules(self, folder: str) -> tuple[IgnoreFile, ...]:
        try:
            text = (self.root / folder / self.ignore_name).read_bytes()
        except OSError:
            return ()
        return (parse(text.decode("utf-8", "surrogateescape"), folder),)

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as items:
                return list(items)
        except OSError as error:
            raise self._unreadable(folder or ".", error) from error

    def _entry(self, path: str, item: os.DirEntry[str]) -> _Entry | None:
        """What travels for this item; None (and named among the omitted) for what can't."""
        try:
            info = item.stat(follow_symlinks=False)
        except FileNotFoundError as error:
            raise _Changed(repr(path)) from error
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISDIR(info.st_mode):
            return _Entry(path, mode, is_folder=True)
        if stat.S_ISREG(info.st_mode):
            return _Entry(path, mode, info.st_size)
        if stat.S_ISLNK(info.st_mode):
            return _Entry(path, 0o777, target=self._link(path))
        kinds = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe"}
        self.omitted.append(f"{path} ({kinds.get(stat.S_IFMT(info.st_mode), 'device')})")
        return None

    def _link(self, path: str) -> str:
        """The link's target, which lies inside the workdir both as written and as the file system resolves it."""
        target = os.readlink(self.root / path)  # noqa: PTH115 - Path would tidy the text, and links travel as they are
        advice = f"copy the data in, or name the link in {self.ignore_name}"
        if target.startswith("/"):
            raise UsageError(
                f"workdir {self.root}: the link {path!r} -> {target!r} is absolute and leads nowhere on another "
                f"machine; make it relative, {advice}"
            )
        written = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118,PTH120 - no I/O wanted
        real = Path(os.path.realpath(self.root / path))
        if written == ".." or written.startswith("../") or not real.is_relative_to(self.root):
            raise UsageError(f"workdir {self.root}: the link {path!r} -> {target!r} leads out of it; {advice}")
        return target

    def write(self, into: Path) -> Snapshot:
        """Write tar and manifest, each replaced whole. Raises _Changed or UsageError."""
        total = sum(entry.size for entry in self.entries)
        if total > LIMIT_BYTES:
            raise self._too_big(total)
        partial = into / f"{TAR_NAME}.partial"
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
            rows = [self._add(tar, entry) for entry in self.entries]
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        manifest = into / f"{MANIFEST_NAME}.partial"
        # ASCII: names that are not UTF-8 travel as lone surrogates in \u form, which no UTF-8 file could hold
        manifest.write_text(json.dumps({"v": 1, "sha256": digest, "files": rows}, ensure_ascii=True), encoding="ascii")
        partial.replace(into / TAR_NAME)
        manifest.replace(into / MANIFEST_NAME)
        files = sum(not entry.is_folder for entry in self.entries)
        return Snapshot(digest, files, total, tuple(sorted(self.omitted)))

    def _add(self, tar: tarfile.TarFile, entry: _Entry) -> dict[str, Any]:
        member = tarfile.TarInfo(entry.path)
        member.mode, member.mtime = entry.mode, MTIME
        if entry.is_folder:
            member.type = tarfile.DIRTYPE
            tar.addfile(member)
            return {"path": entry.path, "dir": True, "mode": entry.mode}
        if entry.target is not None:
            member.type, member.linkname = tarfile.SYMTYPE, entry.target
            tar.addfile(member)
            return {"path": entry.path, "link": entry.target}
        member.size = entry.size
        digest = self._add_content(tar, member, entry)
        return {"path": entry.path, "mode": entry.mode, "size": entry.size, "sha256": digest}

    def _add_content(self, tar: tarfile.TarFile, member: tarfile.TarInfo, entry: _Entry) -> str:
        try:
            # a pipe or link that took the file's place since the walk must neither block us nor lead elsewhere
            handle = os.open(self.root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _Changed(repr(entry.path)) from error
        except OSError as error:
            raise self._unreadable(entry.path, error) from error
        with os.fdopen(handle, "rb") as file:
            before = os.fstat(handle)
            if not stat.S_ISREG(before.st_mode) or before.st_size != entry.size:
                raise _Changed(repr(entry.path))
            reader = _HashingReader(file)
            try:
                tar.addfile(member, reader)
            except OSError as error:  # tarfile's word for a file that became shorter
                if "unexpected end of data" not in str(error):
                    raise self._unreadable(entry.path, error) from error
                raise _Changed(repr(entry.path)) from error
            after = os.fstat(handle)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _Changed(repr(entry.path))
        return reader.digest.hexdigest()

    def _unreadable(self, path: str, error: OSError) -> UsageError:
        return UsageError(
            f"workdir {self.root}: can't read {path!r} ({error.strerror or error}); "
            f"make it readable, or name it in {self.ignore_name}"
        )

    def _too_big(self, total: int) -> UsageError:
        sizes: dict[str, int] = {}
        for entry in self.entries:
            top, slash, _ = entry.path.partition("/")
            sizes[top + slash] = sizes.get(top + slash, 0) + entry.size
        biggest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        named = ", ".join(f"{name!r} {size / 2**30:.2f} GiB" for name, size in biggest)
        return UsageError(
            f"workdir {self.root}: {total / 2**30:.2f} GiB, more than the {LIMIT_BYTES / 2**30:g} GiB that are "
            f"shipped; biggest: {named}; name what the job does not need in {self.ignore_name}"
        )


class _HashingReader(io.RawIOBase):
    """Passes a file through and hashes what passed."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data
