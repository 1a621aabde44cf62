"""The controller's own loop: who is driven, and that no jump of the clock makes it let go of a job."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.controller import __main__ as controller
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobStatus
from tests.fake_store import FakeStore
from tests.records import job


class Clock:
    """Each sleep is an hour: a laptop that is opened and closed again."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0
        self.sleeps = 0
        self.after: dict[int, Any] = {}

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += 3600
        self.sleeps += 1
        self.after.pop(self.sleeps, lambda: None)()


def test_a_job_is_driven_once_however_long_the_computer_slept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, store, clock = Home(tmp_path, tmp_path / "local"), FakeStore(), Clock()
    store.add(replace(job(), driver=home.id))
    store.add(replace(job(job_id="theirs", name="theirs"), driver="another"))
    driven: list[str] = []
    over = threading.Event()

    def end() -> None:
        stored = store.get(job().job_id)
        store.save(replace(stored.record, status=JobStatus.SUCCEEDED), version=stored.version, etag=None)
        over.set()
        for thread in threading.enumerate():
            if thread.name == job().job_id:
                thread.join(10)

    def drive(_self: controller.Controller, job_id: str) -> None:
        driven.append(job_id)
        assert over.wait(10)

    monkeypatch.setattr(controller.Controller, "_drive", drive)
    clock.after = {20: end}
    controller.Controller(home, store, clock).run()
    assert clock.sleeps >= 20
    assert driven == [job().job_id]
