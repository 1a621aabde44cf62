"""`cloudtrain show`, and what a JOB argument may be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from tests.records import job, over

from .world import World, succeeded


def test_a_running_job(world: World) -> None:
    attempt = replace(
        over(1, 0, EndReason.SUCCEEDED, steps=(0, 140)), phase=Phase.WORKING, ended_at=None, end_reason=None
    )
    record = world.add(replace(job(attempt), status=JobStatus.RUNNING, total_steps=900))
    world.live(
        record.job_id,
        phase="saving",
        step=140,
        loss=0.25,
        machine_id="i-1",
        checks=["gpu: skipped"],
        trouble="ssh blinked",
    )
    world.store.add_event(record.job_id, world.at, "attempt 1: agent started")
    code, out, err = world.run("show", "digits")
    assert code == 0
    assert out.startswith("digits-abc123  RUNNING (saving)  step 140/900  loss 0.25")
    for words in ("ssh blinked", "machine: i-1 in aws/us-east-1/use1-az1", "check: gpu: skipped", "(not there yet)"):
        assert words in out
    assert "attempt 1: agent started" in out
    assert "cloudtrain down digits-abc123" in err


def test_a_finished_job(world: World) -> None:
    world.add(succeeded(job(), 1_800_000_050.0))
    code, out, err = world.run("show", "digits-abc")
    assert code == 0
    assert out.startswith("digits-abc123  SUCCEEDED\nresults: /nowhere/results\n")
    assert "interrupted" in out
    assert "next:" in err


def test_json_tells_the_whole_job_and_the_moment(world: World) -> None:
    record = world.add()
    world.live(record.job_id, first_step_at=1_800_000_010.5, loss=0.5)
    found = json.loads(world.run("show", "digits-abc123", "-o", "json")[1])
    assert found["first_step_at"] == 1_800_000_010.5
    assert (found["job"], found["status"], found["loss"], found["attempts"]) == ("digits-abc123", "PENDING", 0.5, [])


def test_before_the_first_look_of_the_controller(world: World) -> None:
    world.add()
    code, out, _ = world.run("show", "digits")
    assert code == 0
    assert out.startswith("digits-abc123  PENDING\n")


@pytest.mark.parametrize("command", ["show", "logs", "down"])
def test_no_such_job_is_3_in_one_line(world: World, command: str) -> None:
    world.add()
    code, out, err = world.run(command, "nope")
    assert (code, out) == (3, "")
    assert err.startswith("cloudtrain: no job 'nope'")
    assert err.count("\n") == 1


def test_an_id_a_live_name_or_the_beginning_of_one_id(world: World) -> None:
    world.add(succeeded(job(job_id="digits-aa1111"), 1_800_000_050.0))
    world.add(succeeded(job(job_id="digits-ab2222"), 1_800_000_050.0))
    assert "digits-aa1111" in world.run("show", "digits-aa1111")[1]
    assert "digits-ab2222" in world.run("show", "digits-ab")[1]
    code, _, err = world.run("show", "digits-a")
    assert code == 2
    assert "fits 2 jobs (digits-aa1111, digits-ab2222)" in err
    world.add(job(job_id="digits-zz9999"))
    assert "digits-zz9999" in world.run("show", "digits")[1]  # the live one of that name
    assert world.run("show", "")[0] == 3


@pytest.mark.parametrize(("command", "words"), [("show", "FAILED"), ("logs", "FAILED: lost with its cloud")])
def test_a_job_just_lost_with_its_cloud_is_shown_as_it_is_now(world: World, command: str, words: str) -> None:
    record = world.add(replace(job(), cloud="local", cloud_id="dead", status=JobStatus.RUNNING))
    world.clouds_live = world.controller_lives = False
    code, out, err = world.run(command, record.job_id)
    assert code == 0
    assert words in out + err
    assert "RUNNING" not in out + err
    assert "results:" not in out  # none will come
    assert world.started_controllers == 0  # nothing is left to drive


def test_a_job_that_was_taken_over_is_shown_as_it_was_with_the_way_to_it(world: World) -> None:
    record = world.add(job())
    world.change(record.job_id, let_go_at=world.at, status=JobStatus.RUNNING, driver="elsewhere")
    _, _, err = world.run("show", record.job_id)
    assert f"shown as it was; `cloudtrain adopt {record.job_id}`" in err
    assert "cloudtrain down" not in err
