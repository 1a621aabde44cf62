"""`gc --data`: the checkpoints, snapshots, records and file contents of jobs that are over, out of their bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cloudtrain.provisioner.decide.stale_data import JobData, job_data, jobs_in, launching, manifests, unneeded
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.launch.clearing import AT_A_TIME, Scene, records
from cloudtrain.provisioner.ports import ObjectStore
from cloudtrain.provisioner.things import StoredObject


@dataclass(frozen=True, slots=True)
class Hoard:
    """What a bucket holds of jobs that are over. ``files``: contents that no other job needs; ``trouble``: why they
    can't be told."""

    bucket: str
    region: str
    jobs: tuple[JobData, ...]
    files: tuple[StoredObject, ...]
    trouble: str = ""

    @property
    def ending(self) -> tuple[JobData, ...]:
        """The jobs whose objects may go."""
        return tuple(data for data in self.jobs if data.end)

    @property
    def count(self) -> int:
        """How many objects may go."""
        return sum(len(data.keys) for data in self.ending) + len(self.files)

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return sum(data.size for data in self.ending) + sum(item.size for item in self.files)


def hoard(scene: Scene, bucket: str, region: str) -> Hoard:
    """Look through a bucket: list it, then read the records and the manifests. Raises AccessError, CloudUnreachable."""
    objects = scene.objects(bucket, region)
    contents = scene.inventory.contents(bucket, region)
    known = records([objects], jobs_in(contents))
    jobs = job_data(contents, known, scene.owner)
    now = scene.clock.now()
    if begun := launching(contents, known, now):
        return Hoard(bucket, region, jobs, (), f"file contents stay: job {begun[0]} may be sending its own right now")
    try:
        named = _named(objects, manifests(contents, jobs))
    except CloudtrainError as error:
        return Hoard(bucket, region, jobs, (), f"file contents stay: {error}")
    return Hoard(bucket, region, jobs, unneeded(contents, named, now))


def delete(scene: Scene, found: Hoard, say: Callable[[str], None]) -> tuple[str, ...]:
    """Delete what may go; what is still there, a line each. A job that is not over any more keeps its objects, and so
    does every file that a manifest written meanwhile names. May be broken off and repeated."""
    objects = scene.objects(found.bucket, found.region)
    for data in found.ending:
        again = job_data(
            [StoredObject(key, 0, 0.0) for key in data.keys], records([objects], [data.job_id]), scene.owner
        )
        if not again or not again[0].end:
            say(f"{data.job_id} stays: {again[0].why if again else 'it is gone'}")
            continue
        objects.delete(data.keys[:-1])
        objects.delete(data.keys[-1:])  # the record: until then a broken-off deletion is found again
    if found.files:
        now = hoard(scene, found.bucket, found.region)
        still = {item.key for item in now.files}
        objects.delete([item.key for item in found.files if item.key in still])
    wanted = {key for data in found.ending for key in data.keys} | {item.key for item in found.files}
    there = {item.key for item in scene.inventory.contents(found.bucket, found.region)}
    return tuple(sorted(wanted & there))


def _named(objects: ObjectStore, keys: tuple[str, ...]) -> set[str]:
    """The contents that manifests name. Raises CloudtrainError for one that can't be read."""

    def read(key: str) -> set[str]:
        found = objects.get(key)
        try:
            rows = json.loads(found[0])["files"] if found is not None else []
            return {str(row["sha256"]) for row in rows if "sha256" in row}
        except (ValueError, KeyError, TypeError) as error:
            raise CloudtrainError(f"the manifest {key} can't be read ({error})") from error

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return set().union(*pool.map(read, keys))
