"""What may be published, restored and deleted in the bucket. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from ..contract import MANIFEST_NAME, Latest, parse_checkpoint_name


class Publish(Enum):
    """What to do with ``latest.json`` for a checkpoint whose parts and manifest are in the bucket."""

    PUBLISH = "publish"
    ALREADY = "already"  # it is the one that is published: an answer of ours got lost
    OLDER = "older"  # a newer step is published: leave it
    FENCED = "fenced"  # a newer generation exists: publish nothing any more
    UNCLAIMED = "unclaimed"  # our generation is not claimed (yet)


@dataclass(frozen=True)
class Stored:
    """A checkpoint in the bucket. ``whole``: its manifest, which is written last, is there."""

    step: int
    generation: int
    key: str  # its prefix
    whole: bool
    objects: tuple[str, ...]


def may_publish(
    latest: Latest | None, *, generation: int, step: int, key: str, damaged: Collection[str] = ()
) -> Publish:
    """Whether a checkpoint of ours may become the latest. ``damaged``: prefixes that we read and had to reject."""
    if latest is None:
        return Publish.PUBLISH
    if latest.generation > generation:
        return Publish.FENCED
    if latest.generation < generation:
        return Publish.UNCLAIMED
    if latest.key == key:
        return Publish.ALREADY
    if latest.step is not None and latest.step >= step and latest.key not in damaged:
        return Publish.OLDER
    return Publish.PUBLISH


def stored(prefix: str, keys: Iterable[str]) -> tuple[Stored, ...]:
    """The checkpoints among a bucket's keys, newest step first. ``prefix``: Keys.prefix."""
    start = f"{prefix}/checkpoints/"
    found: dict[str, list[str]] = {}
    for key in keys:
        if key.startswith(start) and "/" in key[len(start) :]:
            found.setdefault(key[len(start) :].partition("/")[0], []).append(key)
    checkpoints = []
    for name, objects in found.items():
        generation, _, rest = name.partition("-")
        step = parse_checkpoint_name(rest)
        digits = generation[1:]
        if step is not None and generation.startswith("g") and digits.isascii() and digits.isdigit():
            whole = f"{start}{name}/{MANIFEST_NAME}" in objects
            checkpoints.append(Stored(step, int(digits), start + name, whole, tuple(objects)))
    return tuple(sorted(checkpoints, key=lambda c: (c.step, c.generation), reverse=True))


def candidates(latest: Latest | None, found: Iterable[Stored]) -> tuple[str, ...]:
    """The prefixes to try for a resume, best first: the published one, then each whole one of no higher step.

    What was never published is not tried: its writer may have been fenced.
    """
    if latest is None or latest.step is None or latest.key is None:
        return ()
    others = [c.key for c in found if c.whole and c.step <= latest.step and c.key != latest.key]
    return (latest.key, *others)


def deletions(found: Iterable[Stored], *, latest: Latest, keep: int) -> tuple[str, ...]:
    """The objects that may go once ``latest`` is published, in the order to delete them.

    The published one and the newest whole ones before it are kept, ``keep`` in all and at least one. Nothing of a step
    at or above the published one goes: it is the published one, or somebody must look at it. A manifest goes before
    its parts, so that a half-deleted checkpoint is not taken for a whole one.
    """
    if latest.step is None:
        return ()
    older = [c for c in found if c.step < latest.step and c.key != latest.key]
    spared = [c.key for c in older if c.whole][: max(0, keep - 1)]
    doomed = [c for c in older if c.key not in spared]
    order = [key for c in doomed for key in sorted(c.objects, key=lambda key: not key.endswith(f"/{MANIFEST_NAME}"))]
    return tuple(order)
