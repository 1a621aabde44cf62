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


def test_a_controller_with_old_credentials_gives_way_to_a_shell_that_names_others(
    a_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOLD")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "expires-soon")
    controller_process.ensure(a_home)
    assert controller_process.renew(a_home) is False, "the same shell"
    kept = [path.read_text() for path in a_home.root.glob("controller.*") if path.is_file()]
    assert not any("AKIAOLD" in text or "expires-soon" in text for text in kept)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert controller_process.renew(a_home) is False, "a shell without credentials must not take those away"
    assert controller_process.alive(a_home)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEW")
    assert controller_process.renew(a_home) is True
    assert not controller_process.alive(a_home)
    assert controller_process.ensure(a_home) is True
    assert controller_process.renew(a_home) is False
    os.kill(int(controller_process.pid_path(a_home).read_text()), signal.SIGKILL)
    until(lambda: not controller_process.alive(a_home), "the lock to be free", 10)
