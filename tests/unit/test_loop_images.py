"""What the loop makes of images and secrets: pinned, refused by the machine, missing on this computer."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from cloudtrain.provisioner import report
from cloudtrain.provisioner.controller.job_secrets import keep_secrets
from cloudtrain.provisioner.errors import EXIT_ACCESS, CloudUnreachable
from cloudtrain.provisioner.model import EndReason, FoundImage, JobStatus
from cloudtrain.provisioner.ports import RunResult, Target
from cloudtrain.provisioner.report import exit_code
from cloudtrain.provisioner.spec import AwsOptions, JobSpec
from cloudtrain.trainer.contract import AgentStatus
from tests.bench import Bench, nothing_left
from tests.fake_agent import FakeAgent, World
from tests.records import job


def bench_of(tmp_path: Path, world: World, spec: JobSpec) -> Bench:
    made = Bench(tmp_path, world)
    stored = made.store.get(made.record.job_id)
    made.record = replace(stored.record, spec=spec)
    made.store.save(made.record, version=stored.version, etag=None)
    return made


@pytest.fixture
def world() -> World:
    return World()


def one_attempt(bench: Bench, world: World, words: str) -> None:
    record = bench.run()
    assert (record.status, record.outcome) == (JobStatus.FAILED, EndReason.IMAGE_UNFIT)
    assert [a.end_reason for a in record.attempts] == [EndReason.IMAGE_UNFIT]
    assert record.detail is not None and words in record.detail
    assert exit_code(record) == 2
    nothing_left(world)


def test_a_machine_whose_image_has_no_python_ends_the_job(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"ok": False, "image": True, "error": "the image has no Python"}
    real = world.run

    def run(target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        if stdin is None:
            return real(target, command, timeout_s=timeout_s)
        return RunResult(1, json.dumps(answer).encode(), b"")

    monkeypatch.setattr(world, "run", run)
    one_attempt(bench_of(tmp_path, world, job().spec), world, "the image has no Python")


def test_an_agent_that_finds_its_image_unfit_ends_the_job(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeAgent.status

    def unfit(self: FakeAgent, now: float) -> AgentStatus:
        return replace(real(self, now), phase="failed", failure="image", error="machine check: no torch")

    monkeypatch.setattr(FakeAgent, "status", unfit)
    one_attempt(bench_of(tmp_path, world, job().spec), world, "machine check: no torch")


def test_a_bucket_that_bars_every_machine_ends_the_job_at_the_first(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeAgent.status

    def barred(self: FakeAgent, now: float) -> AgentStatus:
        return replace(real(self, now), phase="failed", failure="denied", error="bucket b: AccessDenied")

    monkeypatch.setattr(FakeAgent, "status", barred)
    record = bench_of(tmp_path, world, job().spec).run()
    assert [a.end_reason for a in record.attempts] == [EndReason.REFUSED]
    assert (report.exit_code(record), record.detail) == (EXIT_ACCESS, "bucket b: AccessDenied")
    assert world.cloud.live() == []


def test_the_image_is_pinned_so_that_a_repeated_launch_is_the_same(tmp_path: Path, world: World) -> None:
    own = FoundImage("ami-mine", "ours v7", "/dev/xvda", 300, "x86_64", "me")
    world.cloud.known_images[("us-east-1", "ami-mine")] = own
    spec = replace(job().spec, aws=AwsOptions(image_id="ami-mine", ssh_user="me"), disk_size_gib=50)
    bench = bench_of(tmp_path, world, spec)
    world.cloud.faults.add("launch", CloudUnreachable("time-out"), when="after")

    def replaced(call: str, when: str) -> None:
        if call == "launch":  # the image's entry changes while the launch is asked again
            changed = replace(own, image_id="ami-mine", root_device="/dev/sda1", root_gib=500)
            world.cloud.known_images[("us-east-1", "ami-mine")] = changed

    world.cloud.faults.hook = replaced
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    (attempt,) = record.attempts
    assert (attempt.image_id, attempt.root_device, attempt.root_gib, attempt.login_user) == (
        "ami-mine",
        "/dev/xvda",
        300,
        "me",
    )
    (instance,) = world.cloud.instances.values()
    request = instance.request
    assert (request.image_id, request.image.root_device, request.disk_gib) == ("ami-mine", "/dev/xvda", 300)


def test_the_root_volume_is_the_largest_of_what_is_asked(tmp_path: Path, world: World) -> None:
    record = bench_of(tmp_path, world, replace(job().spec, disk_size_gib=250)).run()
    assert record.attempts[0].root_gib == 100, "of the snapshot's 75 and the table's 100"
    (instance,) = world.cloud.instances.values()
    assert instance.request.disk_gib == 250


def test_no_machine_is_asked_for_while_a_secret_is_missing(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path, world, replace(job().spec, secrets=("TOKEN",)))
    loop = bench.loop()
    loop.open()
    shipped: list[bytes] = []
    real = world.run

    def run(target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        data = stdin.read() if stdin is not None else None
        if data:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                member = tar.extractfile("incoming/secrets.json")
                assert member is not None
                shipped.append(member.read())
        return real(target, command, stdin=io.BytesIO(data) if data is not None else None, timeout_s=timeout_s)

    monkeypatch.setattr(world, "run", run)
    for _ in range(10):
        loop.pass_once()
        world.clock.sleep(5)
    assert world.cloud.count("launch") == 0
    assert bench.events().count("the value of TOKEN is not on this computer") == 1
    keep_secrets(bench.record.spec, {"TOKEN": "canary-4711"}, bench.job_dir)
    assert bench.run().status is JobStatus.SUCCEEDED
    assert [json.loads(text) for text in shipped] == [{"TOKEN": "canary-4711"}]
    assert not any(b"canary-4711" in data for data in world.objects.objects.values())
