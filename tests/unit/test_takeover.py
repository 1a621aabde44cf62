"""Taking a job over: whoever drove it stops paying, and a record that others can write is not believed blindly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.errors import CloudtrainError, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import adopting
from cloudtrain.provisioner.model import EndReason, JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.ports import Store
from tests.bench import Bench
from tests.fake_agent import World
from tests.fake_store import FakeStore
from tests.records import job


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


@pytest.mark.parametrize("kind", ["sqlite", "fake"])
@pytest.mark.parametrize("status", [JobStatus.STOPPING, JobStatus.STOPPED])
def test_a_job_that_was_to_stop_is_not_resumed_by_a_takeover(tmp_path: Path, kind: str, status: JobStatus) -> None:
    store: Store = SqliteStore(tmp_path / "jobs.db") if kind == "sqlite" else FakeStore()
    record = replace(job(), status=status, outcome=EndReason.STOPPED)
    store.put(record, '"one"')
    assert store.get(record.job_id).wanted == "stop"


def test_a_controller_that_lost_the_job_while_it_slept_launches_nothing(
    tmp_path: Path, bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = bench.loop()
    loop.open()

    def asleep(*_: object) -> None:  # its intent is saved; before it asks for the machine, another computer takes over
        found = takeover.look(world.objects, bench.record.job_id)
        takeover.take(found, "another-home", tmp_path / "there", world.objects)

    monkeypatch.setattr(world.cloud, "prepare", asleep)
    with pytest.raises(DrivenElsewhere):
        for _ in range(5):
            loop.pass_once()
    assert world.cloud.count("launch") == 0


def test_a_takeover_brings_the_keys_of_a_machine_that_came_meanwhile(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: bool(bench.store.get(bench.record.job_id).record.attempts))
    early = takeover.look(bench.world.objects, bench.record.job_id)
    early = replace(early, etag='"older"', record=replace(early.record, attempts=(), generation=0))
    bench.run(until=lambda: any(a.step >= 50 for a in bench.world.agents.values()))
    entry = SimpleNamespace(cloud="aws", cloud_id=None)
    access: Any = SimpleNamespace(objects=bench.world.objects, bucket="bucket", entry=entry)
    monkeypatch.setattr(adopting, "ensure", lambda home: True)
    (tmp_path / "second").mkdir()
    home = Home(tmp_path / "second", tmp_path / "local")
    record = adopting.adopt(early, access, home, tmp_path / "results", {})
    assert record.driver == home.id
    for name in ("attempt-1.host-key.json", "attempt-1.user-data"):
        assert (home.job_dir(record.job_id) / name).read_bytes() == (bench.job_dir / name).read_bytes()


def test_a_record_that_names_another_bucket_or_cloud_is_not_taken_over(tmp_path: Path, bench: Bench) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in bench.world.agents.values()))
    found = takeover.look(bench.world.objects, bench.record.job_id)
    entry = SimpleNamespace(cloud="aws", cloud_id=None)
    access: Any = SimpleNamespace(objects=bench.world.objects, bucket="bucket", entry=entry)
    for wrong in (replace(found.record, bucket="somebody-elses"), replace(found.record, cloud="local")):
        with pytest.raises(UsageError, match="not taken over"):
            adopting.adopt(replace(found, record=wrong), access, Home(tmp_path, tmp_path), tmp_path, {})


def test_what_a_stranger_put_into_the_bucket_reaches_no_folder_but_the_jobs_own(tmp_path: Path, bench: Bench) -> None:
    objects = bench.world.objects
    objects.put(record_key(".."), encode(replace(job(), job_id="..")))
    objects.put(record_key("digits-x"), encode(replace(job(), job_id="../../etc")))
    assert takeover.job_ids(objects) == ("digits-x",)
    with pytest.raises(CloudtrainError, match=r"is the record of '\.\./\.\./etc': not taken over"):
        takeover.look(objects, "digits-x")
    bench.run(until=lambda: any(a.step >= 50 for a in bench.world.agents.values()))
    record = bench.store.get(bench.record.job_id).record
    for name in ("..", "../jobs.db", "secrets.json", "\0"):
        objects.put(f"{record.control}/attempt-0001.json", msgspec.json.encode({name: "x"}))
        with pytest.raises(CloudtrainError, match="not taken over"):
            takeover.fetch(record, objects, tmp_path)
    objects.put(f"{record.control}/attempt-0001.json", b"no json")
    with pytest.raises(CloudtrainError, match=r"attempt-0001.json in the bucket can't be read"):
        takeover.fetch(record, objects, tmp_path)


def test_every_job_of_the_bucket_is_listed_the_newest_first(bench: Bench) -> None:
    objects = bench.world.objects
    for number in range(60):  # by name, the live one comes first of all
        name = f"aaa-{number:06}" if number == 0 else f"job-{number:06}"
        objects.put(record_key(name), encode(job(job_id=name, created_at=1_800_000_000.0 + number)))
    access: Any = SimpleNamespace(objects=objects, bucket="bucket")
    objects.put(record_key("job-broken"), b"{")
    records, (trouble,) = adopting.in_bucket(access)
    found = [record.job_id for record in records]
    assert (len(found), found[0], found[-1]) == (60, "job-000059", "aaa-000000")
    assert trouble.startswith("control/job-broken/record.json in the bucket: a job record can't be read")
