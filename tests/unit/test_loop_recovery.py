"""The loop under the limits of recovery: waits that end, failures and interruptions that are counted, a deadline."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cloudtrain.provisioner import report
from cloudtrain.provisioner.errors import EXIT_JOB_FAILED, EXIT_LIMIT, EXIT_NO_CAPACITY, EXIT_OK, PoolUnavailable
from cloudtrain.provisioner.model import EndReason, JobStatus
from cloudtrain.provisioner.spec import Recovery, Resources
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.records import offering

NONE_LEFT = PoolUnavailable("no capacity there", code="InsufficientInstanceCapacity")
HOUR_S = 3600.0


def interrupt_once(bench: Bench, world: World, at_step: int = 100) -> None:
    bench.run(until=lambda: any(a.step >= at_step for a in world.agents.values()))
    world.cloud.interrupt(world.cloud.live()[0].instance_id)


def test_without_max_wait_a_job_that_gets_no_machine_ends_at_once(tmp_path: Path) -> None:
    world = World()
    world.cloud.refuse("", NONE_LEFT)
    began = world.clock.now()
    record = Bench(tmp_path, world).run()
    assert (record.outcome, report.exit_code(record)) == (EndReason.NO_CAPACITY, EXIT_NO_CAPACITY)
    assert world.clock.now() - began < 120
    assert record.detail is not None and "wait with max_wait" in record.detail


def test_with_max_wait_it_says_until_when_it_waits_and_takes_what_comes(tmp_path: Path) -> None:
    world = World()
    world.cloud.refuse("", NONE_LEFT, times=9)
    bench = Bench(tmp_path, world, max_wait_s=4 * HOUR_S)
    bench.run(until=lambda: "waiting for a machine" in bench.events())
    waiting = bench.store.get(bench.record.job_id).record
    assert waiting.detail is not None
    assert waiting.detail.startswith(
        "waiting for a machine until 2027-01-15 12:00 UTC: none of its 3 pools has one now"
    )
    record = bench.run()
    assert (record.status, record.detail) == (JobStatus.SUCCEEDED, None)
    assert bench.events().count("waiting for a machine") == 1
    nothing_left(world)


def test_max_wait_ends_a_wait_also_in_recovery(tmp_path: Path) -> None:
    world = World(total_steps=3000)
    bench = Bench(tmp_path, world, max_wait_s=HOUR_S)
    interrupt_once(bench, world)
    world.cloud.refuse("", NONE_LEFT)
    interrupted_at = world.clock.now()
    record = bench.run()
    assert record.outcome is EndReason.NO_CAPACITY
    assert 0.5 * HOUR_S < world.clock.now() - interrupted_at < 1.5 * HOUR_S
    nothing_left(world)


def test_a_laptop_that_sleeps_has_not_waited(tmp_path: Path) -> None:
    world = World(total_steps=3000)
    bench = Bench(tmp_path, world)  # a day, in recovery
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    world.cloud.kill(world.cloud.live()[0].instance_id)
    bench.run(until=lambda: bench.store.get(bench.record.job_id).record.status is JobStatus.RECOVERING)
    world.cloud.refuse("", NONE_LEFT, times=3)
    world.clock.sleep(30 * HOUR_S)
    assert bench.run().status is JobStatus.SUCCEEDED


def test_a_run_that_fails_starts_again_as_often_as_it_may(tmp_path: Path) -> None:
    world = World(fail_at=150)
    bench = Bench(tmp_path, world, recovery=Recovery(max_failures=2))
    bench.run(until=lambda: len(world.agents) == 3)
    world.fail_at = None
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [*[EndReason.JOB_FAILED] * 2, EndReason.SUCCEEDED]
    assert [a.start_step for a in record.attempts] == [0, 60 * (150 // 60), 60 * (150 // 60)]
    assert (record.failures, report.exit_code(record)) == (0, EXIT_OK)
    assert "starts again from its last checkpoint: failure 2 of 2 allowed" in bench.events()


@pytest.mark.parametrize("most", [0, 1])
def test_the_next_failure_is_final(tmp_path: Path, most: int) -> None:
    world = World(fail_at=150)
    record = Bench(tmp_path, world, recovery=Recovery(max_failures=most)).run()
    assert [a.end_reason for a in record.attempts] == [EndReason.JOB_FAILED] * (most + 1)
    assert (record.outcome, report.exit_code(record)) == (EndReason.JOB_FAILED, EXIT_JOB_FAILED)
    nothing_left(world)


def test_a_run_that_fails_once_ec2_has_given_notice_is_an_interruption(tmp_path: Path) -> None:
    world = World(fail_at=102)
    bench = Bench(tmp_path, world, recovery=Recovery(max_failures=0))
    interrupt_once(bench, world)
    bench.run(until=lambda: any(a.phase == "failed" for a in world.agents.values()))
    world.fail_at = None
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.INTERRUPTED, EndReason.SUCCEEDED]
    assert record.failures == 0


@pytest.mark.parametrize("handed_over", [True, False])
def test_interruptions_have_a_limit_of_their_own(tmp_path: Path, handed_over: bool) -> None:
    world = World(total_steps=3000)
    bench = Bench(tmp_path, world, recovery=Recovery(max_preemptions=1))
    interrupt_once(bench, world)
    bench.run(until=lambda: len(world.agents) == 2)
    bench.run(until=lambda: any(a.step >= 200 for a in world.agents.values()))
    second = next(i for i in world.cloud.live() if not i.doomed)
    if handed_over:
        world.cloud.interrupt(second.instance_id)
    else:
        world.cloud.kill(second.instance_id, "Server.SpotInstanceTermination")
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.INTERRUPTED] * 2
    assert (record.outcome, report.exit_code(record)) == (EndReason.PREEMPTIONS, EXIT_NO_CAPACITY)
    assert record.detail is not None and "EC2 took 2 machines, recovery.max_preemptions is 1" in record.detail
    assert all(a.ended_by_cloud for a in record.attempts), "no machine that EC2 takes is ended by us: it is free"
    nothing_left(world)


def test_past_its_deadline_a_job_goes_on_says_so_once_and_ends_with_5(tmp_path: Path) -> None:
    world = World(total_steps=300)
    bench = Bench(tmp_path, world, deadline_s=120.0)
    record = bench.run()
    assert (record.status, report.exit_code(record)) == (JobStatus.SUCCEEDED, EXIT_LIMIT)
    assert record.late_at == pytest.approx(record.created_at + 120, abs=10)
    assert bench.events().count("its deadline, 2027-01-15 08:02 UTC, has passed: it goes on") == 1


def test_a_job_within_its_deadline_ends_with_0(tmp_path: Path) -> None:
    record = Bench(tmp_path, World(total_steps=100), deadline_s=HOUR_S).run()
    assert (record.late_at, report.exit_code(record)) == (None, EXIT_OK)


def test_pools_that_are_all_too_dear_end_a_job_that_does_not_wait(tmp_path: Path) -> None:
    world = World()
    capped = (Resources(accelerators="T4:1", use_spot=True, max_hourly_cost_usd=Decimal("0.20")),)
    record = Bench(tmp_path, world, (offering("use1-az1", "0.15"),), resources=capped).run()
    assert (record.outcome, world.cloud.count("launch")) == (EndReason.NO_CAPACITY, 0)
    assert record.detail is not None and record.detail.startswith("every pool is too dear now: raise the limit, or")
