"""A budget on the embedded cloud: a job that needs more is ended, saved and brought home, and costs no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from tests.e2e.story import Person, counting_job, hurry

POLL_S = 0.5  # between two looks of the controller, on the embedded cloud


pytestmark = [pytest.mark.slow, pytest.mark.long]  # EC2's first minute is charged whole


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    person = Person(tmp_path / "home")
    person.home.mkdir()
    yield person
    person.leave()


def test_a_budget_ends_a_job_that_needs_more(person: Person, tmp_path: Path) -> None:
    job = counting_job(tmp_path, steps=5000)
    too_little = person.run("plan", str(job), "--cloud", "local", "--budget", "0.0001")
    assert too_little.code == 2 and "a budget of $0.0001 is too little: $0.00" in too_little.err
    plan = person.ok("plan", str(job), "--cloud", "local", "-o", "json").json()
    budget = round(plan["offerings"][0]["usd_per_hour"] / 60 * 1.15, 4)  # the first minute is charged whole
    planned = person.ok("plan", str(job), "--cloud", "local", "--budget", f"{budget:.4f}")
    assert f"at most ${budget:.4f} by its budget" in planned.out
    limits = ("--budget", f"{budget:.4f}", "--deadline", "1h")
    said = person.run("launch", str(job), "--cloud", "local", "--yes", "-o", "json", *limits)
    assert said.code == 5, said
    assert "saves a last checkpoint and goes" in said.err
    assert "it counts on this computer being awake" in said.err

    final = said.json()
    (attempt,) = final["attempts"]
    assert (final["status"], attempt["end_reason"]) == ("FAILED", "budget")
    over_usd = attempt["usd_per_hour"] * POLL_S / 3600 + 0.0002  # the bill's own last digits
    assert budget * 0.7 < final["usd"] <= budget + over_usd
    record = SqliteStore(person.home / "jobs.db").get(final["job"]).record
    assert (record.collected, record.swept) == (True, True)
    (one,) = record.attempts
    assert one.durable_step == one.last_step > 100, "the checkpoint that it was asked for is kept"
    assert person.machines() == []

    assert f"next: `cloudtrain resume {final['job']} --budget " in said.err
    refused = person.run("resume", final["job"])
    assert refused.code == 2 and "or more would do" in refused.err, refused
    hurry(tmp_path)
    again = person.ok("resume", final["job"], "--budget", "1", "-o", "json").json()
    assert (again["status"], again["lost_steps"]) == ("SUCCEEDED", 0)
    assert again["attempts"][1]["start_step"] == one.durable_step
    assert again["usd"] > final["usd"]
    assert person.machines() == []
