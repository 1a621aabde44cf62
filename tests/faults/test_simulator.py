"""The simulator itself: a slice of its schedules, and each mutant under one that shows it (docs/faults.md)."""

from __future__ import annotations

import pytest

from tests.faults import play
from tests.faults.mutants import MUTANTS
from tests.faults.schedule import Schedule, draw


def test_nothing_is_violated_in_a_slice_of_schedules() -> None:
    total, _ = play.tally(range(60), processes=1)
    assert total.schedules == 60
    assert [(failed.seed, failed.violation) for failed in total.failed] == []
    assert len(total.points) > 50


@pytest.mark.parametrize("name", MUTANTS)
def test_each_safety_is_missed_when_it_is_switched_off(name: str) -> None:
    schedule = MUTANTS[name].schedule
    assert play.caught(None, schedule) is None, "the program as it is holds"
    assert play.caught(name, schedule) is not None, MUTANTS[name].what


def test_a_seed_is_always_the_same_schedule() -> None:
    assert draw(7) == draw(7)
    assert isinstance(draw(8), Schedule)
    assert draw(7) != draw(8)
