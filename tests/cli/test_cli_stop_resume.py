"""`cloudtrain stop` and `resume`: a checkpoint, the machine given back, and on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from cloudtrain.provisioner.cli import stop
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus, Phase
from tests.records import job, over

from .world import World, succeeded

STOPPED = replace(over(1, 100, EndReason.STOPPED, steps=(0, 140)), instance_id="i-1", durable_step=140)
RUNNING = replace(over(1, 0, EndReason.SUCCEEDED), phase=Phase.WORKING, ended_at=None, end_reason=None)


def stops(job_id: str = "digits-abc123") -> Callable[[World], None]:
    def step(world: World) -> None:
        assert world.store.get(job_id).wanted == "stop"
        world.store.add_event(job_id, world.at, "attempt 1: stopped")
        world.change(job_id, status=JobStatus.STOPPED, outcome=EndReason.STOPPED, attempts=(STOPPED,))

    return step


def stopped(world: World, cloud: str = "aws") -> JobRecord:
    record = job(STOPPED)
    record = world.add(replace(record, cloud=cloud, status=JobStatus.STOPPED, outcome=EndReason.STOPPED))
    world.store.want(record.job_id, "stop")
    return record


def test_stop_waits_and_says_what_is_kept_and_how_to_go_on(world: World) -> None:
    record = world.add(replace(job(RUNNING), status=JobStatus.RUNNING))
    world.store.add_event(record.job_id, world.at, "an old story")
    world.script = [lambda w: None, stops()]
    code, out, err = world.run("stop", "digits")
    assert code == 0
    assert out.startswith(
        "digits-abc123 STOPPED: checkpoint of step 140 kept; 1 machine ended, nothing is left running"
    )
    assert "attempt 1: stopped" in err and "an old story" not in err
    assert "next: `cloudtrain resume digits-abc123`" in err


def test_stopped_already_is_said(world: World) -> None:
    stopped(world)
    code, out, err = world.run("stop", "digits")
    assert (code, out) == (0, "")
    assert "is stopped already; next: `cloudtrain resume digits-abc123`" in err
    found = json.loads(world.run("stop", "digits", "-o", "json")[1])["jobs"]
    assert found == [{"job": "digits-abc123", "status": "STOPPED", "done": True, "machines": 1, "usd": 0.01}]


def test_a_job_that_was_over_first_is_said_to_be(world: World) -> None:
    world.add(replace(job(RUNNING), status=JobStatus.RUNNING))
    world.script = [lambda w: w.change("digits-abc123", status=JobStatus.SUCCEEDED, outcome=EndReason.SUCCEEDED)]
    code, out, _ = world.run("stop", "digits")
    assert code == 0
    assert "SUCCEEDED; it was over before it could stop" in out


def test_a_stop_that_takes_long_is_left_to_the_controller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "WAIT_S", 2.0)
    world.add(replace(job(RUNNING), status=JobStatus.RUNNING))
    code, out, err = world.run("stop", "digits")
    assert (code, out) == (101, "")
    assert "is still stopping" in err


def test_ctrl_c_leaves_the_stopping(world: World) -> None:
    def ctrl_c(world: World) -> None:
        raise KeyboardInterrupt

    world.add(replace(job(RUNNING), status=JobStatus.RUNNING))
    world.script = [ctrl_c]
    code, _, err = world.run("stop", "digits")
    assert (code, world.store.get("digits-abc123").wanted) == (130, "stop")
    assert "goes on stopping by itself" in err


@pytest.mark.parametrize("command", ["stop", "resume"])
def test_what_is_over_or_driven_elsewhere_is_refused(world: World, command: str) -> None:
    world.add(succeeded(job(job_id="over-111111", name="over"), 1.0))
    world.add(job(job_id="away-111111", name="away"))
    world.change("away-111111", driver="elsewhere")
    assert world.run(command, "nope")[0] == 3
    for name, words in (("over", "is over already (SUCCEEDED)"), ("away", "`cloudtrain adopt away-111111`")):
        code, out, err = world.run(command, name)
        assert (code, out) == (2, "")
        assert words in err


def test_resume_goes_on_to_the_end(world: World) -> None:
    record = stopped(world)
    world.controller_lives = False
    world.store.add_event(record.job_id, world.at, "an old story")

    def ends(world: World) -> None:
        stored = world.store.get(record.job_id)
        assert stored.wanted == "run"
        world.store.save(succeeded(stored.record, world.at), version=stored.version, etag=None)

    world.script = [lambda w: w.change(record.job_id, status=JobStatus.RUNNING, outcome=None), ends]
    code, out, err = world.run("resume", "digits")
    assert code == 0
    assert world.started_controllers == 1
    assert "results: /nowhere/results" in out
    assert "an old story" not in err


def test_resume_detached(world: World) -> None:
    stopped(world)
    code, out, _ = world.run("resume", "digits", "--detach")
    assert (code, out) == (0, "digits-abc123\n")
    assert world.store.get("digits-abc123").wanted == "run"


def test_a_job_that_runs_is_not_resumed(world: World) -> None:
    world.add(replace(job(RUNNING), status=JobStatus.RUNNING))
    code, _, err = world.run("resume", "digits")
    assert code == 2
    assert "is RUNNING, not stopped; `cloudtrain logs -f digits-abc123` follows it" in err
    code, _, err = world.run("resume", "digits", "--budget", "20")
    assert code == 2
    assert "its limits can be changed once it rests; `cloudtrain stop digits-abc123`" in err


def test_the_local_clouds_checkpoints_end_with_it_and_that_is_said(world: World) -> None:
    world.add(replace(job(RUNNING), cloud="local", status=JobStatus.RUNNING))
    world.script = [stops()]
    assert "they end with `cloudtrain local down`" in world.run("stop", "digits")[2]


def test_limits_change_only_once_a_job_rests(world: World) -> None:
    record = stopped(world)
    world.change(record.job_id, status=JobStatus.STOPPING)
    code, _, err = world.run("resume", "digits", "--budget", "20")
    assert (code, world.store.get(record.job_id).wanted) == (2, "stop")
    assert "is still stopping: its limits can be changed once `cloudtrain ls` shows STOPPED" in err


def test_a_job_at_its_budget_is_not_resumed_to_its_end(world: World) -> None:
    record = stopped(world)
    world.change(record.job_id, spec=replace(record.spec, budget_usd=Decimal("0.01")))
    code, _, err = world.run("resume", "digits")
    assert (code, world.store.get(record.job_id).wanted) == (2, "stop")
    assert "`cloudtrain resume digits-abc123 --budget 0.0" in err and "or more would do" in err


def test_a_local_job_whose_cloud_is_gone_is_not_taken_up(world: World) -> None:
    record = world.add(replace(job(STOPPED), cloud="local", cloud_id="gone"))
    world.change(record.job_id, status=JobStatus.FAILED, outcome=EndReason.BUDGET)
    code, _, err = world.run("resume", record.job_id)
    assert code == 2
    assert "was lost with its cloud" in err
