"""The workdir, taken once, by content: what every attempt of a job runs, whatever is edited later."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.shipping.tree import Changed, Entry, Tree

TAR_NAME = "snapshot.tar"
MANIFEST_NAME = "snapshot.json"
LIMIT_BYTES = 1 << 30  # ships in minutes at most; data belongs in a bucket
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
    what = f"workdir {root}"
    into.mkdir(parents=True, exist_ok=True)
    changed = ""
    for _ in range(TRIES):
        try:
            return _Shot(Tree(root, what=what, leave_out=(into, *leave_out))).write(into)
        except Changed as change:
            changed = str(change)
    raise UsageError(
        f"{what}: {changed} keeps changing while it is read; stop what writes to it, or name it in "
        ".cloudtrainignore or .gitignore"
    )


class _Shot:
    """A tree on its way into a tar."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def write(self, into: Path) -> Snapshot:
        """Write tar and manifest, each replaced whole. Raises Changed or UsageError."""
        total = sum(entry.size for entry in self.tree.entries)
        if total > LIMIT_BYTES:
            raise self._too_big(total)
        partial = into / f"{TAR_NAME}.partial"
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
            rows = [self._add(tar, entry) for entry in self.tree.entries]
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        manifest = into / f"{MANIFEST_NAME}.partial"
        # ASCII: names that are not UTF-8 travel as lone surrogates in \u form, which no UTF-8 file could hold
        manifest.write_text(json.dumps({"v": 1, "sha256": digest, "files": rows}, ensure_ascii=True), encoding="ascii")
        partial.replace(into / TAR_NAME)
        manifest.replace(into / MANIFEST_NAME)
        files = sum(not entry.is_folder for entry in self.tree.entries)
        return Snapshot(digest, files, total, tuple(sorted(self.tree.omitted)))

    def _add(self, tar: tarfile.TarFile, entry: Entry) -> dict[str, Any]:
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

    def _add_content(self, tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry) -> str:
        with self.tree.opened(entry) as file:
            reader = _HashingReader(file)
            try:
                tar.addfile(member, reader)
            except OSError as error:  # tarfile's word for a file that became shorter
                if "unexpected end of data" not in str(error):
                    raise self.tree.unreadable(entry.path, error) from error
                raise Changed(repr(entry.path)) from error
        return reader.digest.hexdigest()

    def _too_big(self, total: int) -> UsageError:
        sizes: dict[str, int] = {}
        for entry in self.tree.entries:
            top, slash, _ = entry.path.partition("/")
            sizes[top + slash] = sizes.get(top + slash, 0) + entry.size
        biggest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        named = ", ".join(f"{name!r} {size / 2**30:.2f} GiB" for name, size in biggest)
        return UsageError(
            f"{self.tree.what}: {total / 2**30:.2f} GiB, more than the {LIMIT_BYTES / 2**30:g} GiB that are "
            f"shipped; biggest: {named}; name what the job does not need in {self.tree.ignore_name}"
        )


class _HashingReader(io.RawIOBase):
    """Passes a file through and hashes what passed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data
