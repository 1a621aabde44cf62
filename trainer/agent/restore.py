"""The newest whole checkpoint, from the bucket to the local disk, believed only when every byte matches."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .. import checkpoint
from ..checkpoint import CheckpointRejected
from ..contract import MANIFEST_NAME, Keys, Latest, checkpoint_name, parse_checkpoint_name
from .decide_publish import candidates, stored
from .objects import Fenced, Objects
from .uploads import read_latest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """What a resume found. ``step`` and ``path`` are None where there is no checkpoint to resume from.

    ``rejected``: one line for each checkpoint that could not be used; ``damaged``: their prefixes in the bucket.
    """

    step: int | None = None
    path: Path | None = None
    rejected: tuple[str, ...] = ()
    damaged: frozenset[str] = frozenset()


def restore(objects: Objects, keys: Keys, generation: int, directory: Path) -> Restored:
    """Bring the newest whole checkpoint to ``directory``; damaged ones are named and the next older one is tried.

    A checkpoint that is already there and whole is not downloaded again. Raises ObjectsError (nothing is concluded from
    a bucket that does not answer), Fenced, OSError (a full disk).
    """
    latest = read_latest(objects, keys)
    if latest is not None and latest.generation > generation:
        raise Fenced
    if latest is None or latest.step is None:
        return Restored()
    found = stored(keys.prefix, (key for key, _ in objects.list(f"{keys.prefix}/checkpoints/")))
    rejected: list[str] = []
    damaged: set[str] = set()
    for prefix in candidates(latest, found):
        name = prefix.rpartition("/")[2]
        try:
            path = _fetch(objects, prefix, latest, directory)
        except CheckpointRejected as error:
            logger.warning("checkpoint %s is rejected: %s", name, error.reason)
            rejected.append(f"{name}: {error.reason}")
            damaged.add(prefix)
            continue
        step = checkpoint.read_manifest(path).step
        return Restored(step, path, tuple(rejected), frozenset(damaged))
    rejected.append("no checkpoint in the bucket is whole: training starts from the beginning")
    return Restored(rejected=tuple(rejected), damaged=frozenset(damaged))


def restore_local(directory: Path, than: Restored) -> Restored:
    """The better of ``than`` and what lies on this disk, for an agent that was killed and came back.

    What is newer and can't be verified was perhaps being written: it is removed, or it would be published, and stand in
    the way of a script that comes to that step again.
    """
    path, refused = checkpoint.newest(directory)
    rejected = (*than.rejected, *(f"{name} on this disk: {reason}" for name, reason in refused))
    for name, _ in refused:
        if (parse_checkpoint_name(name) or 0) > (than.step or 0):
            shutil.rmtree(directory / name, ignore_errors=True)
    if path is None or (step := checkpoint.read_manifest(path).step) <= (than.step if than.step is not None else -1):
        return Restored(than.step, than.path, rejected, than.damaged)
    return Restored(step, path, rejected, than.damaged)


def _fetch(objects: Objects, prefix: str, latest: Latest, directory: Path) -> Path:
    """The checkpoint under ``prefix`` as a local directory. Raises CheckpointRejected, ObjectsError, OSError."""
    found = objects.get(f"{prefix}/{MANIFEST_NAME}")
    if found is None:
        raise CheckpointRejected(f"{MANIFEST_NAME} is missing in the bucket")
    data = found[0]
    if prefix == latest.key and hashlib.sha256(data).hexdigest() != latest.manifest_sha256:
        raise CheckpointRejected(f"{MANIFEST_NAME} is not the one that was published")
    manifest = checkpoint.decode(data)
    target = directory / checkpoint_name(manifest.step)
    if _whole(target, data):
        return target
    there = {key for key, _ in objects.list(f"{prefix}/")}
    temporary = directory / f".step-{manifest.step}.tmp-{os.getpid()}"
    # Verified under the name that its manifest is checked against.
    staged = temporary / target.name
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for name in manifest.files:
            if f"{prefix}/{name}" not in there:
                raise CheckpointRejected(f"{name} is missing in the bucket")
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            objects.download(f"{prefix}/{name}", staged / name)
        staged.mkdir(parents=True, exist_ok=True)
        (staged / MANIFEST_NAME).write_bytes(data)
        checkpoint.verify(staged)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _whole(path: Path, manifest: bytes) -> bool:
    try:
        checkpoint.verify(path)
        return (path / MANIFEST_NAME).read_bytes() == manifest
    except (CheckpointRejected, OSError):
        return False
