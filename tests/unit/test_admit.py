"""A caller who moved: a machine that runs and does not answer makes us admit our own address again, not too often."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.decide.attempts import advance
from cloudtrain.provisioner.decide.effects import Admit, RequestStop, Ship
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.model import Attempt, Endpoint, EndReason, Machine, MachineState, Observed, Phase
from tests.bench import Bench
from tests.fake_agent import World
from tests.records import OFFERINGS

LIMITS = Limits()
START = 1_800_000_000.0
POOL = OFFERINGS[0].pool
ID = "i-0123456789abcdef0"
WORKING = Attempt(1, POOL, "t", Phase.WORKING, START, instance_id=ID, running_at=START, started_at=START)
RUNNING = Machine(ID, "j", 1, "t", MachineState.RUNNING, START, Endpoint("203.0.113.9", 22))
ADMIT = Admit(POOL.region)


def seen(unanswered_s: float, machine: Machine = RUNNING) -> Observed:
    return Observed(machines=(machine,), unanswered_s=((1, unanswered_s),))


def test_after_a_minute_without_an_answer_and_not_before() -> None:
    assert ADMIT not in advance(WORKING, seen(60), START, leaving=None, limits=LIMITS).effects
    step = advance(WORKING, seen(60.1), START, leaving=None, limits=LIMITS)
    assert step.effects[0] == ADMIT
    assert step.attempt.admitted_at == START


def test_at_most_once_a_minute() -> None:
    attempt, asked = WORKING, []
    for second in range(61, 361, 5):
        step = advance(attempt, seen(second), START + second, leaving=None, limits=LIMITS)
        attempt = step.attempt
        asked += [second] * (ADMIT in step.effects)
    assert len(asked) == 5
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(asked))


@pytest.mark.parametrize("state", [MachineState.PENDING, MachineState.SHUTTING_DOWN, MachineState.TERMINATED])
def test_not_for_a_machine_that_does_not_run(state: MachineState) -> None:
    step = advance(WORKING, seen(500, replace(RUNNING, state=state)), START + 500, leaving=None, limits=LIMITS)
    assert ADMIT not in step.effects


def test_not_for_one_that_is_being_ended() -> None:
    lost = replace(seen(9999), unreachable_s=((1, LIMITS.unreachable_s + 1),))
    step = advance(WORKING, lost, START, leaving=None, limits=LIMITS)
    assert step.attempt.phase is Phase.ENDING
    assert ADMIT not in step.effects


def test_a_machine_that_boots_and_can_not_be_shipped_to() -> None:
    booting = replace(WORKING, phase=Phase.BOOTING, started_at=None)
    early = advance(booting, Observed(machines=(RUNNING,)), START + 59, leaving=None, limits=LIMITS)
    assert early.effects == (Ship(1, RUNNING),)
    late = advance(booting, Observed(machines=(RUNNING,)), START + 61, leaving=None, limits=LIMITS)
    assert late.effects == (ADMIT, Ship(1, RUNNING))


def test_who_stops_from_another_place_is_let_in_first() -> None:
    step = advance(WORKING, seen(90), START, leaving=EndReason.STOPPED, limits=LIMITS)
    assert step.effects == (ADMIT, RequestStop(1, RUNNING))


def test_the_group_is_prepared_again_while_a_machine_does_not_answer_and_the_job_goes_on(tmp_path: Path) -> None:
    world = World(total_steps=900)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: bool(world.agents))
    before = world.cloud.calls.count(("prepare", POOL.region))
    world.cut = True
    since = world.clock.now()
    bench.run(until=lambda: world.clock.now() - since > 200)
    assert world.cloud.calls.count(("prepare", POOL.region)) - before in (2, 3)  # after a minute, then once a minute
    world.cut = False
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.SUCCEEDED]
