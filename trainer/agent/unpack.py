"""The workdir snapshot, verified and written byte for byte.

``snapshot.json`` says what ``snapshot.tar`` must hold:

    {"v": 1, "sha256": "<of the tar>", "files": [{"path": "a/b.py", "mode": 420, "size": 10, "sha256": "..."},
     {"path": "link", "link": "a/b.py"}, {"path": "empty", "dir": true, "mode": 493}]}

Nothing is taken from the tar that the manifest does not name, nothing may lie or point outside, and every byte is
digested while it is written. The tree appears under its name whole or not at all. tarfile's own ``filter="data"``
changes modes, and up to Python 3.10.12 it refuses honest links (CPython gh-107845): the checks here are stricter.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

_CHUNK_BYTES = 1 << 20
_MODE_BITS = 0o777


class UnpackError(Exception):
    """The snapshot is not what its manifest says. One line."""


@dataclass(frozen=True)
class Entry:
    """One path of the snapshot: a file, a symbolic link (``link``), or a directory."""

    path: str
    mode: int = 0o755
    size: int = 0
    sha256: str | None = None
    link: str | None = None
    etag: str | None = None  # of a file that stays in the user's own bucket, instead of the digest

    @property
    def is_directory(self) -> bool:
        """Neither file nor link."""
        return self.sha256 is None and self.link is None and self.etag is None


@dataclass(frozen=True)
class Manifest:
    """A snapshot's manifest, its paths checked."""

    sha256: str
    entries: dict[str, Entry]
    where: str = "the workdir"  # for messages

    @property
    def total_bytes(self) -> int:
        """What the files take."""
        return sum(entry.size for entry in self.entries.values())


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file. Raises UnpackError, OSError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["v"] != 1:
            raise UnpackError(f"{path.name} has version {raw['v']}, this agent reads version 1")
        manifest = Manifest(str(raw["sha256"]), read_entries(raw["files"], "the workdir"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnpackError(f"{path.name} can't be read as a manifest: {error!r}") from None
    return manifest


def read_entries(files: list[dict[str, Any]], where: str) -> dict[str, Entry]:
    """A manifest's ``files`` by their paths, each checked to lie, and to point, inside of ``where``.

    Raises UnpackError; KeyError, TypeError, ValueError, AttributeError for what is no such list.
    """
    entries = {str(item["path"]): _entry(item) for item in files}
    for entry in entries.values():
        _check_inside(entry, entries, where)
    return entries


def _entry(item: dict[str, Any]) -> Entry:
    path = str(item["path"])
    if "link" in item:
        return Entry(path, link=str(item["link"]))
    if item.get("dir"):
        return Entry(path, mode=int(item["mode"]))
    mode, size = int(item["mode"]), int(item["size"])
    if "etag" in item:
        return Entry(path, mode, size, etag=str(item["etag"]))
    return Entry(path, mode, size, sha256=str(item["sha256"]))


def _check_inside(entry: Entry, entries: dict[str, Entry], where: str) -> None:
    path = entry.path
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path in ("", ".") or "\0" in path:
        raise UnpackError(f"{path!r} is no path inside {where}")
    for parent in pure.parents:
        above = entries.get(str(parent))
        if above is not None and not above.is_directory:
            raise UnpackError(f"{path!r} lies below {above.path!r}, which is no directory")
    if entry.link is not None:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.link))
        if entry.link.startswith("/") or target == ".." or target.startswith("../"):
            raise UnpackError(f"the link {path!r} points outside of {where}, to {entry.link!r}")


class _Digesting:
    """A file that digests what is read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def unpack(tar: Path, manifest: Manifest, target: Path) -> None:
    """Write the snapshot to ``target``, replacing what is there, whole or not at all. Repeating it is harmless.

    Raises UnpackError where tar and manifest disagree, OSError (a full disk). Then ``target`` is as it was.
    """
    fresh = target.with_name(f".{target.name}.new")
    old = target.with_name(f".{target.name}.old")
    for leftover in (fresh, old):
        remove(leftover)
    try:
        fresh.mkdir(parents=True)
        with tar.open("rb") as file:
            source = _Digesting(file)
            missing = _write_members(source, manifest, fresh)
            while source.read(_CHUNK_BYTES):
                pass
        if source.digest.hexdigest() != manifest.sha256:
            raise UnpackError(f"{tar.name} arrived damaged: its SHA-256 is not the manifest's")
        if missing:
            raise UnpackError(f"{tar.name} lacks {len(missing)} of the manifest's paths, {min(missing)!r} first")
        check_links(manifest, fresh)
        set_directory_modes(manifest, fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        remove(fresh)
        raise
    remove(old)


def _write_members(source: _Digesting, manifest: Manifest, root: Path) -> set[str]:
    """Write each member of the tar under ``root``; returns the manifest's paths that did not come."""
    missing = set(manifest.entries)
    try:
        with tarfile.open(fileobj=source, mode="r|", encoding="utf-8") as archive:  # type: ignore[call-overload] # only read() is used
            for member in archive:
                path = member.name.rstrip("/")
                entry = manifest.entries.get(path)
                if entry is None or path not in missing:
                    raise UnpackError(f"the snapshot holds {member.name!r}, which its manifest does not name (once)")
                missing.remove(path)
                _write_member(archive, member, entry, root / path)
    except tarfile.TarError as error:
        raise UnpackError(f"the snapshot is no whole tar: {error}") from None
    return missing


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.is_directory and member.isdir():
        path.mkdir(exist_ok=True)
    elif entry.link is not None and member.issym() and member.linkname == entry.link:
        path.symlink_to(entry.link)
    elif entry.sha256 is not None and member.isreg():
        if member.size != entry.size or member.issparse():  # some kilobytes may stand for a disk full of zeros
            raise UnpackError(f"{entry.path!r} has {member.size} bytes in the snapshot, {entry.size} in its manifest")
        content = archive.extractfile(member)
        if content is None:
            raise UnpackError(f"{entry.path!r} has no content in the snapshot")
        _write_file(content, entry, path)
    else:
        raise UnpackError(f"{entry.path!r} is of another kind in the snapshot than in its manifest")


def _write_file(content: IO[bytes], entry: Entry, path: Path) -> None:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
        os.fchmod(file.fileno(), entry.mode & _MODE_BITS)  # exactly, whatever the umask
    if digest.hexdigest() != entry.sha256:
        raise UnpackError(f"{entry.path!r} arrived damaged: its SHA-256 is not the manifest's")


def check_links(manifest: Manifest, root: Path) -> None:
    """Raise UnpackError for a link that leads outside, as the file system resolves it: a chain of links may lead where
    none of them does by its text."""
    real = root.resolve()
    for entry in manifest.entries.values():
        # realpath: Path.resolve raises for a loop of links, which is odd and harmless.
        if entry.link is not None and not Path(os.path.realpath(root / entry.path)).is_relative_to(real):
            raise UnpackError(f"the link {entry.path!r} leads outside of {manifest.where}")


def set_directory_modes(manifest: Manifest, root: Path) -> None:
    """To be done last, and the deepest first: a directory without the write bit takes no more files."""
    folders = [entry for entry in manifest.entries.values() if entry.is_directory]
    for entry in sorted(folders, key=lambda e: e.path.count("/"), reverse=True):
        (root / entry.path).chmod(entry.mode & _MODE_BITS)


def remove(path: Path) -> None:
    """Remove a tree, also one whose folders take no changes; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        for folder, names, _ in os.walk(path):
            for name in names:
                child = Path(folder, name)
                if not child.is_symlink():
                    child.chmod(0o700)
        shutil.rmtree(path)
