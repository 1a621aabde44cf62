"""One job on the fake world, driven as its controller would drive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.controller.effects import Effects
from cloudtrain.provisioner.controller.journal import Journal
from cloudtrain.provisioner.controller.loop import JobLoop, Parts
from cloudtrain.provisioner.controller.observe import Observer
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.errors import (
    CloudUnreachable,
)
from cloudtrain.provisioner.model import JobRecord
from tests.fake_agent import World
from tests.fake_store import FakeStore
from tests.records import OFFERINGS, job


class Bench:
    """One job, its home and its world; ``run`` drives it as a controller would."""

    def __init__(
        self, tmp_path: Path, world: World, offerings: tuple[Offering, ...] = OFFERINGS, **limits: Any
    ) -> None:
        """``limits``: fields of the job's spec that differ from a plain one's."""
        self.world = world
        self.store = FakeStore()
        self.job_dir = tmp_path / "job"
        self.job_dir.mkdir()
        self.gone = False
        self.turn = True  # whether a machine may be asked for now
        plain = job(created_at=world.clock.now())
        spec = replace(plain.spec, **limits)
        self.record = replace(plain, spec=spec, offerings=offerings, results=str(tmp_path / "results"))
        self.store.add(self.record)

    def loop(self) -> JobLoop:
        world = self.world
        files = AttemptFiles(self.job_dir, self.record)
        reach = Reach(world.cloud, world, world.objects, world.clock, files, self.job_dir, lambda _region: self.turn)
        parts = Parts(
            journal=Journal(self.store, world.objects, self.record.job_id),
            observer=Observer(reach),
            effects=Effects(reach),
            cloud_gone=lambda: self.gone,
        )
        return JobLoop(parts, self.store, world.clock)

    def run(self, until: Callable[[], bool] | None = None, passes: int = 3000) -> JobRecord:
        """Drive to the end, or until something holds. A loop that never ends fails the test."""
        self.world.clock.sleep(0)
        loop = self.loop()
        loop.open()
        for _ in range(passes):
            record = self.store.get(self.record.job_id).record
            if record.status.final or (until is not None and until()):
                return record
            try:
                changed = loop.pass_once()
            except CloudUnreachable:
                changed = False
            if not changed:
                self.world.clock.sleep(5.0)
        raise AssertionError(f"not finished: {self.store.get(self.record.job_id).record}")

    def events(self) -> str:
        return "\n".join(e.text for e in self.store.events(self.record.job_id))


def nothing_left(world: World) -> None:
    assert world.cloud.live() == []
    assert world.cloud.groups == set()
