"""The loop beside a laptop that sleeps, reboots, loses its credentials, its network or its disk for hours: nothing that
runs is killed, recovery resumes, the record is read again first, and nobody's absence is billed."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from cloudtrain.provisioner import ledger
from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.controller import effects
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.errors import AccessError, CloudtrainError, CloudUnreachable, RemoteError
from cloudtrain.provisioner.model import EndReason, JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.ports import RunResult, Target
from tests.bench import Bench, nothing_left
from tests.fake_agent import World

HOUR_S = 3600.0
NIGHT_S = 8 * HOUR_S


def running(tmp_path: Path, total_steps: int) -> tuple[Bench, World]:
    world = World(total_steps=total_steps)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    return bench, world


def asleep(world: World, seconds: float) -> None:
    """Hours in which no pass is made; machines and agents go on."""
    for _ in range(int(seconds // 60)):
        world.clock.sleep(60)


def nearly_done(world: World) -> None:
    """Let what runs now end soon: the rest of the story is only that it does."""
    for agent in world.agents.values():
        agent.total_steps = min(agent.total_steps, agent.step + 120)
    world.total_steps = max(agent.step for agent in world.agents.values()) + 120


def passes(bench: Bench, world: World, seconds: float) -> None:
    """Passes that may fail, as the loop makes them."""
    loop, until = bench.loop(), world.clock.now() + seconds
    while world.clock.now() < until:
        with contextlib.suppress(CloudtrainError):
            loop.open()
            loop.pass_once()
        world.clock.sleep(30)


def test_a_job_that_ends_while_the_laptop_sleeps_is_billed_until_its_end(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=3600)
    asleep(world, NIGHT_S)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)
    assert HOUR_S < ledger.bill(record, world.clock.now()).seconds < HOUR_S + 180
    nothing_left(world)


def test_a_job_taken_while_the_laptop_sleeps_is_recovered_when_it_wakes(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=30_000)
    asleep(world, HOUR_S)
    (first,) = world.cloud.live()
    world.cloud.interrupt(first.instance_id)
    asleep(world, NIGHT_S)
    assert world.cloud.live() == []
    nearly_done(world)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert record.failures == 0
    assert ledger.bill(record, world.clock.now()).seconds < HOUR_S + 1000
    assert [a.end_reason for a in record.attempts] == [EndReason.INTERRUPTED, EndReason.SUCCEEDED]
    assert (record.attempts[1].start_step or 0) >= HOUR_S
    nothing_left(world)


def test_credentials_that_expire_for_eight_hours_stop_nothing(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=40_000)
    expired = AccessError("the credentials have expired: `aws sso login`")
    for call in ("machines", "terminate", "launch"):
        world.cloud.faults.add(call, expired, times=100_000)
    for call in ("get", "put"):
        world.objects.faults.add(call, expired, times=100_000)
    passes(bench, world, NIGHT_S)
    assert len(world.cloud.live()) == 1
    world.cloud.faults.clear()
    world.objects.faults.clear()
    nearly_done(world)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)
    nothing_left(world)


def test_a_machine_lost_during_expired_credentials_is_replaced_afterwards(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=5_000)
    world.cloud.faults.add("machines", AccessError("the credentials have expired"), times=100_000)
    (first,) = world.cloud.live()
    world.cloud.kill(first.instance_id)
    passes(bench, world, NIGHT_S)
    assert len(world.cloud.instances) == 1
    world.cloud.faults.clear()
    nearly_done(world)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 2)


def test_a_laptop_that_wakes_reads_the_record_again_before_it_acts(tmp_path: Path) -> None:
    """While it slept, another computer took the job over; the machine was lost as well. Nothing is launched here."""
    bench, world = running(tmp_path, total_steps=5_000)
    loop = bench.loop()
    loop.open()
    loop.pass_once()
    key = record_key(bench.record.job_id)
    theirs = decode(world.objects.objects[key])
    world.objects.objects[key] = encode(replace(theirs, driver="another-home", revision=theirs.revision + 1))
    (machine,) = world.cloud.live()
    world.cloud.kill(machine.instance_id)
    asleep(world, NIGHT_S)
    calls = len(world.cloud.calls)
    with pytest.raises(DrivenElsewhere):
        for _ in range(20):
            loop.pass_once()
            world.clock.sleep(5)
    assert {name for name, _ in world.cloud.calls[calls:]} <= {"machines"}


@pytest.mark.parametrize("step_s", [-HOUR_S / 4, 2 * HOUR_S, NIGHT_S])
def test_a_clock_that_is_moved_kills_nothing(tmp_path: Path, step_s: float) -> None:
    bench, world = running(tmp_path, total_steps=40_000)
    loop = bench.loop()
    loop.open()
    loop.pass_once()
    world.clock.advance(step_s)
    for _ in range(100):
        loop.pass_once()
        world.clock.sleep(5)
    assert len(world.cloud.live()) == 1
    nearly_done(world)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_black_holed_ssh_never_kills_a_job_however_rare_its_checkpoints(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=30_000)
    world.cut = True
    (agent,) = world.agents.values()
    agent.durable = 10**9  # no checkpoint comes any more
    passes(bench, world, 3 * HOUR_S)
    assert len(world.cloud.instances) == 1
    seen = bench.store.get(bench.record.job_id).record.attempts[0].last_step
    assert agent.step - 120 <= seen <= agent.step  # its beat tells how far it is
    world.cut = False
    agent.durable = agent.step
    nearly_done(world)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_nothing_is_concluded_while_neither_ssh_nor_the_bucket_lets_us_through(tmp_path: Path) -> None:
    bench, world = running(tmp_path, total_steps=40_000)
    world.cut = True
    world.objects.faults.add("get", CloudUnreachable("no route to the bucket"), times=100_000)
    passes(bench, world, NIGHT_S)
    assert len(world.cloud.live()) == 1
    world.cut = False
    world.objects.faults.clear()
    nearly_done(world)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_machine_that_is_lost_while_it_is_shipped_to_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers on the other end of a large workdir's way: the call itself would wait for an hour."""
    monkeypatch.setattr(effects, "SHIP_LOOK_S", 0.01)
    world = World(total_steps=300)
    bench = Bench(tmp_path, world)
    hangs, plain = threading.Event(), world.run
    until = []

    def run(target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        if stdin is not None and len(world.cloud.instances) == 1:
            until.append(target)
            hangs.wait(60)
            raise RemoteError("no answer in time")
        return plain(target, command, stdin=stdin, timeout_s=timeout_s)

    monkeypatch.setattr(world, "run", run)
    try:
        bench.run(until=lambda: bool(until))
        (machine,) = world.cloud.live()
        world.cloud.kill(machine.instance_id)
        lost_at = world.clock.now()
        bench.run(until=lambda: len(world.cloud.instances) == 2)
        assert world.clock.now() - lost_at <= 60
        assert len(until) == 1
    finally:
        hangs.set()
    assert bench.run().status is JobStatus.SUCCEEDED
