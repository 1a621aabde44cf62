"""An account from empty to empty again, and a job that a second computer stops, resumes, takes over and finishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from tests.e2e.story import Person, counting_job, digits_job, hurry, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-second")]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[tuple[Person, Person]]:
    """Two computers: homes of their own, one embedded cloud."""
    homes = tmp_path / "first", tmp_path / "second"
    for home in homes:
        home.mkdir()
    shared = {"CLOUDTRAIN_LOCAL_HOME": str(homes[0] / "local")}
    first, second = (Person(home, extra=shared) for home in homes)
    try:
        yield first, second
    finally:
        first.leave()
        second.kill_controller()


def shown(person: Person, job: str = "count") -> Any:
    return person.ok("show", job, "-o", "json").json()


def started(person: Person, path: Path, at_step: int = 20) -> None:
    """A job under way that has made some steps."""
    person.ok("launch", str(path), "--cloud", "local", "--yes", "--detach")
    until(lambda: (person.rows()[0]["step"] or 0) >= at_step, f"step {at_step}")


def test_stop_and_resume_end_with_the_very_weights_of_an_unbroken_run(
    people: tuple[Person, Person], tmp_path: Path
) -> None:
    person, _ = people
    unbroken = person.launch(digits_job(tmp_path / "unbroken.yaml", epochs=8))
    started(person, digits_job(tmp_path / "job.yaml", epochs=8), at_step=50)
    said = person.ok("stop", "digits")
    assert "STOPPED: checkpoint of step" in said.out
    assert "cloudtrain resume digits" in said.err
    assert person.machines() == []
    stopped = shown(person, "digits")
    assert (stopped["status"], stopped["attempts"][0]["end_reason"]) == ("STOPPED", "stopped")
    report = person.ok("resume", "digits", "-o", "json").json()
    assert (report["status"], report["lost_steps"]) == ("SUCCEEDED", 0)
    assert report["metrics"] == unbroken["metrics"]
    assert report["attempts"][1]["start_step"] == stopped["steps"]
    assert person.machines() == []


def test_a_second_computer_takes_over_from_one_that_died(people: tuple[Person, Person], tmp_path: Path) -> None:
    first, second = people
    started(first, counting_job(tmp_path, steps=600))
    first.kill_controller()
    listed = second.ok("adopt", "--cloud", "local")
    assert "another computer" in listed.out
    said = second.ok("adopt", "count", "--cloud", "local", "--yes")
    assert "driven from here now" in said.out
    until(lambda: second.rows()[0]["status"] == "RUNNING", "the second computer to see it run")
    assert len(first.machines()) == 1, "what runs is not touched"
    second.ok("local", "interrupt", "count", "--notice", "3s")
    until(lambda: second.rows()[0]["attempt"] == 2, "the second computer to recover it")
    hurry(tmp_path)
    second.ok("logs", "-f", "count")
    report = shown(second)
    assert (report["status"], report["interruptions"], report["lost_steps"]) == ("SUCCEEDED", 1, 0)
    assert Path(report["results"]).is_relative_to(second.home)
    assert list(Path(report["results"]).rglob("count.txt")), "the results came to the second computer"
    assert first.machines() == []


def test_the_first_computer_lets_go_and_says_where_the_job_is(people: tuple[Person, Person], tmp_path: Path) -> None:
    first, second = people
    started(first, counting_job(tmp_path))
    second.ok("adopt", "count", "--cloud", "local", "--yes")
    refused = first.run("down", "count", "--yes")
    assert refused.code != 0
    assert "another computer" in refused.err
    ended = second.ok("down", "count", "--yes")
    assert "CANCELLED" in ended.out
    assert first.machines() == []


def test_from_an_empty_account_to_an_empty_account(people: tuple[Person, Person], tmp_path: Path) -> None:
    first, second = people
    first.ok("local", "up", "--account", "empty")
    job = counting_job(tmp_path, steps=600)
    refused = first.run("launch", str(job), "--cloud", "local", "--yes")
    assert refused.code == 6
    assert "cloudtrain setup" in refused.err
    assert first.machines() == []
    first.ok("setup", "--cloud", "local", "--yes")
    assert "nothing to do" in (again := first.ok("setup", "--cloud", "local", "--yes")).out + again.err
    first.ok("doctor", "--cloud", "local")
    started(first, job)
    first.kill_controller()
    second.ok("adopt", "count", "--cloud", "local", "--yes")
    hurry(tmp_path)
    second.ok("logs", "-f", "count")
    assert shown(second)["status"] == "SUCCEEDED"
    kept = first.run("setup", "--destroy", "--cloud", "local", "--yes")
    assert "object" in kept.out + kept.err, "a bucket that holds something is kept, and it is said"
    empty_the_bucket(first)
    first.ok("setup", "--destroy", "--cloud", "local", "--yes")
    assert buckets(first) == []


def buckets(person: Person) -> list[str]:
    s3 = Clients("local", local_endpoint=person.cloud().endpoint_url).client("s3", "us-east-1")
    return [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]


def empty_the_bucket(person: Person) -> None:
    s3 = Clients("local", local_endpoint=person.cloud().endpoint_url).client("s3", "us-east-1")
    for name in buckets(person):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            for item in page.get("Contents", []):
                s3.delete_object(Bucket=name, Key=item["Key"])
