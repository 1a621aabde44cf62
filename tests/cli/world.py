"""What the command line's tests stand on: a real store in a home of its own, and a controller that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.adapters import clock as clocks
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.cli.main import main
from cloudtrain.provisioner.controller import losses
from cloudtrain.provisioner.controller import process as controller_process
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from tests import forms
from tests.records import job, over

Step = Callable[["World"], None]


class World:
    """``script``: what happens at each sleep of the command under test, in order; then time goes on without news."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = Home.from_env()
        self.store = SqliteStore(self.home.db)
        self.at = 1_800_000_100.0
        self.script: list[Step] = []
        self.started_controllers = 0
        self.controller_lives = True
        self.clouds_live = True  # embedded clouds that jobs name; there is none here
        self._capsys = capsys
        monkeypatch.setattr(clocks.SystemClock, "now", lambda _: self.at)
        monkeypatch.setattr(clocks.SystemClock, "sleep", lambda _, seconds: self.sleep(seconds))
        monkeypatch.setattr(controller_process, "ensure", lambda home: self.ensure())
        settle = losses.settle
        monkeypatch.setattr(losses, "settle", lambda *args: () if self.clouds_live else settle(*args))

    def ensure(self) -> bool:
        if self.controller_lives:
            return False
        self.started_controllers += 1
        self.controller_lives = True
        return True

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        if self.script:
            self.script.pop(0)(self)
        elif self.at > 1_800_000_100 + 100_000:
            raise AssertionError("the command waits for ever")

    def add(self, record: JobRecord | None = None) -> JobRecord:
        record = replace(record or job(), driver=self.home.id)
        self.store.add(record)
        if record.status.final:
            self.change(record.job_id)
        return record

    def change(self, job_id: str, **changes: Any) -> None:
        stored = self.store.get(job_id)
        self.store.save(replace(stored.record, **changes), version=stored.version, etag=None)

    def live(self, job_id: str, **view: Any) -> None:
        self.store.set_live(job_id, json.dumps(view))

    def run(self, *args: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout, stderr of one command."""
        code = main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        forms.check([str(arg) for arg in args], out)
        return code, out, err


def succeeded(record: JobRecord, now: float) -> JobRecord:
    """The record as it would be at its end: interrupted once, resumed elsewhere."""
    return replace(
        record,
        status=JobStatus.SUCCEEDED,
        outcome=EndReason.SUCCEEDED,
        attempts=(
            replace(over(1, 100, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True), handed_over=True),
            over(2, 200, EndReason.SUCCEEDED, steps=(140, 900)),
        ),
        generation=2,
        metrics=(("accuracy", 0.9811), ("loss", 0.0123456789)),
        collected=True,
        swept=True,
        finished_at=now,
        total_steps=900,
    )
