"""The loop on a fake cloud: event sequences, and a crash at every single point of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.attempt_files import AttemptFiles
from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.effects import Effects
from cloudtrain.provisioner.errors import (
    AccessError,
    CloudError,
    CloudtrainError,
    CloudUnreachable,
    PoolUnavailable,
    QuotaExceeded,
)
from cloudtrain.provisioner.journal import Journal
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.loop import JobLoop, Parts
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.observe import Observer
from cloudtrain.provisioner.reach import Reach
from cloudtrain.trainer.contract import Keys
from tests.fake_agent import World
from tests.fake_store import FakeStore
from tests.records import OFFERINGS, job, offering


class Bench:
    """One job, its home and its world; ``run`` drives it as a controller would."""

    def __init__(self, tmp_path: Path, world: World, offerings: tuple[Offering, ...] = OFFERINGS) -> None:
        self.world = world
        self.store = FakeStore()
        self.job_dir = tmp_path / "job"
        self.job_dir.mkdir()
        self.gone = False
        self.record = replace(job(created_at=world.clock.now()), offerings=offerings, results=str(tmp_path / "results"))
        self.store.add(self.record)

    def loop(self) -> JobLoop:
        world = self.world
        files = AttemptFiles(self.job_dir, self.record)
        reach = Reach(world.cloud, world, world.objects, world.clock, files, self.job_dir)
        parts = Parts(
            journal=Journal(self.store, world.objects, self.record.job_id),
            observer=Observer(reach),
            effects=Effects(reach),
            cloud_gone=lambda: self.gone,
        )
        return JobLoop(parts, self.store, world.clock)

    def run(self, until: Callable[[], bool] | None = None, passes: int = 3000) -> JobRecord:
        """Drive to the end, or until something holds. A loop that never ends fails the test."""
        self.world.clock.sleep(0)
        loop = self.loop()
        loop.open()
        for _ in range(passes):
            record = self.store.get(self.record.job_id).record
            if record.status.final or (until is not None and until()):
                return record
            try:
                changed = loop.pass_once()
            except CloudUnreachable:
                changed = False
            if not changed:
                self.world.clock.sleep(5.0)
        raise AssertionError(f"not finished: {self.store.get(self.record.job_id).record}")

    def events(self) -> str:
        return "\n".join(e.text for e in self.store.events(self.record.job_id))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def nothing_left(world: World) -> None:
    assert world.cloud.live() == []
    assert world.cloud.groups == set()


def test_a_job_runs_once_in_the_cheapest_pool_and_leaves_nothing(bench: Bench, world: World) -> None:
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [str(a.pool.zone_id) for a in record.attempts] == ["use1-az1"]
    assert record.attempts[0].end_reason is EndReason.SUCCEEDED
    assert record.attempts[0].last_step == 300
    assert world.cloud.count("launch") == 1
    nothing_left(world)


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
    kept = decode(world.objects.objects[Keys(bench.record.prefix).record])
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


CHANGES = ("prepare", "launch", "terminate", "sweep", "put", "delete")


class Crash(BaseException):
    """The controller's process dies here."""


def _story(tmp_path: Path, crash_at: int | None, *, notice_s: float | None) -> tuple[World, Bench, JobRecord, int]:
    """A whole run with one interruption; the controller dies at moment ``crash_at`` and a fresh one carries on."""
    tmp_path.mkdir()
    world = World(total_steps=90)
    bench = Bench(tmp_path, world)
    moments = 0

    def hook(call: str, when: str) -> None:
        nonlocal moments
        if call not in CHANGES:  # dying around a mere look leaves the same world as dying around the last change
            return
        moments += 1
        if moments == crash_at:
            raise Crash(f"{when} {call}")

    world.cloud.faults.hook = world.objects.faults.hook = hook
    interrupted = False
    for _ in range(5):
        try:
            if not interrupted:
                bench.run(until=lambda: any(a.step >= 65 for a in world.agents.values()))
                first = next(iter(world.cloud.instances))
                if notice_s is None:
                    world.cloud.kill(first, "Server.SpotInstanceTermination")
                else:
                    world.cloud.interrupt(first, notice_s=notice_s)
                interrupted = True
            record = bench.run()
            return world, bench, record, moments
        except Crash:
            continue
    raise AssertionError("never finished")


@pytest.mark.parametrize("notice_s", [None, 120.0], ids=["no-notice", "notice"])
def test_a_crash_at_any_point_leaves_one_machine_at_most_and_the_job_done(
    tmp_path: Path, notice_s: float | None
) -> None:
    *_, total = _story(tmp_path / "whole", None, notice_s=notice_s)
    assert total > 40
    for crash_at in range(1, total + 1):
        world, _bench, record, _ = _story(tmp_path / str(crash_at), crash_at, notice_s=notice_s)
        where = f"crash at {crash_at}"
        assert record.status is JobStatus.SUCCEEDED, where
        assert world.most_live_of_one == 1, where
        assert world.most_live == 1, where
        assert world.cloud.live() == [], where
        assert world.cloud.groups == set(), where
        tokens = [i.request.attempt.client_token for i in world.cloud.instances.values()]
        assert len(tokens) == len(set(tokens)), where
        for agent in world.agents.values():
            assert not agent.fenced or agent.phase == "stopped", where
        last = record.attempts[-1]
        assert last.start_step is not None, where
        if notice_s is not None:
            assert bill(record, world.clock.now()).lost_steps == 0, where


def test_records_survive_their_own_codec(bench: Bench, world: World) -> None:
    record = bench.run()
    assert decode(encode(record)) == record
    assert decode(world.objects.objects[Keys(record.prefix).record]).status is JobStatus.SUCCEEDED


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
