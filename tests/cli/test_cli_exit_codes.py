"""One test for each exit code that a command can end with, and one for each status that `ls` can show."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner import errors
from cloudtrain.provisioner.cli import down
from cloudtrain.provisioner.model import EndReason, JobStatus
from tests.records import job

from .world import World, succeeded

Case = Callable[[World, pytest.MonkeyPatch, Path], int]


def watched(world: World, patch: pytest.MonkeyPatch, path: Path, status: JobStatus, outcome: EndReason) -> int:
    """The exit code of a `resume` that sees the job end so."""
    world.add(replace(job(), status=JobStatus.STOPPED, outcome=EndReason.STOPPED))
    world.store.want("digits-abc123", "stop")

    def step(world: World) -> None:
        world.change("digits-abc123", status=status, outcome=outcome, collected=True, swept=True)
        world.store.want("digits-abc123", "stop" if status is JobStatus.STOPPED else "run")  # from another terminal

    world.script = [step]
    return world.run("resume", "digits")[0]


def ends(status: JobStatus, outcome: EndReason) -> Case:
    return lambda world, patch, path: watched(world, patch, path, status, outcome)


def cloud_died(world: World, patch: pytest.MonkeyPatch, path: Path) -> int:
    return watched(world, patch, path, JobStatus.FAILED, EndReason.CLOUD_LOST)


def no_fit(world: World, patch: pytest.MonkeyPatch, path: Path) -> int:
    (path / "job.yaml").write_text("resources: {accelerators: 'A100:3'}\nrun: a\n")
    return world.run("plan", path / "job.yaml")[0]


def too_slow(world: World, patch: pytest.MonkeyPatch, path: Path) -> int:
    patch.setattr(down, "WAIT_S", 1.0)
    world.add()
    return world.run("down", "digits", "-y")[0]


def interrupted(world: World, patch: pytest.MonkeyPatch, path: Path) -> int:
    def ctrl_c(world: World) -> None:
        raise KeyboardInterrupt

    world.add()
    world.script = [ctrl_c]
    return world.run("logs", "-f", "digits")[0]


CASES: list[tuple[int, Case]] = [
    (0, lambda world, patch, path: world.run("ls")[0]),
    (0, ends(JobStatus.SUCCEEDED, EndReason.SUCCEEDED)),
    (1, cloud_died),
    (2, lambda world, patch, path: world.run("ls", "--nope")[0]),
    (3, lambda world, patch, path: world.run("show", "nope")[0]),
    (4, no_fit),
    (4, ends(JobStatus.FAILED, EndReason.NO_CAPACITY)),
    (5, ends(JobStatus.FAILED, EndReason.MAX_RUN)),
    (6, ends(JobStatus.FAILED, EndReason.REFUSED)),
    (100, ends(JobStatus.FAILED, EndReason.JOB_FAILED)),
    (101, too_slow),
    (101, ends(JobStatus.STOPPED, EndReason.STOPPED)),
    (103, ends(JobStatus.CANCELLED, EndReason.CANCELLED)),
    (130, interrupted),
]


@pytest.mark.parametrize(("code", "case"), CASES)
def test_exit_codes(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, case: Case) -> None:
    assert case(world, monkeypatch, tmp_path) == code


def test_every_exit_code_is_tried() -> None:
    assert {code for code, _ in CASES} == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


@pytest.mark.parametrize("status", list(JobStatus))
def test_every_status_is_shown_and_leads_on(world: World, status: JobStatus) -> None:
    record = world.add(replace(succeeded(job(), 1_800_000_050.0), status=status))
    world.store.want(record.job_id, "stop" if status is JobStatus.STOPPED else "run")
    _, out, err = world.run("ls")
    assert f"  {status}  " in out
    assert json.loads(world.run("ls", "-o", "json")[1])["jobs"][0]["status"] == status
    assert f"{record.job_id}  {status}" in world.run("show", "digits")[1]
    step = "show" if status.final else "resume" if status is JobStatus.STOPPED else "logs -f"
    assert f"cloudtrain {step} {record.job_id}" in err
