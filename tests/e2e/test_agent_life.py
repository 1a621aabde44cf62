"""The agent as it lives on a machine: its own process, the user's processes, S3 and the metadata service over HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.trainer import checkpoint
from cloudtrain.trainer.contract import FINAL_PHASES, AgentStatus, Keys, Latest, checkpoint_name, status_from_json
from tests.e2e.agent_site import Machine, Metadata, bucket_at, metadata_server, s3_server

pytestmark = pytest.mark.slow

NewMachine = Callable[..., Machine]

# What any framework does: a loop, a checkpoint made whole by a rename, SIGTERM saves and leaves.
PLAIN = """
import os, pathlib, shutil, signal, sys, time
directory = pathlib.Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
resume = os.environ.get("CLOUDTRAIN_RESUME")
step = int((pathlib.Path(resume) / "step.txt").read_text()) if resume else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
def save():
    temporary = directory / f".new-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    (temporary / "step.txt").write_text(str(step))
    temporary.rename(directory / f"step-{step}")
last = int(sys.argv[1])
print("from", step, flush=True)
while step < last and not asked:
    time.sleep(0.02)
    step += 1
    if step % 20 == 0:
        save()
if asked:
    save()
    sys.exit(1)
pathlib.Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "result.txt").write_text(f"{step}")
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def metadata() -> Iterator[tuple[Metadata, str]]:
    with metadata_server() as served:
        yield served


@pytest.fixture
def new_machine(tmp_path: Path, s3: str, metadata: tuple[Metadata, str]) -> Iterator[NewMachine]:
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    objects = bucket_at(s3, bucket)
    machines: list[Machine] = []

    def make(*, s3_at: str = s3) -> Machine:
        machine = Machine(tmp_path / f"machine-{len(machines)}", objects, bucket, s3_at, metadata[1])
        machines.append(machine)
        return machine

    yield make
    for machine in machines:
        machine.destroy()


def final(status: AgentStatus) -> bool:
    return status.phase in FINAL_PHASES


def outcome(machine: Machine, generation: int = 1) -> AgentStatus:
    found = machine.objects.get(machine.keys.outcome(generation))
    assert found is not None
    return status_from_json(found[0])


def test_a_job_runs_and_everything_is_durable_before_it_says_done(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    run = (
        'echo one\necho "two: $PWD"\nmkdir -p "$CLOUDTRAIN_OUTPUT_DIR/a b"; echo x > "$CLOUDTRAIN_OUTPUT_DIR/a b/ü.txt"'
    )
    machine.ship(run=run, workdir={"train.py": "pass\n"}, expect_accelerator="T4:1", expect_gpus=1)
    assert machine.bootstrap() == {"ok": True, "agent": "started"}
    status = machine.wait(final)
    assert (status.phase, status.exit_code, status.error, status.failure) == ("done", 0, None, None)
    assert "gpu: skipped, a local host stands in for T4:1" in status.checks
    assert outcome(machine).phase == "done"
    log = machine.objects.get(machine.keys.log(1))
    assert log is not None and log[0] == f"one\ntwo: {machine.root}/work\n".encode()
    manifest = machine.objects.get(f"{machine.keys.outputs()}.json")
    assert manifest is not None
    entries = json.loads(manifest[0])["files"]
    assert [entry["path"] for entry in entries] == ["a b/ü.txt"]
    assert machine.objects.get(f"{machine.keys.outputs()}/a b/ü.txt") is not None
    machine.wait_for(machine.control / "poweroff")


def test_a_second_bootstrap_starts_nothing(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(run="echo started >> once.txt; sleep 1", workdir={"train.py": "pass\n"})
    assert machine.bootstrap()["agent"] == "started"
    assert machine.bootstrap()["agent"] == "running"
    machine.wait(final)
    assert machine.bootstrap()["agent"] == "finished"
    assert (machine.root / "work/once.txt").read_text() == "started\n"


def test_a_run_that_fails_at_once_fails_with_its_own_words(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(run="echo fine\npython -c 'raise ValueError(\"no such data\")'")
    started = time.monotonic()
    machine.bootstrap()
    status = machine.wait(final)
    assert time.monotonic() - started < 15
    assert (status.phase, status.failure, status.exit_code) == ("failed", "job", 1)
    assert status.error == "run exited with code 1: ValueError: no such data"
    machine.wait_for(machine.control / "poweroff")


def test_setup_runs_first_and_its_failure_is_told(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(setup="echo 'no package foo' >&2; exit 3", run="touch ran")
    machine.bootstrap()
    status = machine.wait(final)
    assert status.error == "setup exited with code 3: no package foo"
    assert not (machine.root / "work/ran").exists()
    good = new_machine()
    good.ship(setup="touch prepared", run="test -e prepared && echo found")
    good.bootstrap()
    assert good.wait(final).phase == "done"


def test_an_interrupted_job_saves_hands_over_and_goes_on_elsewhere(
    new_machine: NewMachine, metadata: tuple[Metadata, str]
) -> None:
    first = new_machine()
    first.claim(Latest(1))
    first.ship(run="cd .\npython train.py 100000\n", workdir={"train.py": PLAIN})
    first.bootstrap()
    first.wait(lambda status: (status.durable_step or 0) >= 20)
    taken_at = metadata[0].notice(8)
    status = first.wait(final)
    assert time.time() < taken_at, "durable before EC2 takes the machine"
    assert (status.phase, status.notice_deadline_at) == ("stopped", taken_at)
    latest = first.latest()
    assert latest is not None and latest.step == status.durable_step
    time.sleep(1.2)
    beating = first.status()
    assert beating is not None and beating.heartbeat_at > status.heartbeat_at, (
        "it waits for EC2 and shows that it lives"
    )
    assert not first.powered_off, "the first hour is free only if EC2 ends it"

    metadata[0].documents.clear()
    second = new_machine()
    second.claim(Latest(2, latest.step, latest.key, latest.manifest_sha256))
    target = (latest.step or 0) + 30
    second.ship(run=f"python train.py {target}", workdir={"train.py": PLAIN}, generation=2)
    second.bootstrap()
    done = second.wait(final)
    assert (done.phase, done.resumed_step, done.rejected) == ("done", latest.step, ())
    assert f"from {latest.step}\n" in second.text("job.log")
    result = second.objects.get(f"{second.keys.outputs()}/result.txt")
    assert result is not None and result[0] == str(target).encode()


def test_a_damaged_checkpoint_is_named_and_the_older_one_used(new_machine: NewMachine, tmp_path: Path) -> None:
    machine = new_machine()
    keys = Keys("jobs/job-1")
    digests = {}
    for step in (20, 40, 60):
        made = checkpoint.write(tmp_path / "made", step, {"step.txt": str(step).encode(), "weights": b"w" * 1000})
        for path in made.iterdir():
            machine.objects.upload_file(path, f"{keys.checkpoint(1, step)}/{path.name}")
        digests[step] = hashlib.sha256((made / "MANIFEST.json").read_bytes()).hexdigest()
    machine.objects.put(f"{keys.checkpoint(1, 60)}/weights", b"w" * 999 + b"x")
    machine.objects.delete([f"{keys.checkpoint(1, 40)}/weights"])
    machine.claim(Latest(2, 60, keys.checkpoint(1, 60), digests[60]))
    machine.ship(run="python train.py 45", workdir={"train.py": PLAIN}, generation=2)
    machine.bootstrap()
    status = machine.wait(final)
    assert (status.phase, status.resumed_step) == ("done", 20)
    assert status.rejected == (
        "g0001-step-000000060: weights does not match its digest",
        "g0001-step-000000040: weights is missing in the bucket",
    )
    latest = machine.latest()
    assert latest is not None and (latest.generation, latest.step) == (2, 40), "the damaged one no longer leads"


def test_a_fenced_agent_publishes_nothing_and_stops(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(run="python train.py 100000", workdir={"train.py": PLAIN})
    machine.bootstrap()
    machine.wait(lambda status: (status.durable_step or 0) >= 20)
    latest = machine.latest()
    assert latest is not None
    machine.claim(Latest(2, latest.step, latest.key, latest.manifest_sha256))
    claimed = machine.latest()
    status = machine.wait(final)
    assert (status.phase, status.fenced) == ("stopped", True)
    assert machine.latest() == claimed
    assert machine.objects.get(machine.keys.outcome(1)) is None


def test_the_controller_asks_it_to_stop(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(run="python train.py 100000", workdir={"train.py": PLAIN})
    machine.bootstrap()
    machine.wait(lambda status: status.durable_step is not None)
    (machine.root / "run/stop.json").write_text('{"reason": "stop", "deadline_at": 0}')
    status = machine.wait(final)
    assert (status.phase, status.error, status.exit_code) == ("stopped", None, 1)
    latest = machine.latest()
    assert latest is not None and latest.step == status.durable_step
    machine.wait_for(machine.control / "poweroff")


def test_a_limit_of_its_job_ends_it(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(
        run="python train.py 100000",
        workdir={"train.py": PLAIN},
        limit_s=2.0,
        limit="budget",
        limit_words="the budget of $0.50",
    )
    machine.bootstrap()
    status = machine.wait(final)
    assert (status.phase, status.failure) == ("failed", "budget")
    assert status.error is not None and status.error.startswith("the budget of $0.50 is used up at step ")
    assert status.durable_step is not None, "what was trained is safe"
    machine.wait_for(machine.control / "poweroff")


def test_a_bucket_that_does_not_answer_is_waited_for(new_machine: NewMachine) -> None:
    machine = new_machine(s3_at="http://127.0.0.1:9")
    machine.ship(run="echo trained")
    machine.bootstrap()
    waiting = machine.wait(lambda status: status.phase == "saving" and status.error is not None)
    assert waiting.error is not None and machine.bucket in waiting.error
    later = machine.wait(lambda status: status.heartbeat_at > waiting.heartbeat_at + 1)
    assert later.phase == "saving"
    assert not machine.powered_off


def test_a_killed_agent_comes_back_and_ends_what_was_left(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    machine.ship(run="python train.py 200", workdir={"train.py": PLAIN})
    machine.bootstrap()
    machine.wait(lambda status: (status.durable_step or 0) >= 20)
    for pid in machine.processes():
        if b"cloudtrain.trainer.agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    assert machine.bootstrap()["agent"] == "started"
    status = machine.wait(final)
    assert status.phase == "done" and (status.resumed_step or 0) >= 20
    starts = [line for line in machine.text("job.log").splitlines() if line.startswith("from ")]
    assert starts == ["from 0", f"from {status.resumed_step}"]


def test_a_local_host_whose_cloud_died_ends_itself(tmp_path: Path, s3: str) -> None:
    machine = Machine(
        tmp_path / "orphan", bucket_at(s3, f"bucket-{uuid.uuid4().hex[:12]}"), "b", s3, "http://127.0.0.1:9/x"
    )
    machine.ship(run="sleep 600")
    try:
        machine.bootstrap()
        deadline = time.monotonic() + 40
        while machine.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert machine.processes() == []
        assert not machine.powered_off
    finally:
        machine.destroy()


def test_the_newest_local_name_counts_by_number(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.claim(Latest(1))
    save = 'mkdir "$D/.x" && echo {0} > "$D/.x/step.txt" && mv "$D/.x" "$D/step-{0}"'
    run = 'D="$CLOUDTRAIN_CHECKPOINT_DIR"\n' + "\n".join(save.format(step) for step in (900, 1000))
    machine.ship(run=run)
    machine.bootstrap()
    assert machine.wait(final).durable_step == 1000
    latest = machine.latest()
    assert latest is not None and latest.key == f"jobs/job-1/checkpoints/g0001-{checkpoint_name(1000)}"
