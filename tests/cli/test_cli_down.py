"""`cloudtrain down`: asks, cancels, waits until nothing is left, and says what ended."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from cloudtrain.provisioner.cli import down
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from tests.records import job, over

from .world import World


def cancelled(job_id: str, *, swept: bool = True) -> Callable[[World], None]:
    def step(world: World) -> None:
        assert world.store.get(job_id).wanted == "cancel"
        attempt = replace(over(1, 100, EndReason.CANCELLED), instance_id="i-1")
        world.store.add_event(job_id, world.at, "attempt 1: cancelled")
        world.change(
            job_id,
            status=JobStatus.CANCELLED,
            attempts=(attempt,),
            collected=True,
            swept=swept,
            detail="cancelled by you",
        )

    return step


def test_down_waits_until_it_is_over_and_says_what_ended(world: World) -> None:
    record = world.add()
    world.store.add_event(record.job_id, world.at, "an old story")
    world.script = [lambda w: None, cancelled(record.job_id)]
    code, out, err = world.run("down", "digits", "--yes")
    assert code == 0
    assert out == "digits-abc123 CANCELLED: 1 machine ended, nothing is left running; $0.0100\n"
    assert "attempt 1: cancelled" in err
    assert "an old story" not in err
    assert "next: `cloudtrain ls`" in err


def test_down_all_ends_every_live_job(world: World) -> None:
    one = world.add(job(job_id="a-1", name="a"))
    two = world.add(job(job_id="b-2", name="b"))
    world.script = [cancelled(one.job_id), cancelled(two.job_id)]
    code, out, _ = world.run("down", "--all", "-y")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["a-1", "b-2"]


def test_down_all_with_nothing_live(world: World) -> None:
    code, out, err = world.run("down", "--all", "-y")
    assert (code, out) == (0, "")
    assert "no live jobs" in err


def test_down_of_a_finished_job_does_nothing(world: World) -> None:
    world.add(replace(job(), status=JobStatus.SUCCEEDED))
    code, _, err = world.run("down", "digits", "-y")
    assert code == 0
    assert "is over already (SUCCEEDED)" in err
    assert world.store.get("digits-abc123").wanted == "run"


def test_either_a_job_or_all(world: World) -> None:
    for args in ([], ["digits", "--all"]):
        code, _, err = world.run("down", *args)
        assert code == 2
        assert "either JOBs or --all" in err


def test_without_a_terminal_it_needs_yes(world: World) -> None:
    world.add()
    code, _, err = world.run("down", "digits")
    assert code == 2
    assert "add --yes" in err
    assert world.store.get("digits-abc123").wanted == "run"


def test_a_job_that_takes_too_long_is_left_to_its_controller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "WAIT_S", 5.0)
    world.add()
    code, out, err = world.run("down", "digits", "-y")
    assert (code, out) == (101, "")
    assert "is still ending and goes on doing so by itself" in err


def test_what_could_not_be_swept_is_said(world: World) -> None:
    record = world.add()
    world.script = [cancelled(record.job_id, swept=False)]
    _, out, _ = world.run("down", "digits", "-y")
    assert "not all is gone: cancelled by you" in out


def test_a_dead_controller_is_brought_back_to_do_it(world: World) -> None:
    record = world.add()
    world.controller_lives = False
    world.script = [cancelled(record.job_id)]
    world.run("down", "digits", "-y")
    assert world.started_controllers == 1


def test_a_job_of_another_computer_is_refused(world: World) -> None:
    record = world.add()
    world.change(record.job_id, driver="elsewhere")
    code, _, err = world.run("down", "digits", "-y")
    assert code == 2
    assert "driven from another computer" in err


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_it_asks_once_and_names_what_is_live_and_its_price(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    typed = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    runs = replace(over(1, 0, EndReason.SUCCEEDED), phase=Phase.WORKING, ended_at=None, end_reason=None)
    one = world.add(replace(job(runs, job_id="a-1", name="a"), status=JobStatus.RUNNING))
    two = world.add(job(job_id="b-2", name="b"))
    world.script = [cancelled(one.job_id), cancelled(two.job_id)]
    code, out, err = world.run("down", "--all")
    assert code == 0
    assert "a-1  RUNNING  0.3600 $/hour\nb-2  PENDING  nothing of it runs\n" in err
    assert err.count("End these 2 jobs (0.3600 $/hour) for good? [y/N]") == 1
    assert len(out.splitlines()) == (2 if answer == "y" else 0)
    assert ("nothing was ended" in err) is (answer != "y")


def test_several_jobs_and_none_is_touched_where_one_is_unknown(world: World) -> None:
    one = world.add(job(job_id="a-1", name="a"))
    two = world.add(job(job_id="b-2", name="b"))
    code, _, err = world.run("down", "a", "nope", "-y")
    assert (code, "no job 'nope'" in err) == (3, True)
    assert world.store.get("a-1").wanted == "run"
    world.script = [cancelled(one.job_id), cancelled(two.job_id)]
    code, out, _ = world.run("down", "b", "a", "a-1", "-y")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["b-2", "a-1"])


def test_ctrl_c_says_that_the_end_goes_on(world: World) -> None:
    def ctrl_c(world: World) -> None:
        raise KeyboardInterrupt

    world.add()
    world.script = [ctrl_c]
    code, _, err = world.run("down", "digits", "-y")
    assert code == 130
    assert "goes on ending by itself" in err
