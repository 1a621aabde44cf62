"""What the fault simulator found in the loop (python -m tests.faults), each as a story of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.decide.limits import BOOT_DEADLINE_S
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable, PoolUnavailable, RemoteError
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobStatus, LaunchRequest, Machine
from cloudtrain.provisioner.ports import RunResult, Target
from tests.bench import Bench, nothing_left
from tests.fake_agent import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def test_a_job_whose_old_machine_still_waits_for_ec2_waits_for_capacity_too(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    world.cloud.interrupt(first.instance_id, notice_s=120)
    world.cloud.refuse(lambda pool: True, PoolUnavailable("none", code="InsufficientInstanceCapacity"), times=6)
    record = bench.run()
    assert (record.status, record.attempts[0].handed_over) == (JobStatus.SUCCEEDED, True)


def test_each_absence_of_a_machine_from_the_list_is_judged_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(total_steps=2_000)
    world.cloud.hidden_s = 20.0  # it is missing right after its launch
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 1_000 for a in world.agents.values()))
    shown = world.cloud.machines
    gone_until = world.clock.now() + 60.0

    def for_a_minute_none(job_id: str, regions: object) -> tuple[Machine, ...]:
        return () if world.clock.now() < gone_until else shown(job_id, regions)  # type: ignore[arg-type]

    monkeypatch.setattr(world.cloud, "machines", for_a_minute_none)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_machine_that_trained_unseen_because_every_answer_was_lost_has_done_its_job(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.run

    def unanswered(target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        result = run(target, command, stdin=stdin, timeout_s=timeout_s)
        if stdin is not None:
            raise RemoteError("the connection broke")
        return result

    monkeypatch.setattr(world, "run", unanswered)
    record = bench.run()
    assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)


def test_a_computer_that_slept_before_its_launch_gives_the_machine_its_whole_time_to_boot(
    bench: Bench, world: World
) -> None:
    bench.run(until=lambda: bool(bench.store.get(bench.record.job_id).record.attempts))
    world.clock.advance(3 * 3600)
    record = bench.run()
    assert (record.status, record.failures, len(record.attempts)) == (JobStatus.SUCCEEDED, 0, 1)
    (instance,) = world.cloud.instances.values()
    deadlines = [
        float(found) for found in re.findall(r"^ *(?:at|hard)=(\d+)$", instance.request.user_data, re.MULTILINE)
    ]
    assert len(deadlines) == 2
    assert min(deadlines) > instance.launched_at + 1700


def test_the_bucket_is_told_that_a_job_is_over_once_it_answers_again(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "cancel")
    world.objects.faults.add("put", CloudUnreachable("no network"), times=12)
    bench.loop().run()
    assert bench.store.get(bench.record.job_id).record.status is JobStatus.CANCELLED
    assert takeover.look(world.objects, bench.record.job_id).record.status is JobStatus.CANCELLED


def test_a_bucket_that_never_answers_again_keeps_no_controller_for_ever(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "cancel")
    world.objects.faults.add("put", CloudUnreachable("no network"), times=100_000)
    bench.loop().run()
    assert bench.store.get(bench.record.job_id).record.status is JobStatus.CANCELLED
    nothing_left(world)


def test_a_machine_that_shows_late_is_ended_although_its_launch_had_no_answer_and_the_job_was_cancelled(
    bench: Bench, world: World
) -> None:
    world.cloud.hidden_s = 240.0
    world.cloud.faults.add("launch", CloudUnreachable("time-out"), when="after", times=100)
    bench.run(until=lambda: bool(world.cloud.instances))
    bench.store.want(bench.record.job_id, "cancel")
    assert bench.run().status is JobStatus.CANCELLED
    nothing_left(world)


def test_a_machine_that_does_not_end_and_is_not_listed_for_a_moment_is_not_gone(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: any(i.running_at <= world.clock.now() for i in world.cloud.instances.values()))
    world.cloud.faults.add("terminate", CloudUnreachable("time-out"), times=60)
    bench.store.want(bench.record.job_id, "cancel")
    bench.run(until=lambda: bench.store.get(bench.record.job_id).record.attempts[0].ending_at is not None)
    bench.run(until=lambda: world.cloud.count("terminate") > 40)
    shown, hidden_until = world.cloud.machines, world.clock.now() + 30.0

    def for_a_moment_none(job_id: str, regions: object) -> tuple[Machine, ...]:
        return () if world.clock.now() < hidden_until else shown(job_id, regions)  # type: ignore[arg-type]

    monkeypatch.setattr(world.cloud, "machines", for_a_moment_none)
    bench.run(until=lambda: world.clock.now() > hidden_until)
    assert bench.store.get(bench.record.job_id).record.attempts[0].ended_at is None
    assert bench.run().status is JobStatus.CANCELLED
    nothing_left(world)


def test_a_home_that_wakes_after_another_ended_the_job_clears_away_what_it_just_made(
    tmp_path: Path, bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: bench.record.job_id in {key.split("/")[1] for key in world.objects.objects})
    prepare = world.cloud.prepare

    def asleep(job_id: str, owner: str, regions: list[str], options: object = None) -> None:
        monkeypatch.setattr(world.cloud, "prepare", prepare)
        found = takeover.look(world.objects, bench.record.job_id)
        there = Bench(tmp_path / "b", world)
        taken = takeover.take(found, "another-home", tmp_path / "there", world.objects)
        there.store.put(taken.record, taken.etag)
        there.store.want(bench.record.job_id, "cancel")
        assert there.run().status is JobStatus.CANCELLED
        prepare(job_id, owner, regions)  # the first home wakes, and makes the group that was just swept

    (tmp_path / "b").mkdir()
    monkeypatch.setattr(world.cloud, "prepare", asleep)
    with pytest.raises(DrivenElsewhere):
        bench.loop().run()
    nothing_left(world)


@pytest.mark.parametrize(
    "refusal", [PoolUnavailable("none", code="InsufficientInstanceCapacity"), AccessError("UnauthorizedOperation")]
)
def test_a_refusal_does_not_end_a_launch_that_may_have_made_a_machine(
    bench: Bench, world: World, refusal: Exception
) -> None:
    world.cloud.hidden_s = 100.0
    world.cloud.faults.add("launch", CloudUnreachable("time-out"), when="after")
    bench.run(until=lambda: bool(world.cloud.instances))
    world.cloud.faults.add("prepare", refusal)
    record = bench.run()
    assert (record.status, len(record.attempts), len(world.cloud.instances)) == (JobStatus.SUCCEEDED, 1, 1)
    assert "looking 120 s for a machine that an earlier asking may have made" in bench.events()


def test_a_launch_without_an_answer_is_looked_for_before_the_next_pool_is_asked(bench: Bench, world: World) -> None:
    world.cloud.hidden_s = 400.0
    world.cloud.faults.add("launch", CloudUnreachable("time-out"), when="after", times=12)
    bench.run(until=lambda: world.cloud.count("launch") >= 6)
    record = bench.run()
    assert (record.status, len(record.attempts), len(world.cloud.instances)) == (JobStatus.SUCCEEDED, 1, 1)


def test_a_controller_that_died_while_it_asked_does_not_take_a_refusal_for_the_end(bench: Bench, world: World) -> None:
    class Died(BaseException):
        pass

    world.cloud.hidden_s = 100.0
    world.cloud.faults.add("launch", Died(), when="after")
    with pytest.raises(Died):
        bench.run()
    world.cloud.faults.add("prepare", PoolUnavailable("none", code="InsufficientInstanceCapacity"))
    record = bench.run()
    assert (record.status, len(record.attempts), len(world.cloud.instances)) == (JobStatus.SUCCEEDED, 1, 1)


def test_a_machine_that_ran_and_went_while_nobody_looked_is_charged(bench: Bench, world: World) -> None:
    bench.run(until=lambda: bool(world.cloud.instances))
    (first,) = world.cloud.instances.values()
    world.clock.advance(20_000)
    del world.cloud.instances[first.instance_id]
    record = bench.run(until=lambda: len(bench.store.get(bench.record.job_id).record.attempts) == 2)
    assert bill(record, world.clock.now()).lines[0].seconds == BOOT_DEADLINE_S


def test_a_machine_counts_from_the_last_look_that_the_cloud_answered(bench: Bench, world: World) -> None:
    bench.run(until=lambda: bool(world.cloud.instances))
    world.cloud.faults.add("machines", CloudUnreachable("no answer"), times=100)
    bench.run(until=lambda: not world.cloud.faults.pending("machines"))
    record = bench.run(until=lambda: bench.store.get(bench.record.job_id).record.attempts[0].running_at is not None)
    (first,) = world.cloud.instances.values()
    running_at = record.attempts[0].running_at
    assert running_at is not None
    assert running_at <= first.running_at


def test_a_home_that_slept_while_it_asked_ends_the_machine_that_nobody_drives_any_more(
    tmp_path: Path, bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: bench.record.job_id in {key.split("/")[1] for key in world.objects.objects})
    launch = world.cloud.launch

    def asleep(request: LaunchRequest) -> Machine:
        monkeypatch.setattr(world.cloud, "launch", launch)
        found = takeover.look(world.objects, bench.record.job_id)
        there = Bench(tmp_path / "b", world)
        taken = takeover.take(found, "another-home", tmp_path / "there", world.objects)
        there.store.put(taken.record, taken.etag)
        there.store.want(bench.record.job_id, "cancel")
        assert there.run().status is JobStatus.CANCELLED
        world.cloud.hidden_s = 20.0
        return launch(request)  # the first home wakes, in the middle of its request

    (tmp_path / "b").mkdir()
    monkeypatch.setattr(world.cloud, "launch", asleep)
    with pytest.raises(DrivenElsewhere):
        bench.loop().run()
    assert len(world.cloud.instances) == 1
    nothing_left(world)


def test_a_home_that_slept_after_its_last_look_looks_again_before_it_pays(
    tmp_path: Path, bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: bench.record.job_id in {key.split("/")[1] for key in world.objects.objects})
    keep, name = takeover.keep_attempt, "cloudtrain.provisioner.controller.effects.keep_attempt"

    def asleep(*given: Any) -> None:
        monkeypatch.setattr(name, keep)
        keep(*given)
        takeover.take(takeover.look(world.objects, bench.record.job_id), "another-home", tmp_path / "b", world.objects)
        world.clock.advance(600.0)

    (tmp_path / "b").mkdir()
    monkeypatch.setattr(name, asleep)
    with pytest.raises(DrivenElsewhere):
        bench.loop().run()
    assert not world.cloud.instances
