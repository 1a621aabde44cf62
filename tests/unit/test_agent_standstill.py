"""What gets nowhere: the supervisor ends it in good order, and leaves alone what may be quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.trainer.agent import commands, headway, supervisor
from cloudtrain.trainer.agent.notices import Interruption
from cloudtrain.trainer.agent.objects import ObjectsError
from tests.unit.agent_stand import Stand, standing


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    with standing(tmp_path, monkeypatch) as made:
        yield made


def test_a_restore_that_moves_nothing_ends_the_attempt_and_is_told(stand: Stand) -> None:
    def down(call: str, key: str) -> None:
        raise ObjectsError("no route to the bucket")

    stand.monkeypatch.setattr(headway, "STILL_S", 0.5)
    stand.objects.before = down
    stand.start("echo never", generation=2)
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "machine")
    assert status.error is not None and status.error.startswith("restoring: nothing has moved for ")
    assert "no route to the bucket" in status.error
    assert stand.off


def test_results_that_no_bucket_takes_are_given_up_late(stand: Stand) -> None:
    def down(call: str, key: str) -> None:
        raise ObjectsError("no route to the bucket")

    stand.monkeypatch.setattr(headway, "STILL_S", 0.3)
    stand.monkeypatch.setattr(headway, "UNDELIVERED_S", 1.5)
    stand.objects.before = down
    began = time.monotonic()
    stand.start("echo x > $CLOUDTRAIN_OUTPUT_DIR/x")
    status = stand.end()
    assert time.monotonic() - began > 1.5
    assert (status.phase, status.failure) == ("failed", "machine")
    assert status.error is not None and status.error.startswith("saving: nothing has moved for ")
    assert stand.off


def test_a_job_whose_shell_lives_may_be_as_quiet_as_it_likes(stand: Stand) -> None:
    stand.monkeypatch.setattr(headway, "STILL_S", 0.2)
    stand.start("sleep 1.5")
    assert stand.end().phase == "done"


def test_what_a_shell_has_left_behind_and_does_nothing_is_ended_and_the_job_is_done(stand: Stand) -> None:
    stand.monkeypatch.setattr(commands, "LINGER_S", 0.1)
    stand.monkeypatch.setattr(headway, "STILL_S", 1.0)
    stand.start("echo x > $CLOUDTRAIN_OUTPUT_DIR/x; sleep 600 & exit 0")
    status = stand.end()
    assert (status.phase, status.exit_code) == ("done", 0)
    assert "jobs/j/outputs/x" in stand.objects.data


def test_a_setup_that_waits_for_ever_ends(stand: Stand) -> None:
    stand.monkeypatch.setattr(headway, "STILL_S", 0.5)
    stand.start("echo never", setup="sleep 600")
    status = stand.end()
    assert status.error is not None and status.error.startswith("setup: nothing has moved for ")
    assert status.failure == "machine"


def test_a_machine_that_ec2_does_not_take_goes_by_itself_once_it_is_late(stand: Stand) -> None:
    stand.monkeypatch.setattr(supervisor, "TAKEN_LATE_S", 1.0)
    stand.start("sleep 600")
    stand.until(lambda status: status.phase == "running")
    stand.watcher.interruption = Interruption("terminate", time.time() + 1.0)
    stand.until(lambda status: status.phase == "stopped")
    assert stand.thread is not None and stand.thread.is_alive(), "it waits to be taken"
    stand.end()
    assert stand.off


def test_the_switch_is_shown_that_the_job_goes_on(stand: Stand, tmp_path: Path) -> None:
    stand.host.work_file = tmp_path / "switch" / "work"
    stand.start("sleep 0.5")
    assert stand.end().phase == "done"
    assert stand.host.work_file.read_text().splitlines()[1] == str(stand.places.progress)
