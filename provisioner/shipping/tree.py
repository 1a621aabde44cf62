"""A folder of this computer as it may travel: what its ignore files leave, links that stay inside, files that do not
change while they are read. For the workdir, and for local ``file_mounts``.

Honours ``.cloudtrainignore`` where the folder has one at its top, else ``.gitignore``; nested ones count as in git.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.shipping.ignorefile import IgnoreFile, ignored, parse
from cloudtrain.trainer.contract import parse_checkpoint_name

ALWAYS_OUT = frozenset({".git", "__pycache__", ".venv"})


class Changed(Exception):
    """A file was not the same after it was read as before. Says which."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder, a link (``target``, as written) or a file, by its path below the root."""

    path: str
    mode: int
    size: int = 0
    target: str | None = None
    is_folder: bool = False

    @property
    def is_file(self) -> bool:
        """Neither folder nor link."""
        return self.target is None and not self.is_folder


def _is_checkpoints(folder: Path) -> bool:
    """Whether a Session keeps its checkpoints there when its script is run by hand: gigabytes that no job needs."""
    if folder.name != "checkpoints" or not folder.is_dir() or folder.is_symlink():
        return False
    return any(parse_checkpoint_name(item.name) is not None for item in folder.iterdir())


class Tree:
    """One walk over a folder. ``entries`` in the order of their bytes; ``omitted``: relative paths, a folder ends in
    "/", "(socket)" and the like for what can't travel."""

    def __init__(self, root: Path, *, what: str, leave_out: Iterable[Path] = (), only: str | None = None) -> None:
        """``root``: resolved. ``what``: how it is named in errors. ``leave_out``: paths that never travel. ``only``: of
        the whole folder this file alone, whatever the ignore files say.

        Raises UsageError for what can't be read and for links that lead out; Changed where a file went meanwhile.
        """
        self.root = root
        self.what = what
        self.ignore_name = ".cloudtrainignore" if (root / ".cloudtrainignore").is_file() else ".gitignore"
        self.omitted: list[str] = []
        hidden = {path.resolve() for path in leave_out}
        found = self._walk(hidden) if only is None else self._one(only)
        self.entries = sorted(found, key=lambda entry: os.fsencode(entry.path))

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[BinaryIO]:
        """A file, open for reading. Raises Changed where it is, or by the end is, not the one that was walked over."""
        try:
            # a pipe or link that took the file's place since the walk must neither block us nor lead elsewhere
            handle = os.open(self.root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Changed(repr(entry.path)) from error
        except OSError as error:
            raise self.unreadable(entry.path, error) from error
        with os.fdopen(handle, "rb") as file:
            before = os.fstat(handle)
            if not stat.S_ISREG(before.st_mode) or before.st_size != entry.size:
                raise Changed(repr(entry.path))
            yield file
            after = os.fstat(handle)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise Changed(repr(entry.path))

    def unreadable(self, path: str, error: OSError) -> UsageError:
        """The error for a path that can't be read."""
        return UsageError(
            f"{self.what}: can't read {path!r} ({error.strerror or error}); "
            f"make it readable, or name it in {self.ignore_name}"
        )

    def _one(self, name: str) -> Iterator[Entry]:
        for item in self._listed(""):
            if item.name == name and (entry := self._entry(name, item)) is not None:
                yield entry

    def _walk(self, hidden: set[Path]) -> Iterator[Entry]:
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
            raise self.unreadable(folder or ".", error) from error

    def _entry(self, path: str, item: os.DirEntry[str]) -> Entry | None:
        """What travels for this item; None (and named among the omitted) for what can't."""
        try:
            info = item.stat(follow_symlinks=False)
        except FileNotFoundError as error:
            raise Changed(repr(path)) from error
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISDIR(info.st_mode):
            return Entry(path, mode, is_folder=True)
        if stat.S_ISREG(info.st_mode):
            return Entry(path, mode, info.st_size)
        if stat.S_ISLNK(info.st_mode):
            return Entry(path, 0o777, target=self._link(path))
        kinds = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe"}
        self.omitted.append(f"{path} ({kinds.get(stat.S_IFMT(info.st_mode), 'device')})")
        return None

    def _link(self, path: str) -> str:
        """The link's target, which lies inside both as written and as the file system resolves it."""
        target = os.readlink(self.root / path)  # noqa: PTH115 - Path would tidy the text, and links travel as they are
        advice = f"copy the data in, or name the link in {self.ignore_name}"
        if target.startswith("/"):
            raise UsageError(
                f"{self.what}: the link {path!r} -> {target!r} is absolute and leads nowhere on another "
                f"machine; make it relative, {advice}"
            )
        written = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118,PTH120 - no I/O wanted
        real = Path(os.path.realpath(self.root / path))
        if written == ".." or written.startswith("../") or not real.is_relative_to(self.root):
            raise UsageError(f"{self.what}: the link {path!r} -> {target!r} leads out of it; {advice}")
        return target
