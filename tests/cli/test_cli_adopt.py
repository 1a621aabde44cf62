"""`cloudtrain adopt`: lists what the bucket holds, asks, and takes a job over. What it does in a bucket: tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.provisioner.controller.job_secrets import kept_secrets
from cloudtrain.provisioner.errors import NotFound
from cloudtrain.provisioner.launch import access, adopting
from cloudtrain.provisioner.model import JobRecord, JobStatus
from tests.records import job

from .world import World, succeeded


class Account:
    """An account whose bucket holds these jobs."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.records: list[JobRecord] = []
        self.adopted: list[tuple[str, Path]] = []
        self.asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr(access, "enter", self._enter)
        monkeypatch.setattr(access, "open_bucket", self._open)
        monkeypatch.setattr(adopting, "in_bucket", lambda opened: (tuple(self.records), ()))
        monkeypatch.setattr(adopting, "find", self._find)
        monkeypatch.setattr(adopting, "adopt", self._adopt)

    def _enter(self, cloud: str, home: object, *, region: str | None) -> str:
        self.asked.append((cloud, region))
        return "entry"

    def _open(self, entry: str, *, bucket: str | None) -> object:
        return SimpleNamespace(bucket=bucket or "cloudtrain-1")

    def _find(self, opened: object, wanted: str) -> object:
        for record in self.records:
            if wanted in (record.job_id, record.spec.name):
                return SimpleNamespace(record=record)
        raise NotFound(f"bucket b holds no job {wanted!r}")

    def _adopt(
        self, found: Any, opened: object, home: Any, results: Path, environ: Mapping[str, str], *, end: bool
    ) -> JobRecord:
        self.adopted.append((found.record.job_id, results))
        record: JobRecord = replace(found.record, driver=home.id, results=str(results))
        if end:
            self.world.store.put(record, '"etag"')
            self.world.store.want(record.job_id, "cancel")
        return record


@pytest.fixture
def account(world: World, monkeypatch: pytest.MonkeyPatch) -> Account:
    return Account(world, monkeypatch)


def test_the_list_says_where_each_is_driven_from(world: World, account: Account) -> None:
    account.records = [job(), replace(succeeded(job(job_id="mine-1", name="mine"), 1.0), driver=world.home.id)]
    code, out, err = world.run("adopt", "--cloud", "local", "--region", "us-west-2")
    assert code == 0
    assert account.asked == [("local", "us-west-2")]
    assert [line.split()[:3] for line in out.splitlines()[2:]] == [
        ["digits-abc123", "PENDING", "another"],
        ["mine-1", "SUCCEEDED", "here"],
    ]
    assert max(map(len, out.splitlines())) <= 80
    assert "next: `cloudtrain adopt digits-abc123 --cloud local`" in err
    found = json.loads(world.run("adopt", "-o", "json")[1])
    assert [(row["job"], row["here"]) for row in found["jobs"]] == [("digits-abc123", False), ("mine-1", True)]


def test_an_empty_bucket(world: World, account: Account) -> None:
    assert world.run("adopt")[:2] == (0, "")
    assert json.loads(world.run("adopt", "-o", "json", "--bucket", "other-1")[1])["bucket"] == "other-1"


def test_a_job_is_taken_over(world: World, account: Account, tmp_path: Path) -> None:
    account.records = [replace(job(), status=JobStatus.RUNNING)]
    code, out, err = world.run("adopt", "digits", "--yes", "--into", tmp_path / "got")
    assert (code, out) == (0, "digits-abc123 RUNNING: driven from here now\n")
    assert account.adopted == [("digits-abc123", tmp_path / "got")]
    assert "next: `cloudtrain logs -f digits-abc123`" in err
    out = world.run("adopt", "digits", "--yes", "-o", "json")[1]
    assert json.loads(out) == {"schema_version": 1, "job": "digits-abc123", "status": "RUNNING"}


def test_a_live_job_is_asked_about_and_without_a_terminal_refused(world: World, account: Account) -> None:
    account.records = [job()]
    code, _, err = world.run("adopt", "digits")
    assert (code, account.adopted) == (2, [])
    assert "add --yes" in err


def test_what_is_driven_from_here_already_is_left_alone(world: World, account: Account) -> None:
    account.records = [world.add()]
    code, _, err = world.run("adopt", "digits", "--yes")
    assert (code, account.adopted) == (0, [])
    assert "driven from here already" in err


def test_what_this_home_drove_before_it_lost_its_store_is_taken_up_again(world: World, account: Account) -> None:
    account.records = [replace(job(), driver=world.home.id)]
    assert world.run("adopt", "digits", "--yes")[0] == 0
    assert [job_id for job_id, _ in account.adopted] == ["digits-abc123"]


def test_secrets_that_only_the_other_computer_has_are_brought_along(
    world: World, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = world.add(replace(job(), spec=replace(job().spec, secrets=("WANDB_API_KEY",))))
    account.records = [record]
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    code, _, err = world.run("adopt", "digits", "--yes")
    assert code == 2
    assert "WANDB_API_KEY is not set" in err
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    assert world.run("adopt", "digits", "--yes")[0] == 0
    assert kept_secrets(record, world.home.job_dir(record.job_id)) == {"WANDB_API_KEY": "hush"}


def test_a_job_that_can_not_go_on_is_taken_over_to_end_it(world: World, account: Account) -> None:
    account.records = [replace(job(), status=JobStatus.PROVISIONING)]

    def ends(world: World) -> None:
        assert world.store.get("digits-abc123").wanted == "cancel"
        world.change("digits-abc123", status=JobStatus.CANCELLED, collected=True, swept=True)

    world.script = [ends]
    code, out, _ = world.run("adopt", "digits", "--end", "--yes")
    assert (code, account.adopted[0][0]) == (0, "digits-abc123")
    assert "digits-abc123 CANCELLED: 0 machines ended, nothing is left running" in out


def test_ending_needs_a_job_and_a_yes(world: World, account: Account) -> None:
    account.records = [job()]
    assert world.run("adopt", "--end")[0] == 2
    assert world.run("adopt", "digits", "--end")[0] == 2
    assert account.adopted == []


def test_an_unknown_job(world: World, account: Account) -> None:
    assert world.run("adopt", "nope", "--yes")[0] == 3


def test_a_job_that_this_computer_knows_is_looked_for_where_it_is(world: World, account: Account) -> None:
    """Other commands name `cloudtrain adopt JOB` alone."""
    record = replace(job(), cloud="local", region="eu-west-1", bucket="own-1")
    world.add(record)
    world.change(record.job_id, driver="elsewhere")
    account.records = [replace(record, status=JobStatus.RUNNING)]
    assert world.run("adopt", record.job_id, "--yes")[0] == 0
    assert account.asked == [("local", "eu-west-1")]
    world.run("adopt", record.job_id, "--yes", "--cloud", "aws")
    assert account.asked[1:] == [("aws", None)]


def test_a_job_that_a_lost_store_knew_is_offered_with_its_cloud(world: World, account: Account) -> None:
    account.records = [replace(job(), driver=world.home.id, status=JobStatus.RUNNING)]
    assert "next: `cloudtrain adopt digits-abc123 --cloud local` takes" in world.run("adopt", "--cloud", "local")[2]
    world.add(account.records[0])
    assert "next:" not in world.run("adopt", "--cloud", "local")[2]
