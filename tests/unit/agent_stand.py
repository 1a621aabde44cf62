"""A supervisor in a thread, on a host that can't be powered off, over a dictionary instead of a bucket."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.trainer.agent import checks, courier, supervisor
from cloudtrain.trainer.agent.jobenv import job_environment
from cloudtrain.trainer.agent.mounts import Mounter
from cloudtrain.trainer.agent.notices import Imds, Watcher
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.agent.state import AgentCrash, Barred, Stuck
from cloudtrain.trainer.agent.supervisor import Supervisor
from cloudtrain.trainer.contract import AgentConfig, AgentStatus, Keys, Latest, status_from_json, to_json
from tests.memory_objects import MemoryObjects

KEYS = Keys("jobs/j")


class FakeHost:
    """Nothing may start or end it from inside the loop."""

    notice_poll_s = 0.1

    def __init__(self) -> None:
        self.real = False
        self.work_file: Path | None = None

    def show_life(self) -> None:
        pass

    def start_agent(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        raise AssertionError

    def poweroff(self) -> None:
        raise AssertionError

    def place(self, target: str, data: Path, rootfs: Path) -> None:
        raise AssertionError


class Stand:
    """One supervisor in a thread. ``watcher`` is what a test sets notices on."""

    def __init__(self, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = places
        self.host = FakeHost()
        self.objects = MemoryObjects()
        self.objects.data[KEYS.latest] = to_json(Latest(1)).encode()
        self.watcher = Watcher(Imds("http://127.0.0.1:9"), 1.0)
        self.connect: Callable[[], Any] = lambda: self.objects
        self.error: Exception | None = None
        self.off = False
        self.thread: threading.Thread | None = None
        self.supervisor: Supervisor | None = None
        self.monkeypatch = monkeypatch

    def start(self, run: str, **more: Any) -> None:
        more.setdefault("grace_seconds", 2.0)
        more.setdefault("generation", 1)
        config = AgentConfig(job_id="j", bucket="b", region="r", prefix="jobs/j", run=run, host="local", **more)
        base = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        env = job_environment(config, self.places, base, 0)
        check = checks.Checks(config, self.places, env, real=self.host.real)
        check.look()
        made = Supervisor(
            config,
            self.places,
            self.host,
            job_env=env,
            checks=check,
            connect=lambda: self.connect(),
            watch=lambda: self.watcher,
            mounter=Mounter(config, self.places, self.host, env, lambda b, r: self.objects) if config.mounts else None,
        )

        def target() -> None:
            try:
                self.off = made.run()
            except (AgentCrash, Barred, Stuck, OSError) as error:
                self.error = error
                made.abandon(error)
                self.off = True

        self.supervisor = made
        self.thread = threading.Thread(target=target, daemon=True)
        self.thread.start()

    def status(self) -> AgentStatus:
        return status_from_json(self.places.status.read_bytes())

    def until(self, true: Callable[[AgentStatus], bool], timeout_s: float = 20.0) -> AgentStatus:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.places.status.exists() and true(status := self.status()):
                return status
            time.sleep(0.01)
        raise AssertionError(f"never: {self.status()}")

    def end(self) -> AgentStatus:
        """The last status, once the supervisor has left."""
        assert self.thread is not None
        self.thread.join(30)
        assert not self.thread.is_alive(), self.status()
        return self.status()


@contextmanager
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """A stand whose supervisor is seen to leave in the end."""
    monkeypatch.setattr(courier, "_BACKOFF_S", (0.05,))
    monkeypatch.setattr(supervisor, "TICK_S", 0.02)
    places = Places(tmp_path / "cloudtrain")
    places.create()
    made = Stand(places, monkeypatch)
    yield made
    if made.supervisor is not None and made.thread is not None and made.thread.is_alive():
        made.host.real = False
        made.supervisor.going_down = True
        made.thread.join(20)
        assert not made.thread.is_alive()
