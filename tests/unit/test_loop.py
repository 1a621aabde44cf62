"""The loop on a fake cloud: event sequences of a job's life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.errors import (
    AccessError,
    CloudUnreachable,
    PoolUnavailable,
    QuotaExceeded,
    RegionDenied,
)
from cloudtrain.provisioner.ledger import bill
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


def test_a_job_runs_once_in_the_cheapest_pool_and_leaves_nothing(bench: Bench, world: World) -> None:
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [str(a.pool.zone_id) for a in record.attempts] == ["use1-az1"]
    assert record.attempts[0].end_reason is EndReason.SUCCEEDED
    assert record.attempts[0].last_step == 300
    assert world.cloud.count("launch") == 1
    nothing_left(world)


def test_a_job_whose_turn_comes_late_has_lost_nothing_by_waiting(bench: Bench, world: World) -> None:
    bench.turn = False
    since = world.clock.now()
    bench.run(until=lambda: world.clock.now() - since > 500)
    assert world.cloud.calls == []
    bench.turn = True
    world.cloud.faults.add("launch", CloudUnreachable("no reply"), when="before", times=2)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert len(record.attempts) == 1, "its time for an answer began with the first question"


def test_an_interruption_moves_to_another_pool_and_resumes_without_loss(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    world.cloud.interrupt(first.instance_id, notice_s=120)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    one, two = record.attempts
    assert one.end_reason is EndReason.INTERRUPTED
    assert one.pool != two.pool
    assert two.start_step == one.last_step == one.durable_step
    assert f"attempt 2: resumed from step {one.last_step}, the next is" in bench.events()
    spent = bill(record, world.clock.now())
    assert spent.lines[0].free and spent.lines[0].usd == 0
    assert spent.lost_steps == 0
    assert spent.interruptions == 1
    assert two.claimed_at < (one.ended_at or 0), "the next machine starts while the old one waits for EC2"
    nothing_left(world)


def test_a_machine_taken_without_notice_costs_only_the_steps_since_the_last_checkpoint(
    bench: Bench, world: World
) -> None:
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    world.cloud.kill(first.instance_id, "Server.SpotInstanceTermination")
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    one, two = record.attempts
    assert two.start_step == one.durable_step
    assert bill(record, world.clock.now()).lost_steps == one.last_step - (one.durable_step or 0) > 0
    nothing_left(world)


def test_pools_without_capacity_are_each_asked_once_and_named(tmp_path: Path, world: World) -> None:
    bench = Bench(tmp_path, world, (*OFFERINGS, offering("use1-az6", "0.18")))
    for zone in ("use1-az1", "use1-az2", "use1-az4"):
        world.cloud.refuse(zone, PoolUnavailable(f"no capacity in {zone}", code="InsufficientInstanceCapacity"))
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [a.end_reason for a in record.attempts] == [EndReason.NO_CAPACITY] * 3 + [EndReason.SUCCEEDED]
    assert world.cloud.count("launch") == 4
    for zone in ("use1-az1", "use1-az2", "use1-az4"):
        assert f"no capacity in {zone}" in bench.events()
    assert bill(record, world.clock.now()).lines[0].usd == 0
    assert "resume" not in bench.events(), "nothing ran before, so nothing is resumed"


def test_no_capacity_anywhere_ends_the_job_with_nothing_left(bench: Bench, world: World) -> None:
    world.cloud.refuse(lambda pool: True, PoolUnavailable("none", code="InsufficientInstanceCapacity"))
    record = bench.run()
    assert (record.status, record.outcome) == (JobStatus.FAILED, EndReason.NO_CAPACITY)
    assert world.cloud.count("launch") == 3
    nothing_left(world)


def test_in_recovery_a_job_waits_for_capacity_to_come_back(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    refused = PoolUnavailable("none", code="InsufficientInstanceCapacity")
    world.cloud.refuse(lambda pool: True, refused, times=4)
    world.cloud.kill(first.instance_id, "Server.SpotInstanceTermination")
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    per_pool: dict[str, int] = {}
    for attempt in record.attempts[1:]:
        per_pool[attempt.pool.zone_id] = per_pool.get(attempt.pool.zone_id, 0) + 1
    assert max(per_pool.values()) <= 3, "a refused pool is left alone for minutes, not hammered"


def test_a_quota_refusal_skips_every_pool_under_the_same_quota(bench: Bench, world: World) -> None:
    world.cloud.refuse(lambda pool: True, QuotaExceeded("quota L-3819A6DF", code="MaxSpotInstanceCountExceeded"))
    record = bench.run()
    assert (record.outcome, record.attempts[0].end_reason) == (EndReason.REFUSED, EndReason.QUOTA)
    assert "quota L-3819A6DF" in (record.detail or "")
    assert world.cloud.count("launch") == 1


def off(world: World, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that is off for the account: EC2 and SSM refuse every call there."""

    def refusing(call: Callable[..., object], region_of: Callable[..., Iterable[str]]) -> Callable[..., object]:
        def refuse(*args: Any) -> object:
            if region in region_of(*args):
                raise RegionDenied(f"{region}: AuthFailure")
            return call(*args)

        return refuse

    cloud = world.cloud
    monkeypatch.setattr(cloud, "find_image", refusing(cloud.find_image, lambda image, where: [where]))
    monkeypatch.setattr(cloud, "machines", refusing(cloud.machines, lambda job, regions: regions))
    monkeypatch.setattr(cloud, "sweep", refusing(cloud.sweep, lambda job, regions: regions))


def elsewhere(zone: str) -> Offering:
    return replace(offering(zone, "0.10"), pool=replace(offering(zone, "0.10").pool, region="eu-south-2"))


def test_a_region_that_is_off_costs_its_own_pools_alone_and_nothing_is_asked_there_again(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    off(world, "eu-south-2", monkeypatch)
    record = Bench(tmp_path, world, (elsewhere("eus2-az1"), elsewhere("eus2-az2"), *OFFERINGS)).run()
    assert record.status is JobStatus.SUCCEEDED
    assert [(a.pool.region, a.end_reason) for a in record.attempts] == [
        ("eu-south-2", EndReason.DENIED),
        ("us-east-1", EndReason.SUCCEEDED),
    ]
    nothing_left(world)


def test_a_job_whose_every_region_is_off_ends_for_want_of_a_permission(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    off(world, "eu-south-2", monkeypatch)
    record = Bench(tmp_path, world, (elsewhere("eus2-az1"), elsewhere("eus2-az2"))).run()
    assert (record.status, record.outcome) == (JobStatus.FAILED, EndReason.REFUSED)
    assert record.detail == "the account may use none of the pools; the last: eu-south-2: AuthFailure"


def test_a_job_that_may_not_clear_up_ends_all_the_same(bench: Bench, world: World) -> None:
    world.cloud.faults.add("sweep", AccessError("no permission for ec2:DescribeVolumes"), times=10_000)
    assert bench.run().status is JobStatus.SUCCEEDED
    assert "some of its resources are still there" in bench.events()


def test_a_job_that_fails_is_not_run_again(tmp_path: Path) -> None:
    world = World(fail_at=20)
    record = Bench(tmp_path, world).run()
    assert (record.status, record.outcome) == (JobStatus.FAILED, EndReason.JOB_FAILED)
    assert len(record.attempts) == 1
    assert record.detail == "the run exited with 1"
    nothing_left(world)


def test_cancel_saves_ends_and_sweeps(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "cancel")
    record = bench.run()
    assert record.status is JobStatus.CANCELLED
    (agent,) = world.agents.values()
    assert agent.saved_steps, "the agent was asked to save before the machine went"
    nothing_left(world)


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.BOOTING])
def test_cancel_before_the_machine_works_leaves_nothing(bench: Bench, world: World, phase: Phase) -> None:
    def reached() -> bool:
        return any(a.phase is phase for a in bench.store.get(bench.record.job_id).record.attempts)

    bench.run(until=reached)
    bench.store.want(bench.record.job_id, "cancel")
    assert bench.run().status is JobStatus.CANCELLED
    nothing_left(world)


def test_a_machine_that_powers_itself_off_after_our_stop_is_cancelled_not_lost(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "cancel")
    bench.run(until=lambda: bench.store.get(bench.record.job_id).record.attempts[0].stop_asked_at is not None)
    (machine,) = world.cloud.live()
    world.cloud.kill(machine.instance_id, "Client.InstanceInitiatedShutdown")
    record = bench.run()
    assert record.attempts[0].end_reason is EndReason.CANCELLED
    assert record.failures == 0


def test_ssh_silence_alone_never_kills_a_running_job(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    world.cut = True
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert len(record.attempts) == 1


def test_a_machine_that_never_becomes_ready_is_ended_and_another_tried(tmp_path: Path) -> None:
    world = World(boot_s=10_000)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: len(world.cloud.instances) == 2)
    world.cloud.boot_s = 30
    record = bench.store.get(bench.record.job_id).record
    assert record.attempts[0].end_reason is EndReason.BOOT_TIMEOUT
    assert world.most_live_of_one == 1


def test_a_lost_reply_to_the_launch_makes_no_second_machine(bench: Bench, world: World) -> None:
    world.cloud.faults.add("launch", CloudUnreachable("time-out"), when="after", times=2)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert len(world.cloud.instances) == 1


def test_the_embedded_cloud_dying_marks_the_job_lost_at_once(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.gone = True
    world.objects.dead = True
    record = bench.run(passes=3)
    assert (record.status, record.outcome) == (JobStatus.FAILED, EndReason.CLOUD_LOST)
    assert "lost with its cloud" in bench.events()


def test_records_survive_their_own_codec(bench: Bench, world: World) -> None:
    record = bench.run()
    assert decode(encode(record)) == record
    assert decode(world.objects.objects[record_key(record.job_id)]).status is JobStatus.SUCCEEDED


def test_a_machine_whose_switch_does_not_move_is_told_and_replaced(bench: Bench, world: World) -> None:
    # It would end itself in the middle of its work.
    world.refused_deadlines = 1
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    one, two = record.attempts
    assert one.end_reason is EndReason.MACHINE_UNFIT and two.end_reason is EndReason.SUCCEEDED
    assert one.end_detail is not None and one.end_detail.startswith("the machine's dead-man switch could not be set: ")
    assert "the deadline stays as it was" in one.end_detail
    nothing_left(world)
