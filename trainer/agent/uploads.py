"""Checkpoints on their way to the bucket: parts first, manifest last, then ``latest.json`` by compare-and-set."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import time
from pathlib import Path

from .. import checkpoint
from ..checkpoint import CheckpointRejected
from ..contract import MANIFEST_NAME, Keys, Latest, latest_from_json, parse_checkpoint_name, to_json
from .decide_publish import Publish, deletions, may_publish, stored
from .objects import Conflict, Fenced, Objects, ObjectsError

logger = logging.getLogger(__name__)

SETTLE_S = 2.0  # a script's own checkpoint, without a manifest, must have been left alone for so long
_MAX_CONFLICTS = 10  # only a controller that claims a generation competes for latest.json: seldom and once


class Publisher:
    """Uploads what appears under ``directory`` and publishes it under ``generation``. One thread at a time."""

    def __init__(
        self,
        objects: Objects,
        keys: Keys,
        generation: int,
        directory: Path,
        *,
        staging: Path,
        keep: int,
        durable_step: int | None = None,
        damaged: frozenset[str] = frozenset(),
    ) -> None:
        """``staging``: a folder of ours on the same disk. ``damaged``: prefixes in the bucket that were rejected."""
        self._objects = objects
        self._keys = keys
        self._generation = generation
        self._directory = directory
        self._staging = staging
        self._keep = keep
        self._damaged = damaged
        self._refused: dict[tuple[str, int], str] = {}
        self._published: list[Path] = []
        self.durable_step = durable_step

    @property
    def rejected(self) -> tuple[str, ...]:
        """Local checkpoints that were not published, each with its reason."""
        return tuple(f"{name}: {reason}" for (name, _), reason in self._refused.items())

    def pending(self) -> Path | None:
        """The newest local checkpoint that is not published and was not refused."""
        return next((path for path in self._waiting()), None)

    def publish_newest(self, *, settle_s: float = SETTLE_S) -> bool:
        """Publish the newest whole checkpoint; older ones that were passed over are not uploaded.

        Returns whether one was published. Raises ObjectsError, Fenced, OSError (a full disk).
        """
        for path in self._waiting():
            if not (path / MANIFEST_NAME).exists() and _age_s(path) < settle_s:
                continue  # perhaps still being written
            try:
                step = self._publish(path)
            except FileNotFoundError:
                continue  # pruned by its writer, or replaced, meanwhile
            except CheckpointRejected as error:
                logger.warning("%s is not published: %s", path.name, error.reason)
                self._refused[_identity(path)] = error.reason
                continue
            finally:
                shutil.rmtree(self._staging, ignore_errors=True)
            self.durable_step = max(step, self.durable_step or 0)
            self._published.append(path)
            return True
        return False

    def check_fence(self) -> None:
        """Raises Fenced once a newer generation is claimed; ObjectsError."""
        found = self._objects.get(self._keys.latest)
        if found is not None and _latest(found[0]).generation > self._generation:
            raise Fenced

    def prune_bucket(self) -> None:
        """Delete checkpoints in the bucket that newer published ones replace. Raises ObjectsError."""
        found = self._objects.get(self._keys.latest)
        if found is None or (latest := _latest(found[0])).generation != self._generation:
            return
        keys = [key for key, _ in self._objects.list(f"{self._keys.prefix}/checkpoints/")]
        doomed = deletions(stored(self._keys.prefix, keys), latest=latest, keep=self._keep)
        self._objects.delete([key for key in doomed if key.endswith(f"/{MANIFEST_NAME}")])
        self._objects.delete([key for key in doomed if not key.endswith(f"/{MANIFEST_NAME}")])

    def prune_local(self) -> None:
        """Delete local checkpoints of a script that does not do so itself: published ones, never the newest."""
        while len(self._published) > max(1, self._keep):
            path = self._published.pop(0)
            retired = path.with_name(f".{path.name}.old-{os.getpid()}")
            try:
                path.rename(retired)  # renamed first: half a checkpoint must not lie under a checkpoint's name
            except OSError:
                continue
            shutil.rmtree(retired, ignore_errors=True)

    def _waiting(self) -> list[Path]:
        """Local checkpoints above the published step, newest first."""
        found = []
        try:
            for path in self._directory.iterdir():
                step = parse_checkpoint_name(path.name)
                if step is not None and step > (-1 if self.durable_step is None else self.durable_step):
                    found.append((step, path))
            return [p for _, p in sorted(found, reverse=True) if p.is_dir() and _identity(p) not in self._refused]
        except FileNotFoundError:
            return []  # one went meanwhile, or the folder: it is the job's to remove; look again next time

    def _publish(self, path: Path) -> int:
        step = parse_checkpoint_name(path.name)
        if step is None:
            raise CheckpointRejected("not named like a checkpoint")
        key = self._keys.checkpoint(self._generation, step)
        there = self._objects.get(f"{key}/{MANIFEST_NAME}")
        # One that is there was uploaded by an agent before us, which could not publish it; it can't change.
        manifest = there[0] if there is not None else self._upload(path, key)
        return self._publish_latest(Latest(self._generation, step, key, hashlib.sha256(manifest).hexdigest()))

    def _upload(self, path: Path, key: str) -> bytes:
        """Parts, then the manifest; returns the manifest's bytes."""
        try:
            pinned = _pin(path, self._staging / path.name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            pinned = path  # a full disk has no room for links; what is whole must still get out
        before = _fingerprint(pinned)
        if (pinned / MANIFEST_NAME).exists():
            names = checkpoint.verify(pinned).files
            manifest = (pinned / MANIFEST_NAME).read_bytes()
        else:
            described = checkpoint.describe(pinned)
            names = described["files"]
            manifest = checkpoint.encode(described)
        for name in names:
            self._objects.upload_file(pinned / name, f"{key}/{name}")
        now = _fingerprint(path)  # {} once its writer has pruned it; then the pinned files are all there was
        if _fingerprint(pinned) != before or (now and now != before):
            raise FileNotFoundError(f"{path.name} changed while it was uploaded")
        try:
            self._objects.put(f"{key}/{MANIFEST_NAME}", manifest, if_none_match=True)
        except Conflict:
            there = self._objects.get(f"{key}/{MANIFEST_NAME}")  # ours, if the answer to an earlier try got lost
            if there is None or there[0] != manifest:
                raise ObjectsError(f"{key} was written by another agent of this generation") from None
        return manifest

    def _publish_latest(self, new: Latest) -> int:
        """Name the checkpoint the latest, unless a newer one is; returns the step that is published then."""
        for _ in range(_MAX_CONFLICTS):
            found = self._objects.get(self._keys.latest)
            latest = None if found is None else _latest(found[0])
            decision = may_publish(
                latest, generation=new.generation, step=new.step or 0, key=new.key or "", damaged=self._damaged
            )
            if decision is Publish.FENCED:
                raise Fenced
            if decision is Publish.UNCLAIMED:
                raise ObjectsError(f"{self._keys.latest} does not name generation {new.generation} yet")
            if decision is not Publish.PUBLISH:
                return (latest.step if latest is not None else None) or new.step or 0
            data = to_json(new).encode()
            try:
                if found is None:
                    self._objects.put(self._keys.latest, data, if_none_match=True)
                else:
                    self._objects.put(self._keys.latest, data, if_match=found[1])
            except Conflict:
                continue
            logger.info("published step %s", new.step)
            return new.step or 0
        raise ObjectsError(f"{self._keys.latest} kept changing under us")


def read_latest(objects: Objects, keys: Keys) -> Latest | None:
    """``latest.json``; None where there is none. Raises ObjectsError, also for a damaged one."""
    found = objects.get(keys.latest)
    return None if found is None else _latest(found[0])


def _latest(data: bytes) -> Latest:
    try:
        return latest_from_json(data)
    except (ValueError, TypeError) as error:
        raise ObjectsError(f"latest.json in the bucket can't be read: {error}") from None


def _identity(path: Path) -> tuple[str, int]:
    """A directory and its state: one that was refused is looked at again once it changed."""
    manifest = path / MANIFEST_NAME
    return path.name, (manifest if manifest.exists() else path).stat().st_mtime_ns


def _age_s(path: Path) -> float:
    """How long ago anything in the directory last changed."""
    try:
        newest = max(item.stat().st_mtime for item in (path, *path.rglob("*")))
    except FileNotFoundError:
        return 0.0
    return time.time() - newest


def _pin(path: Path, target: Path) -> Path:
    """Hard links to a checkpoint's files: they stay whole for us when its writer prunes it. No bytes are copied."""
    shutil.rmtree(target.parent, ignore_errors=True)
    for folder, _, names in os.walk(path):
        place = target / Path(folder).relative_to(path)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                os.link(Path(folder, name).resolve(strict=True), place / name)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                shutil.copy2(Path(folder, name), place / name)
    if not target.is_dir():
        raise FileNotFoundError(f"{path.name} went away")
    return target


# A file on another disk; another user's on a kernel that protects hard links; a file system without them.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP)


def _fingerprint(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file; {} once the directory is gone."""
    seen = {}
    for folder, _, names in os.walk(path):
        for name in names:
            state = Path(folder, name).stat()
            seen[str(Path(folder, name).relative_to(path))] = (state.st_size, state.st_mtime_ns)
    return seen
