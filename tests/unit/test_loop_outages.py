"""The loop while the network, the bucket, the agent or the laptop fail: what is concluded, and what is not."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.codec import decode
from cloudtrain.provisioner.errors import (
    AccessError,
    CloudError,
    CloudtrainError,
    CloudUnreachable,
)
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from cloudtrain.provisioner.names import record_key
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.records import OFFERINGS, offering


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def test_a_bucket_that_refuses_the_first_record_fails_the_job_before_anything_is_spent(
    bench: Bench, world: World
) -> None:
    world.objects.faults.add("put", AccessError("no such bucket"), times=99)
    loop = bench.loop()
    loop.run()
    record = bench.store.get(bench.record.job_id).record
    assert (record.status, record.outcome, record.detail) == (JobStatus.FAILED, EndReason.REFUSED, "no such bucket")
    assert world.cloud.count("launch") == 0


@pytest.mark.parametrize("error", [CloudUnreachable("no network"), AccessError("no network")])
def test_cancelling_ends_the_machine_while_the_bucket_refuses_and_the_bucket_is_told_later(
    bench: Bench, world: World, error: CloudtrainError
) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "cancel")
    loop = bench.loop()
    loop.open()
    world.objects.faults.add("put", error, times=10_000)
    for _ in range(60):
        if not world.cloud.live():
            break
        with contextlib.suppress(CloudtrainError):
            loop.pass_once()
        world.clock.sleep(5)
    assert world.cloud.live() == []
    world.objects.faults.clear()
    assert bench.run().status is JobStatus.CANCELLED
    kept = decode(world.objects.objects[record_key(bench.record.job_id)])
    assert (kept.status, kept.outcome) == (JobStatus.CANCELLED, EndReason.CANCELLED)


def test_no_machine_is_asked_for_while_the_bucket_does_not_take_the_claim(bench: Bench, world: World) -> None:
    loop = bench.loop()
    loop.open()
    world.objects.faults.add("put", CloudUnreachable("no network"), times=10_000)
    for _ in range(20):
        with contextlib.suppress(CloudUnreachable):
            loop.pass_once()
    assert world.cloud.count("launch") == 0
    assert bench.store.get(bench.record.job_id).record.attempts == ()


def test_trouble_is_told_once_and_asked_less_often(bench: Bench, world: World) -> None:
    loop = bench.loop()
    loop.open()
    world.objects.faults.add("put", CloudUnreachable("no network"), times=6)
    loop.run()
    assert bench.store.get(bench.record.job_id).record.status is JobStatus.SUCCEEDED
    assert bench.events().count("trouble: no network") == 1
    assert max(world.clock.slept) >= 16


def test_a_machine_that_can_not_deliver_its_results_is_not_kept_for_ever(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    (agent,) = world.agents.values()
    agent.phase, saving_at = "saving", world.clock.now()
    bench.run(until=lambda: len(world.cloud.instances) == 2)
    assert bench.store.get(bench.record.job_id).record.attempts[0].end_reason is EndReason.MACHINE_UNFIT
    assert 7200 <= world.clock.now() - saving_at < 7500


def test_results_that_can_not_come_home_are_told_once_and_tried_again(bench: Bench, world: World) -> None:
    blocked = Path(bench.record.results)
    blocked.write_text("in the way")
    bench.run(until=lambda: "make room" in bench.events())
    loop = bench.loop()
    for _ in range(5):
        loop.pass_once()
    assert bench.events().count("make room") == 1
    blocked.unlink()
    assert bench.run().status is JobStatus.SUCCEEDED


def test_a_machine_out_of_reach_that_publishes_checkpoints_is_left_alone_for_hours(tmp_path: Path) -> None:
    world = World(total_steps=8_000)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    world.cut = True
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_machine_out_of_reach_that_does_nothing_is_given_up_in_the_end(tmp_path: Path) -> None:
    world = World(total_steps=8_000)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    (agent,) = world.agents.values()
    agent.frozen_at = cut_at = world.clock.now()
    world.cut = True
    bench.run(until=lambda: len(world.cloud.instances) == 2)
    assert bench.store.get(bench.record.job_id).record.attempts[0].end_reason is EndReason.AGENT_LOST
    assert 1800 <= world.clock.now() - cut_at < 2400


def test_an_agent_that_stands_still_is_lost_within_minutes(tmp_path: Path) -> None:
    world = World(total_steps=8_000)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    (agent,) = world.agents.values()
    agent.frozen_at = frozen_at = world.clock.now()
    agent.hung = True
    bench.run(until=lambda: len(world.cloud.instances) == 2)
    assert bench.store.get(bench.record.job_id).record.attempts[0].end_reason is EndReason.AGENT_LOST
    assert 300 <= world.clock.now() - frozen_at < 600


def test_a_laptop_that_slept_does_not_take_its_own_pause_for_the_agents_silence(tmp_path: Path) -> None:
    world = World(total_steps=8_000)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    loop = bench.loop()
    loop.open()
    loop.pass_once()
    world.clock.advance(6 * 3600)
    world.cut = True  # the network is not back yet when the lid opens
    for _ in range(10):
        loop.pass_once()
    world.cut = False
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_finished_job_is_not_run_again_because_the_bucket_was_silent_for_a_minute(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 290 for a in world.agents.values()))
    world.cut = True  # its last words reach the bucket alone
    world.clock.sleep(20)
    loop = bench.loop()
    loop.open()
    world.objects.faults.add("get", CloudUnreachable("no network"), times=6)
    while world.objects.faults.pending("get"):
        loop.pass_once()
        world.clock.sleep(5)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_launch_without_an_answer_is_asked_seldom_told_once_and_given_up_with_its_region(
    tmp_path: Path, world: World
) -> None:
    elsewhere = offering("euw1-az1", "0.19")
    pool = replace(elsewhere.pool, region="eu-west-1")
    bench = Bench(tmp_path, world, (*OFFERINGS, replace(elsewhere, pool=pool)))
    world.cloud.refuse("us-east-1", CloudUnreachable("RequestLimitExceeded"))
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [a.pool.region for a in record.attempts] == ["us-east-1", "eu-west-1"]
    assert world.cloud.count("launch") < 20
    assert bench.events().count("RequestLimitExceeded; asking again") == 1


def test_cancelling_while_the_launch_has_no_answer_does_not_wait_for_ever(bench: Bench, world: World) -> None:
    world.cloud.refuse(lambda pool: True, CloudUnreachable("RequestLimitExceeded"))
    bench.run(until=lambda: world.cloud.count("launch") == 2)
    asked_at = world.clock.now()
    bench.store.want(bench.record.job_id, "cancel")
    assert bench.run().status is JobStatus.CANCELLED
    assert world.clock.now() - asked_at < 200


def test_a_pool_that_can_not_be_prepared_is_skipped_with_the_reason(bench: Bench, world: World) -> None:
    world.cloud.faults.add("prepare", CloudError("MadeUpCode: no", code="MadeUpCode"))
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [a.end_reason for a in record.attempts] == [EndReason.NO_CAPACITY, EndReason.SUCCEEDED]
    assert "MadeUpCode: no" in bench.events()


def test_one_effects_trouble_keeps_no_other_from_being_done(bench: Bench, world: World) -> None:
    world.cloud.faults.add("terminate", CloudError("MadeUpCode: no (request 1)", code="MadeUpCode"))
    world.cloud.faults.add("terminate", CloudError("MadeUpCode: no (request 2)", code="MadeUpCode"))
    bench.run(until=lambda: any(a.phase is Phase.BOOTING for a in bench.store.get(bench.record.job_id).record.attempts))
    bench.store.want(bench.record.job_id, "cancel")
    assert bench.run().status is JobStatus.CANCELLED
    assert bench.events().count("trouble: MadeUpCode: no") == 1
    nothing_left(world)


def test_an_agent_that_was_killed_is_started_again_on_its_machine(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    (agent,) = world.agents.values()
    agent.frozen_at = world.clock.now()
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)
    assert bench.events().count("its agent has stopped, starting it again") == 1


def test_refused_checkpoints_are_told(bench: Bench, world: World) -> None:
    world.rejected = ("g0001-step-000000060: part weights.pt differs from its SHA-256",)
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    world.cloud.kill(first.instance_id, "Server.SpotInstanceTermination")
    bench.run()
    assert "attempt 2: checkpoint refused: g0001-step-000000060: part weights.pt differs" in bench.events()
