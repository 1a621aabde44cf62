"""One controller per home, from the moment it is started until the kernel lets go of its lock."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller import process as controller_process
from cloudtrain.provisioner.home import Home
from tests.e2e.story import until
from tests.records import job


@pytest.fixture
def a_home(home: Path) -> Home:
    return Home.from_env()


def test_a_started_controller_lives_at_once_and_is_not_started_twice(a_home: Home) -> None:
    SqliteStore(a_home.db).add(job())  # driven by another home: the controller leaves it alone, and leaves
    assert controller_process.ensure(a_home) is True
    assert controller_process.alive(a_home), "without waiting for it to have come up"
    assert controller_process.ensure(a_home) is False
    os.kill(int(controller_process.pid_path(a_home).read_text()), signal.SIGKILL)
    until(lambda: not controller_process.alive(a_home), "the lock to be free", 10)
    assert controller_process.ensure(a_home) is True
    until(lambda: not controller_process.alive(a_home), "an idle controller to leave", 30)


def test_looking_does_not_take(a_home: Home) -> None:
    assert not controller_process.alive(a_home)
    lock = controller_process.try_lock(a_home)
    assert lock is not None and controller_process.alive(a_home)
    os.close(lock)
    assert not controller_process.alive(a_home)
