"""A job that its person stops and resumes, and what another computer finds of it in the bucket."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner import ledger
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.controller import effects, loop, takeover
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.decide.effects import KeepSnapshot
from cloudtrain.provisioner.errors import CloudtrainError, Conflict
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.shipping.snapshot import MANIFEST_NAME, TAR_NAME
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.fake_store import FakeStore
from tests.records import job


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


def stopped(bench: Bench, at_step: int = 50) -> JobRecord:
    """Run to a step, stop, and drive until it rests."""
    bench.run(until=lambda: any(a.step >= at_step for a in bench.world.agents.values()))
    bench.store.want(bench.record.job_id, "stop")
    return bench.run(until=lambda: bench.store.get(bench.record.job_id).resting)


def test_stop_keeps_a_checkpoint_and_leaves_nothing_running(bench: Bench, world: World) -> None:
    record = stopped(bench)
    assert (record.status, record.outcome) == (JobStatus.STOPPED, EndReason.STOPPED)
    assert record.attempts[0].end_reason is EndReason.STOPPED
    assert record.attempts[0].durable_step == record.attempts[0].last_step >= 50
    assert record.detail == f"stopped by you; `cloudtrain resume {record.job_id}` goes on"
    nothing_left(world)


def test_a_stopped_job_is_driven_by_nobody_and_its_name_stays_taken(bench: Bench, world: World) -> None:
    stopped(bench)
    launches = world.cloud.count("launch")
    bench.loop().run()
    assert world.cloud.count("launch") == launches
    with pytest.raises(Conflict, match="digits"):
        bench.store.add(replace(bench.record, job_id="digits-other1"))


def test_resume_goes_on_at_the_checkpoint_on_a_new_machine(bench: Bench, world: World) -> None:
    record = stopped(bench)
    bench.store.want(record.job_id, "run")
    done = bench.run()
    assert done.status is JobStatus.SUCCEEDED
    one, two = done.attempts
    assert two.start_step == one.durable_step
    assert done.preemptions == done.failures == 0
    assert f"resumed from step {one.durable_step}, the next is" in bench.events()
    nothing_left(world)


def test_a_stop_while_the_checkpoint_is_restored_loses_nothing_and_says_nothing_else(
    bench: Bench, world: World
) -> None:
    record = stopped(bench)
    bench.store.want(record.job_id, "run")

    def restoring() -> bool:
        for agent in world.agents.values():
            if agent.config.generation == 2 and agent.began:
                agent.began, agent.phase = False, "restoring"
        return bench.store.get(record.job_id).record.attempts[-1].started_at is not None and len(world.agents) == 2

    bench.run(until=restoring)
    bench.store.want(record.job_id, "stop")
    (agent,) = (a for a in world.agents.values() if a.config.generation == 2)
    bench.run(until=lambda: agent.stop_at is not None)
    world._leave(agent, "stopped", world.clock.now())
    record = bench.run(until=lambda: bench.store.get(record.job_id).resting)
    assert (record.status, record.attempts[1].start_step) == (JobStatus.STOPPED, None)
    assert ledger.bill(record, world.clock.now()).lost_steps == 0
    assert "begins at step 1" not in bench.events()


def test_down_after_stop_cancels_for_good(bench: Bench, world: World) -> None:
    record = stopped(bench)
    bench.store.want(record.job_id, "cancel")
    assert bench.run().status is JobStatus.CANCELLED
    nothing_left(world)


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.BOOTING])
def test_stop_before_anything_runs_leaves_nothing_and_resumes(bench: Bench, world: World, phase: Phase) -> None:
    def reached() -> bool:
        return any(a.phase is phase for a in bench.store.get(bench.record.job_id).record.attempts)

    bench.run(until=reached)
    bench.store.want(bench.record.job_id, "stop")
    record = bench.run(until=lambda: bench.store.get(bench.record.job_id).resting)
    assert record.status is JobStatus.STOPPED
    nothing_left(world)
    bench.store.want(record.job_id, "run")
    assert bench.run().status is JobStatus.SUCCEEDED


def test_a_job_that_is_done_when_it_should_stop_has_succeeded(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 299 for a in world.agents.values()))
    bench.store.want(bench.record.job_id, "stop")
    record = bench.run(until=lambda: bench.store.get(bench.record.job_id).resting)
    assert record.status in (JobStatus.SUCCEEDED, JobStatus.STOPPED)
    if record.attempts[0].end_reason is EndReason.SUCCEEDED:
        assert record.status is JobStatus.SUCCEEDED


def test_the_stop_request_is_repeated_until_the_machine_has_it(bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    world.cut = True
    bench.store.want(bench.record.job_id, "stop")
    asked_at = world.clock.now()
    bench.run(until=lambda: world.clock.now() > asked_at + 60)
    assert bench.store.get(bench.record.job_id).record.attempts[0].stop_heard_at is None
    world.cut = False
    record = bench.run(until=lambda: bench.store.get(bench.record.job_id).resting)
    assert record.attempts[0].stop_heard_at is not None
    assert record.attempts[0].end_detail is None
    assert record.attempts[0].durable_step == record.attempts[0].last_step


def test_the_bucket_holds_what_a_takeover_needs_out_of_the_machines_reach(tmp_path: Path, bench: Bench) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in bench.world.agents.values()))
    objects, record = bench.world.objects, bench.store.get(bench.record.job_id).record
    there = tmp_path / "elsewhere"
    there.mkdir()
    takeover.fetch(record, objects, there)
    for name in ("client-key.json", "attempt-1.host-key.json", "attempt-1.user-data"):
        assert (there / name).read_bytes() == (bench.job_dir / name).read_bytes()
        assert (there / name).stat().st_mode & 0o777 == 0o600
    assert not [key for key in objects.objects if key.startswith(record.prefix) and "key" in key.rsplit("/", 1)[-1]]


def test_a_large_snapshot_goes_into_the_bucket_while_the_loop_goes_on(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "INLINE_BYTES", 0)
    for name in (TAR_NAME, MANIFEST_NAME):
        (bench.job_dir / name).write_bytes(b"x" * 10)
    arrived, may_arrive = threading.Event(), threading.Event()

    def slow(call: str, when: str) -> None:
        if (call, when) == ("upload", "before"):
            arrived.set()
            assert may_arrive.wait(20)

    world.objects.faults.hook = slow
    record = replace(bench.record, snapshot_sha256="0" * 64, status=JobStatus.RUNNING)
    reach = Reach(world.cloud, world, world.objects, world.clock, AttemptFiles(bench.job_dir, record), bench.job_dir)
    acting = effects.Effects(reach)
    assert acting.perform(record, KeepSnapshot()) is None
    assert arrived.wait(20)
    assert acting.perform(record, KeepSnapshot()) is None, "asked again while it is under way"
    may_arrive.set()
    deadline = time.monotonic() + 20
    while acting.perform(record, KeepSnapshot()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {f"{record.control}/{TAR_NAME}", f"{record.control}/{MANIFEST_NAME}"} <= set(world.objects.objects)


def test_taking_over_makes_the_old_controller_let_go(tmp_path: Path, bench: Bench, world: World) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    old = bench.loop()
    old.open()
    found = takeover.take(
        takeover.look(world.objects, bench.record.job_id), "another-home", tmp_path / "there", world.objects
    )
    assert (found.record.driver, found.record.results) == ("another-home", str(tmp_path / "there"))
    bench.store.want(bench.record.job_id, "cancel")
    with pytest.raises(DrivenElsewhere):
        old.pass_once()
    assert world.cloud.live(), "what runs is not touched by a controller that has lost the job"


def test_a_job_that_is_taken_over_without_its_snapshot_can_be_ended(tmp_path: Path, bench: Bench, world: World) -> None:
    """Its computer died before anything trained: no snapshot is in the bucket, nor on the computer that ends it."""
    bench.run(until=lambda: any(a.step >= 1 for a in world.agents.values()))
    stored = bench.store.get(bench.record.job_id)
    record = replace(stored.record, snapshot_sha256="0" * 64, snapshot_kept=False)
    world.objects.objects[record_key(record.job_id)] = encode(record)
    for name in (TAR_NAME, MANIFEST_NAME):
        world.objects.objects.pop(f"{record.control}/{name}", None)
    (tmp_path / "there").mkdir()
    with pytest.raises(CloudtrainError, match=f"cloudtrain adopt {record.job_id} --end"):
        takeover.fetch(record, world.objects, tmp_path / "there")
    bench.store.save(record, version=stored.version, etag=stored.etag)
    bench.store.put(record, world.objects.get(record_key(record.job_id))[1])  # type: ignore[index]
    bench.store.want(record.job_id, "cancel")
    over = bench.run()
    assert over.status is JobStatus.CANCELLED
    assert world.cloud.live() == []


def test_a_controller_to_which_nothing_happens_learns_within_a_minute_that_it_has_lost_the_job(
    tmp_path: Path, bench: Bench, world: World
) -> None:
    bench.run(until=lambda: any(a.step >= 10 for a in world.agents.values()))
    old = bench.loop()
    old.open()
    old.pass_once()
    takeover.take(takeover.look(world.objects, bench.record.job_id), "another-home", tmp_path, world.objects)
    world.clock.sleep(loop.ASK_DRIVER_S + 1)
    with pytest.raises(DrivenElsewhere):
        old.pass_once()


def test_an_old_copy_of_a_record_counts_no_further(bench: Bench, world: World) -> None:
    record = bench.run(until=lambda: any(a.step >= 10 for a in world.agents.values()))
    now = world.clock.now()
    let_go = replace(record, let_go_at=now)
    assert bill(let_go, now + 86_400).usd == bill(record, now).usd < bill(record, now + 86_400).usd


def test_the_bucket_lists_its_jobs(bench: Bench) -> None:
    bench.run(until=lambda: bool(bench.world.agents))
    assert takeover.job_ids(bench.world.objects) == (bench.record.job_id,)


@pytest.mark.parametrize("kind", ["sqlite", "fake"])
def test_an_adopted_job_is_stored_as_its_bucket_has_it(tmp_path: Path, kind: str) -> None:
    store = SqliteStore(tmp_path / "jobs.db") if kind == "sqlite" else FakeStore()
    record = replace(job(), status=JobStatus.STOPPED, outcome=EndReason.STOPPED)
    store.put(record, '"one"')
    assert store.get(record.job_id).resting, "adopting a stopped job does not resume it"
    store.want(record.job_id, "cancel")
    store.put(replace(record, status=JobStatus.RUNNING, outcome=None), '"two"')
    stored = store.get(record.job_id)
    assert (stored.wanted, stored.etag, stored.record.status) == ("run", '"two"', JobStatus.RUNNING)
    with pytest.raises(Conflict, match="digits"):
        store.put(replace(job(), job_id="digits-zzzzzz"), '"three"')
