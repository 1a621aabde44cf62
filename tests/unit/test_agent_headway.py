"""When an attempt gets on, what the dead-man switch is shown of it, and when it must end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.provisioner.adapters import userdata
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.trainer.agent.headway import STILL_S, TAKEN_LATE_S, UNDELIVERED_S, Activity, Headway, Seen

STEP_S = 10.0
SWITCH_S = userdata.CHECK_S * userdata.STILL_CHECKS


class Machine:
    """An agent that looks every ten seconds, and what the switch sees of it."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "run" / "work"
        self.now = 1000.0
        self.headway = Headway(self.mark, folder / "progress.json", self.now)
        self.changed_at = self.now
        self._last = ""

    def look(self, seen: Seen) -> bool:
        self.now += STEP_S
        ends = self.headway.look(seen, self.now)
        text = self.mark.read_text() if self.mark.exists() else ""
        if text != self._last:
            self._last, self.changed_at = text, self.now
        return ends

    def until_it_ends(self, seen: Seen, limit_s: float = 86_400.0) -> float:
        """Seconds from now until the agent says that it must end."""
        began = self.now
        while not self.look(seen):
            assert self.now - began < limit_s
        return self.now - began


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_job_that_trains_is_left_alone_however_quiet_it_is(machine: Machine) -> None:
    for _ in range(int(7200 / STEP_S)):
        assert not machine.look(Seen("running", (0, 0, 0), trains=True))
        assert machine.now - machine.changed_at <= 60, "the switch sees that it goes on"


@pytest.mark.parametrize("phase", ["checking", "mounting", "setup", "restoring", "running", "saving"])
def test_what_stands_still_ends_before_the_switch_would(machine: Machine, phase: str) -> None:
    machine.look(Seen(phase, (1,)))
    took_s = machine.until_it_ends(Seen(phase, (1,)))
    assert STILL_S < took_s <= STILL_S + 2 * STEP_S
    assert machine.now - machine.changed_at < SWITCH_S <= 30 * 60 - userdata.FORCE_S


def test_results_are_worth_waiting_for_as_long_as_the_controller_does(machine: Machine) -> None:
    machine.look(Seen("saving", (1,)))
    refused = Seen("saving", (1,), refused=True)
    assert machine.until_it_ends(refused) > UNDELIVERED_S == Limits().delivery_s
    assert machine.now - machine.changed_at <= 60, "the switch must not come before"


def test_a_bucket_that_answers_again_starts_the_count_anew(machine: Machine) -> None:
    machine.look(Seen("saving", (0,)))
    for _ in range(int(UNDELIVERED_S / STEP_S) - 5):
        assert not machine.look(Seen("saving", (0,), refused=True))
    assert not machine.look(Seen("saving", (1,)))
    assert machine.until_it_ends(Seen("saving", (1,))) > STILL_S


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=6))
@settings(max_examples=40, deadline=None)
def test_the_mark_moves_soon_after_every_change_and_never_without(
    tmp_path_factory: pytest.TempPathFactory, stretches: list[tuple[int, bool]]
) -> None:
    machine, count = Machine(tmp_path_factory.mktemp("m")), 0
    machine.look(Seen("restoring", (0,)))
    last_move = machine.now
    for looks, moves in stretches:
        for _ in range(looks):
            count += moves
            machine.look(Seen("restoring", (count,)))
            if moves:
                last_move = machine.now
            assert machine.headway.still_s == pytest.approx(machine.now - last_move)
            assert machine.changed_at <= last_move
            assert last_move - machine.changed_at < 60


def test_a_mark_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Headway(tmp_path / "file" / "work", tmp_path / "p", 0.0).look(Seen("running", trains=True), 1.0)
    Headway(None, tmp_path / "p", 0.0).look(Seen("running", trains=True), 1.0)


def test_the_mark_names_the_progress_file(machine: Machine, tmp_path: Path) -> None:
    machine.look(Seen("running", trains=True))
    assert machine.mark.read_text().splitlines()[1:] == [str(tmp_path / "progress.json")]


def test_the_free_hour_is_waited_for_no_longer_than_ec2_may_be_late() -> None:
    assert Limits().notice_grace_s < TAKEN_LATE_S < SWITCH_S


# ---- what says nothing of itself


@pytest.mark.parametrize(("share", "busy"), [(0.0, False), (0.01, False), (0.2, True), (8.0, True)])
def test_cpu_time_is_a_sign_and_an_idle_server_gives_none(tmp_path: Path, share: float, busy: bool) -> None:
    now = [0.0]
    activity = Activity(tmp_path / "job.log", lambda: share * now[0])
    (tmp_path / "job.log").write_text("")
    seen = set()
    for turn in range(100):
        now[0] = turn * 10.0
        seen.add(activity.counts(now[0])[2])
    assert (len(seen) > 10) is busy
    assert busy or len(seen) <= 2


def test_a_log_that_grows_is_a_sign(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    activity = Activity(log, lambda: 0.0)
    assert activity.counts(0.0)[:2] == (0, 0), "no log yet"
    log.write_text("one line\n")
    assert activity.counts(10.0)[0] == 0, "looked at twice a minute"
    assert activity.counts(31.0)[0] == len("one line\n")
