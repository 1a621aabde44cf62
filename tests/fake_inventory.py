"""The Inventory port in memory: machines take their time to shut down, groups wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cloudtrain.provisioner.errors import AccessError, RegionDenied
from cloudtrain.provisioner.names import TAG_JOB, TAG_OWNER
from cloudtrain.provisioner.things import IN_USE, Kind, StoredObject, Thing
from tests.fakes import FakeClock, FakeObjectStore


class FakeInventory:
    """One account with some buckets (name -> region and contents). ``refuse``: ids that can't be ended, and why."""

    def __init__(self, clock: FakeClock, owner: str, *, shutdown_s: float = 30.0) -> None:
        self.clock = clock
        self.owner = owner
        self.shutdown_s = shutdown_s
        self.release_s = 0.0  # from a machine's end to its group being free
        self.things: list[Thing] = []
        self.buckets: dict[str, tuple[str, FakeObjectStore]] = {}
        self.denied: set[str] = set()  # buckets and regions that may not be looked at
        self.refuse: dict[str, str] = {}
        self.modified_at = 0.0
        self.asked: list[str] = []  # ids whose end was asked for
        self._ending: dict[str, float] = {}
        self._held_until: dict[str, float] = {}  # job id -> when its group is free

    def regions(self) -> tuple[str, ...]:
        return ("us-east-1", "us-west-2")

    def look(self, region: str) -> tuple[tuple[Thing, ...], tuple[str, ...]]:
        if region in self.denied:
            raise RegionDenied(f"{region}: UnauthorizedOperation")
        self._settle()
        mine = [t for t in self.things if t.region == region and t.tag(TAG_OWNER) == self.owner and t.tag(TAG_JOB)]
        return tuple(replace(t, state="shutting-down") if t.thing_id in self._ending else t for t in mine), ()

    def end(self, things: Iterable[Thing]) -> tuple[tuple[str, str], ...]:
        self._settle()
        refused = []
        for thing in things:
            self.asked.append(thing.thing_id)
            if thing.thing_id in self.refuse:
                refused.append((thing.thing_id, self.refuse[thing.thing_id]))
            elif thing.kind is Kind.MACHINE:
                self._ending.setdefault(thing.thing_id, self.clock.now() + self.shutdown_s)
            elif thing.kind is Kind.GROUP and self._in_use(thing):
                refused.append((thing.thing_id, f"{thing.thing_id} {IN_USE}"))
            else:
                self.things = [t for t in self.things if t.thing_id != thing.thing_id]
        return tuple(refused)

    def bucket_region(self, bucket: str) -> str | None:
        if bucket in self.denied:
            raise AccessError(f"bucket {bucket}: 403")
        return self.buckets[bucket][0] if bucket in self.buckets else None

    def uploads(self, bucket: str, region: str) -> tuple[Thing, ...]:
        return tuple(t for t in self.things if t.kind is Kind.UPLOAD and t.bucket == bucket)

    def contents(self, bucket: str, region: str) -> tuple[StoredObject, ...]:
        found = self.buckets[bucket][1].list("")
        return tuple(StoredObject(key, size, self.modified_at) for key, size in found)

    def _in_use(self, group: Thing) -> bool:
        jobs = {t.tag(TAG_JOB) for t in self.things if t.kind is Kind.MACHINE}
        return group.tag(TAG_JOB) in jobs or self.clock.now() < self._held_until.get(group.tag(TAG_JOB), 0.0)

    def _settle(self) -> None:
        gone = {name for name, at in self._ending.items() if self.clock.now() >= at}
        for thing in self.things:
            if thing.thing_id in gone:
                self._held_until[thing.tag(TAG_JOB)] = self._ending[thing.thing_id] + self.release_s
        self.things = [t for t in self.things if t.thing_id not in gone]
