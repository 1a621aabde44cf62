"""The loop, in this process: real commands, a bucket in memory, and a machine that goes wrong in its own ways."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.trainer.agent import commands, courier, stops, supervisor
from cloudtrain.trainer.agent.notices import Interruption
from cloudtrain.trainer.agent.objects import Denied, ObjectsError
from cloudtrain.trainer.contract import Latest, Notice, status_from_json, to_json
from tests.unit.agent_stand import KEYS, Stand, standing


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    with standing(tmp_path, monkeypatch) as made:
        yield made


def refuse_writes(call: str, key: str) -> None:
    if call in ("put", "upload"):
        raise Denied(f"put {key}: AccessDenied")


def test_a_bucket_that_takes_nothing_ends_the_job_before_hours_are_lost(stand: Stand) -> None:
    stand.monkeypatch.setattr(courier, "LOG_EVERY_S", 0.1)
    stand.monkeypatch.setattr(supervisor, "BARRED_S", 0.5)
    stand.objects.before = refuse_writes
    stand.start("echo working; sleep 60")
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "denied")
    assert status.error is not None and "AccessDenied" in status.error and "cloudtrain doctor" in status.error
    assert stand.off


def test_a_bucket_that_took_something_may_refuse_for_a_while(stand: Stand) -> None:
    stand.monkeypatch.setattr(courier, "LOG_EVERY_S", 0.1)
    stand.monkeypatch.setattr(supervisor, "BARRED_S", 0.3)
    stand.start("echo working; sleep 2")
    stand.until(lambda _: any(call == "upload" for call, _ in stand.objects.calls))
    stand.objects.before = refuse_writes
    stand.until(lambda status: "AccessDenied" in (status.error or ""))
    time.sleep(1.0)
    assert stand.status().phase == "running"
    stand.objects.before = lambda call, key: None
    assert stand.end().phase == "done"


def test_a_bug_in_a_thread_ends_the_job_and_is_told(stand: Stand) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    stand.connect = broken
    stand.start("mkdir $CLOUDTRAIN_CHECKPOINT_DIR/step-1; sleep 60")
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "machine")
    assert status.error is not None and "No module named 'boto3'" in status.error and "agent.log" in status.error
    assert stand.off


def test_done_is_not_said_before_the_bucket_has_everything(stand: Stand) -> None:
    def down(call: str, key: str) -> None:
        raise ObjectsError("no route to the bucket")

    stand.objects.before = down
    stand.start("echo x > $CLOUDTRAIN_OUTPUT_DIR/x")
    status = stand.until(lambda s: s.phase == "saving" and s.error is not None)
    assert status.error is not None and "no route to the bucket" in status.error
    assert KEYS.outcome(1) not in stand.objects.data and not stand.off
    stand.objects.before = lambda call, key: None
    status = stand.end()
    assert (status.phase, status.error) == ("done", None)
    assert status_from_json(stand.objects.data[KEYS.outcome(1)]).phase == "done"
    assert stand.off


def test_an_outage_while_training_stops_nothing(stand: Stand) -> None:
    def down(call: str, key: str) -> None:
        raise ObjectsError("throttled")

    stand.objects.before = down
    stand.start(
        "mkdir $CLOUDTRAIN_CHECKPOINT_DIR/step-1; sleep 1; echo w > $CLOUDTRAIN_CHECKPOINT_DIR/step-1/w; sleep 1"
    )
    status = stand.until(lambda s: (s.error is not None and s.phase == "running") or s.phase == "saving")
    stand.objects.before = lambda call, key: None
    status = stand.end()
    assert (status.phase, status.durable_step) == ("done", 1)


def test_a_notice_that_only_the_controller_saw_is_one(stand: Stand) -> None:
    step = "$CLOUDTRAIN_CHECKPOINT_DIR/step-7"
    stand.start(f"trap 'mkdir {step}; echo w > {step}/w; exit 0' TERM; while :; do sleep 0.05; done")
    stand.until(lambda s: s.phase == "running")
    time.sleep(0.3)
    stand.places.stop.write_bytes(to_json(Notice("interruption", 0.0)).encode())
    status = stand.until(lambda s: s.phase == "stopped")
    assert status.durable_step == 7
    assert status.notice_deadline_at == pytest.approx(time.time() + stops.TOLD_NOTICE_S, abs=20)
    time.sleep(0.2)
    assert not stand.off, "EC2 takes the machine, not we"


def test_a_notice_during_setup_ends_it_without_a_run(stand: Stand) -> None:
    stand.start("touch ran", setup="sleep 60")
    stand.until(lambda s: s.phase == "setup")
    stand.watcher.interruption = Interruption("terminate", time.time() + 4)
    status = stand.until(lambda s: s.phase == "stopped")
    assert status.exit_code is None
    assert not (stand.places.work / "ran").exists()
    time.sleep(0.2)
    assert not stand.off, "EC2 takes the machine, not we"


def test_a_job_that_ends_well_after_a_notice_is_done_and_waits_for_ec2(stand: Stand) -> None:
    # Not a shell's trap: SIGTERM is for the first process that is none, which between two `sleep`s is hard to hit.
    run = """python3 -c '
import json, os, signal, sys, time

def leave(*_):
    with open(os.environ["CLOUDTRAIN_PROGRESS"], "w") as file:
        json.dump(dict(step=7, done=True), file)
    sys.exit(1)

signal.signal(signal.SIGTERM, leave)
open("up", "w").close()
while True:
    time.sleep(0.05)
'"""
    stand.start(run)
    stand.until(lambda s: (stand.places.work / "up").exists())
    stand.watcher.interruption = Interruption("terminate", time.time() + 8)
    status = stand.until(lambda s: s.phase == "done")
    assert (status.progress.step, status.exit_code) == (7, 1)
    time.sleep(0.2)
    assert not stand.off


def test_a_job_that_ignores_everything_is_killed_at_the_deadline(stand: Stand) -> None:
    stand.start("trap '' TERM; while :; do sleep 0.1; done", grace_seconds=1.0)
    stand.until(lambda s: s.phase == "running")
    started = time.monotonic()
    stand.places.stop.write_text("{}")
    status = stand.end()
    assert status.phase == "stopped"
    assert time.monotonic() - started >= 1.0
    assert stand.off


def test_a_job_that_polls_the_file_gets_no_signal(stand: Stand) -> None:
    run = """
trap 'touch signalled' TERM
echo '{"step": 3, "stops_by_file": true}' > $CLOUDTRAIN_PROGRESS
until test -e $CLOUDTRAIN_NOTICE_FILE; do sleep 0.05; done
sleep 0.3
"""
    stand.start(run, grace_seconds=20.0)
    stand.until(lambda s: s.progress.step == 3)
    stand.places.stop.write_text("{}")
    assert stand.end().phase == "stopped"
    assert not (stand.places.work / "signalled").exists()


def test_an_unfit_machine_is_left(stand: Stand) -> None:
    stand.host.real = True
    stand.start("touch started", expect_accelerator="T4:1", expect_gpus=1)
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "machine")
    assert status.error == "machine check: 0 GPUs, not the 1 of T4:1"
    assert not (stand.places.work / "started").exists()
    assert stand.off


def test_an_image_without_what_the_job_needs_is_left_before_run(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    (stand.places.work / "train.py").write_text("import torch\n")
    stand.start("touch started; python train.py", envs={"PATH": f"{python.parent}:{os.environ['PATH']}"})
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "image")
    assert status.error is not None
    assert "has no torch, and train.py imports torch: install it in `setup`, or choose an image" in status.error
    assert not (stand.places.work / "started").exists()


def test_what_setup_installs_counts(stand: Stand, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    site = tmp_path / "site"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    (stand.places.work / "train.py").write_text("import torch\nopen('ran', 'w')\n")
    stand.start(
        "python train.py",
        setup=f"mkdir -p {site} && touch {site}/torch.py",
        envs={"PATH": f"{python.parent}:{os.environ['PATH']}"},
    )
    assert stand.end().phase == "done"
    assert (stand.places.work / "ran").exists()


def test_a_machine_that_goes_down_under_us_has_not_failed(stand: Stand) -> None:
    stand.host.real = True
    stand.start("sleep 60; touch next-line; sleep 60")
    stand.until(lambda s: s.phase == "running")
    assert stand.supervisor is not None
    time.sleep(0.2)
    stand.supervisor.going_down = True
    status = stand.end()
    assert (status.phase, status.failure) == ("stopped", None)
    assert time.time() - status.heartbeat_at < 10, "the script's next line was told as well"


def test_a_local_host_without_power_ends_at_once_and_judges_nothing(stand: Stand) -> None:
    stand.start("trap '' TERM; while :; do sleep 0.1; done")
    stand.until(lambda s: s.phase == "running")
    assert stand.supervisor is not None
    stand.supervisor.going_down = True
    assert stand.end().phase == "running"
    assert not stand.off and KEYS.outcome(1) not in stand.objects.data


def test_a_stop_does_not_wait_for_a_restore(stand: Stand) -> None:
    def down(call: str, key: str) -> None:
        if call == "list":
            raise ObjectsError("slow")

    stand.objects.data[KEYS.latest] = to_json(Latest(2, 5, "jobs/j/checkpoints/g0001-step-000000005", "0")).encode()
    stand.objects.before = down
    stand.start("true", generation=2)
    stand.until(lambda s: s.phase == "restoring" and s.error is not None)
    stand.places.stop.write_text("{}")
    status = stand.end()
    assert (status.phase, status.exit_code) == ("stopped", None)


def test_a_job_that_somebody_kills_is_judged_after_a_while(stand: Stand) -> None:
    started = time.monotonic()
    stand.start("echo last words; kill -9 $$")
    status = stand.end()
    assert time.monotonic() - started >= 2.0
    assert status.error == "run was ended by signal 9 (SIGKILL, often for want of memory): last words"


def test_a_job_that_lives_on_in_the_background_says_so(stand: Stand) -> None:
    stand.monkeypatch.setattr(commands, "LINGER_S", 0.3)
    stand.start("setsid sleep 3 &")
    status = stand.until(lambda s: any("lives on" in line for line in s.checks))
    assert "run: its shell has ended, sleep lives on, and the job with it" in status.checks
    assert stand.end().phase == "done"


def test_what_a_failed_job_leaves_behind_does_not_hold_the_machine(stand: Stand) -> None:
    stand.monkeypatch.setattr(commands, "LINGER_S", 0.3)
    stand.start("sleep 99 & setsid sleep 98 &\nsleep 0.2; exit 4")
    status = stand.end()
    assert (status.phase, status.exit_code) == ("failed", 4)


def test_a_full_disk_is_named_and_what_is_whole_gets_out(stand: Stand) -> None:
    run = "mkdir $CLOUDTRAIN_CHECKPOINT_DIR/.n; echo w > $CLOUDTRAIN_CHECKPOINT_DIR/.n/w\n"
    run += "mv $CLOUDTRAIN_CHECKPOINT_DIR/.n $CLOUDTRAIN_CHECKPOINT_DIR/step-5\n"
    run += "echo \"OSError: [Errno 28] No space left on device: 'step-6'\" >&2; exit 1"

    def full(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stand.monkeypatch.setattr("cloudtrain.trainer.agent.uploads.os.link", full)
    stand.start(run)
    status = stand.end()
    assert (status.phase, status.failure, status.durable_step) == ("failed", "machine", 5)
    assert status.error is not None and status.error.startswith("disk full on the machine: raise resources.disk_size")


def test_a_limit_counts_from_the_agents_start(stand: Stand) -> None:
    stand.start("sleep 60", setup="sleep 0.5", limit_s=1.0, limit_words="max_run of 1 s", grace_seconds=1.0)
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "max_run")
    assert status.run_seconds < 2.0
