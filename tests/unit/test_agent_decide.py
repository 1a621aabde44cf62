"""The agent's decisions: when to signal, what an end means, what may be published, tried and deleted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.trainer.agent.decide_publish import Publish, Stored, candidates, deletions, may_publish, stored
from cloudtrain.trainer.agent.decide_stop import (
    Reason,
    Signal,
    Stop,
    exited,
    job_deadline,
    merge,
    next_signal,
    settled,
    verdict,
)
from cloudtrain.trainer.contract import Keys, Latest

STOP = Stop(Reason.STOP, 100.0, 140.0)


@pytest.mark.parametrize(
    ("now", "by_file", "expected"),
    [
        (100.0, False, Signal.TERMINATE),  # a script that knows no file is told at once
        (139.9, False, Signal.TERMINATE),  # and so is what it starts next
        (100.0, True, Signal.NONE),  # the file is enough
        (129.9, True, Signal.NONE),
        (130.0, True, Signal.TERMINATE),  # a quarter of the grace is left
        (140.0, True, Signal.KILL),
        (140.0, False, Signal.KILL),
    ],
)
def test_signals(now: float, by_file: bool, expected: Signal) -> None:
    assert next_signal(STOP, now, stops_by_file=by_file) is expected


@given(st.floats(0, 1e9), st.floats(-1e3, 1e4))
def test_the_margin_is_kept_for_the_upload(now: float, notice_s: float) -> None:
    deadline = job_deadline(now, now + notice_s)
    assert deadline >= now
    if notice_s > 0:
        assert deadline <= now + notice_s + 1e-6
    if notice_s >= 120:
        assert now + notice_s - deadline == pytest.approx(30, abs=1e-3)


@given(st.sampled_from(Reason), st.sampled_from(Reason), st.floats(0, 100), st.floats(0, 100))
def test_a_second_request_never_gives_more_time(first: Reason, second: Reason, a: float, b: float) -> None:
    merged = merge(Stop(first, 0.0, a), Stop(second, 1.0, b))
    assert merged.deadline_at == min(a, b)
    assert merged.asked_at == 0.0
    assert merged.reason in (first, second)


def test_what_ec2_does_outranks_what_the_controller_asked() -> None:
    assert merge(STOP, Stop(Reason.INTERRUPTION, 101.0, 200.0)).reason is Reason.INTERRUPTION
    assert merge(Stop(Reason.INTERRUPTION, 101.0, 200.0), STOP).reason is Reason.INTERRUPTION


def judge(stop: Stop | None, code: int | None, done: bool = False, disk_full: bool = False) -> tuple[str, str | None]:
    found = verdict(stop=stop, exit_code=code, done=done, last_line="boom", disk_full=disk_full)
    return found.phase, found.failure


@pytest.mark.parametrize(
    ("stop", "code", "done", "expected"),
    [
        (None, 0, False, ("done", None)),
        (None, 1, True, ("done", None)),
        (None, 1, False, ("failed", "job")),
        (None, -9, False, ("failed", "job")),
        (STOP, 0, False, ("stopped", None)),  # Lightning and HF exit 0 after SIGTERM
        (STOP, 1, False, ("stopped", None)),  # torchrun exits 1 whatever its workers return
        (STOP, 143, False, ("stopped", None)),
        (STOP, 0, True, ("done", None)),  # it came to its end within the grace
        (STOP, None, False, ("stopped", None)),  # before it ever ran
        (Stop(Reason.MAX_RUN, 0, 1, "max_run"), 1, False, ("failed", "max_run")),
        (Stop(Reason.BUDGET, 0, 1, "budget"), 0, False, ("failed", "budget")),
        (Stop(Reason.BUDGET, 0, 1, "budget"), 0, True, ("done", None)),
        (Stop(Reason.FENCED, 0, 1), 0, True, ("stopped", None)),
    ],
)
def test_verdicts(stop: Stop | None, code: int | None, done: bool, expected: tuple[str, str | None]) -> None:
    assert judge(stop, code, done) == expected


def test_a_full_disk_is_the_machines_fault_and_says_what_to_do() -> None:
    found = verdict(stop=None, exit_code=1, done=False, last_line="boom", disk_full=True)
    assert (found.phase, found.failure) == ("failed", "machine")
    assert found.error is not None and "disk full on the machine" in found.error and "disk_size" in found.error


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "exited with code 1"), (127, "command not found"), (-9, "SIGKILL"), (137, "SIGKILL"), (139, "SIGSEGV")],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert words in exited(code)


def test_a_job_that_somebody_else_killed_is_not_judged_at_once() -> None:
    assert not settled(-15, asked=False, ended_for_s=0.5)
    assert not settled(137, asked=False, ended_for_s=0.5)
    assert settled(137, asked=False, ended_for_s=2.0)
    assert settled(-15, asked=True, ended_for_s=0.0)
    assert settled(1, asked=False, ended_for_s=0.0)


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (None, Publish.PUBLISH),
        (Latest(2), Publish.PUBLISH),
        (Latest(2, 9, "k9"), Publish.PUBLISH),
        (Latest(2, 10, "ours"), Publish.ALREADY),
        (Latest(2, 10, "k10"), Publish.OLDER),
        (Latest(2, 11, "k11"), Publish.OLDER),
        (Latest(2, 11, "bad"), Publish.PUBLISH),
        (Latest(3, 9, "k9"), Publish.FENCED),
        (Latest(1, 9, "k9"), Publish.UNCLAIMED),
    ],
)
def test_may_publish(latest: Latest | None, expected: Publish) -> None:
    assert may_publish(latest, generation=2, step=10, key="ours", damaged={"bad"}) is expected


def listing(*checkpoints: tuple[int, int, bool]) -> list[str]:
    """Keys of (generation, step, whole)."""
    keys = Keys("jobs/j")
    found = ["jobs/j/latest.json", "jobs/j/checkpoints/strange/x", "jobs/j/checkpoints/loose"]
    for generation, step, whole in checkpoints:
        prefix = keys.checkpoint(generation, step)
        found += [f"{prefix}/model.pt", *([f"{prefix}/MANIFEST.json"] if whole else [])]
    return found


def test_only_published_or_older_whole_checkpoints_are_tried() -> None:
    keys = Keys("jobs/j")
    found = stored("jobs/j", listing((1, 900, True), (1, 1000, True), (2, 950, True), (1, 940, False), (1, 1100, True)))
    tried = candidates(Latest(3, 1000, keys.checkpoint(1, 1000)), found)
    assert tried == (keys.checkpoint(1, 1000), keys.checkpoint(2, 950), keys.checkpoint(1, 900))
    assert candidates(Latest(3), found) == ()
    assert candidates(None, found) == ()


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.booleans()), unique_by=lambda c: c[:2]),
    st.integers(0, 4),
    st.data(),
)
def test_deletion_never_takes_the_published_one_nor_more_than_it_may(
    checkpoints: list[tuple[int, int, bool]], keep: int, data: st.DataObject
) -> None:
    keys = Keys("jobs/j")
    generation, step, _ = data.draw(st.sampled_from([*checkpoints, (3, 10, True)]))
    checkpoints = [c for c in checkpoints if c[:2] != (generation, step)] + [(generation, step, True)]
    found = stored("jobs/j", listing(*checkpoints))
    latest = Latest(3, step, keys.checkpoint(generation, step))
    doomed = set(deletions(found, latest=latest, keep=keep))
    assert not any(key.startswith(f"{latest.key}/") for key in doomed)
    gone: set[Stored] = {c for c in found if set(c.objects) <= doomed}
    assert {key for c in gone for key in c.objects} == doomed, "whole checkpoints go, or nothing of them"
    older_whole = [c for c in found if c.whole and c.step < step]
    left = [c for c in older_whole if c not in gone]
    assert len(left) == min(len(older_whole), max(0, keep - 1))
    assert all(c.step < step for c in gone)
    assert (
        not left
        or not (gone & set(older_whole))
        or min(c.step for c in left) >= max(c.step for c in gone & set(older_whole))
    )


def test_a_manifest_goes_before_its_parts() -> None:
    keys = Keys("jobs/j")
    found = stored("jobs/j", listing((1, 1, True), (1, 2, True)))
    doomed = deletions(found, latest=Latest(1, 2, keys.checkpoint(1, 2)), keep=1)
    assert [key.rpartition("/")[2] for key in doomed] == ["MANIFEST.json", "model.pt"]
