"""`cloudtrain logs`: bytes as they were written, attempt after attempt, to the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.cli import logs
from cloudtrain.provisioner.home import log_path
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from tests.records import job, over

from .world import World

ONE = over(1, 100, EndReason.INTERRUPTED, by_cloud=True)
TWO = over(2, 100, EndReason.SUCCEEDED)


def write(world: World, record: JobRecord, generation: int, data: bytes) -> None:
    path: Path = log_path(world.home.job_dir(record.job_id), generation)
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def run_bytes(world: World, capfdbinary: pytest.CaptureFixture[bytes], *args: str) -> tuple[bytes, bytes]:
    from cloudtrain.provisioner.cli.main import main

    assert main(["logs", *args]) == 0
    return capfdbinary.readouterr()


@pytest.fixture
def world(home: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, None)  # type: ignore[arg-type]


def test_all_attempts_in_order_byte_for_byte(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = world.add(job(ONE, TWO))
    write(world, record, 1, "训练\n".encode()[:-2])  # cut inside a character
    write(world, record, 2, b"\xff\r50%\r100%\n")
    out, err = run_bytes(world, capfdbinary, "digits")
    assert out == "训练\n".encode()[:-2] + b"\xff\r50%\r100%\n"
    assert b"--- attempt 1 on aws/us-east-1/use1-az1" in err
    assert b"--- attempt 2" in err


def test_nothing_yet(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    world.add()
    out, err = run_bytes(world, capfdbinary, "digits")
    assert out == b""
    assert b"nothing was written yet" in err
    assert b"next: `cloudtrain logs -f digits-abc123`" in err


def test_following_goes_on_over_attempts_until_the_end(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = world.add(job(ONE))
    write(world, record, 1, b"a")

    def resumes(world: World) -> None:
        world.change(record.job_id, attempts=(ONE, TWO))
        write(world, record, 2, b"c")

    def finishes(world: World) -> None:
        write(world, record, 2, b"d\n")
        world.change(record.job_id, status=JobStatus.SUCCEEDED)

    world.script = [lambda w: write(w, record, 1, b"b"), lambda w: None, resumes, finishes]
    out, err = run_bytes(world, capfdbinary, "-f", "digits")
    assert out == b"abcd\n"
    assert b"SUCCEEDED; next: `cloudtrain show digits-abc123`" in err


def test_following_brings_a_dead_controller_back(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = world.add(job(ONE))

    def dies(world: World) -> None:
        world.controller_lives = False

    world.script = [dies] + [lambda w: None] * 40 + [lambda w: w.change(record.job_id, status=JobStatus.FAILED)]
    _, err = run_bytes(world, capfdbinary, "-f", "digits")
    assert world.started_controllers == 1
    assert b"the controller was not running" in err


def test_a_finished_jobs_log_needs_nobody(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = world.add(replace(job(TWO), status=JobStatus.SUCCEEDED))
    write(world, record, 2, b"done\n")
    out, _ = run_bytes(world, capfdbinary, "-f", "digits-abc123")
    assert out == b"done\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("0", b""),
        ("1", b"e"),
        ("2", b"d\ne"),
        ("3", b"c\nd\ne"),
        ("4", b"b\nc\nd\ne"),
        ("99", b"a\nb\nc\nd\ne"),
    ],
)
def test_the_last_lines_over_all_attempts(
    world: World,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    expected: bytes,
) -> None:
    monkeypatch.setattr(logs, "CHUNK", 2)
    record = world.add(job(ONE, TWO))
    write(world, record, 1, b"a\nb\n")
    write(world, record, 2, b"c\nd\ne")
    out, err = run_bytes(world, capfdbinary, "--tail", lines, "digits")
    assert out == expected
    assert (b"attempt 1" in err) is (lines in ("4", "99"))


def test_the_last_lines_and_what_comes_after_them(world: World, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = world.add(job(ONE))
    write(world, record, 1, b"a\nb\n")
    world.script = [
        lambda w: write(w, record, 1, b"c\n"),
        lambda w: w.change(record.job_id, status=JobStatus.SUCCEEDED),
    ]
    assert run_bytes(world, capfdbinary, "-f", "-n", "1", "digits")[0] == b"b\nc\n"
