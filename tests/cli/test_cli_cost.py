"""`cloudtrain cost`: what was paid, what was free, what it would have been, in four forms that agree."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from tests.records import job, over

from .world import World, succeeded

NOW = 1_800_000_100.0


def two_jobs(world: World) -> None:
    world.add(succeeded(job(job_id="one-aaaaaa", name="one"), NOW))
    lost = (
        over(1, 7200, EndReason.JOB_FAILED, steps=(0, 10)),
        replace(over(2, 0, EndReason.NO_CAPACITY), running_at=None, started_at=None),
    )
    failed = job(*lost, job_id="two-bbbbbb", name="two", created_at=1_800_000_050.0)
    world.add(replace(failed, status=JobStatus.FAILED, outcome=EndReason.JOB_FAILED))


def test_a_row_for_each_job_and_what_it_comes_to(world: World) -> None:
    two_jobs(world)
    code, out, err = world.run("cost")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:4]]
    assert rows[0] == ["two-bbbbbb", "FAILED", "2h00m", "-", "0.7200", "-", "-"]
    assert rows[1] == ["one-aaaaaa", "SUCCEEDED", "5m00s", "1m40s", "0.0200", "0.0438", "54", "%"]
    assert "2 jobs: $0.7400 for 2h05m of machine time, 1m40s of it free" in out
    assert "what succeeded, on demand: $0.0438; 54.3 % saved" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "next: `cloudtrain show two-bbbbbb`" in err


def test_a_named_job_is_shown_attempt_by_attempt_with_the_reason(world: World) -> None:
    two_jobs(world)
    out = world.run("cost", "one")[1]
    assert out.splitlines()[0] == "one-aaaaaa  SUCCEEDED  $0.0200"
    assert [" ".join(line.split()) for line in out.splitlines()[4:6]] == [
        "1 g4dn.xlarge spot 1m40s 0.3600 0.0000 first hour free",
        "2 g4dn.xlarge spot 3m20s 0.3600 0.0200 time x price",
    ]
    assert max(map(len, out.splitlines())) <= 80
    assert "two-bbbbbb" not in out


def test_json_and_csv_add_up_to_the_table(world: World) -> None:
    two_jobs(world)
    found = json.loads(world.run("cost", "-o", "json")[1])
    rows = list(csv.DictReader(io.StringIO(world.run("cost", "-o", "csv")[1])))
    assert [row["why"] for row in rows] == [
        "time x price",
        "no machine",
        "first hour free",
        "time x price",
    ]
    assert round(sum(float(row["usd"]) for row in rows), 4) == found["total"]["usd"] == 0.74
    assert round(sum(job["usd"] for job in found["jobs"]), 4) == 0.74
    for row in rows:
        assert round(float(row["charged_seconds"]) * float(row["usd_per_hour"]) / 3600, 4) == float(row["usd"])


def test_a_short_start_is_charged_a_minute_and_a_machine_that_runs_counts_up_to_now(world: World) -> None:
    short = over(1, 10, EndReason.MACHINE_LOST)
    runs = replace(over(2, 0, EndReason.SUCCEEDED), phase=Phase.WORKING, ended_at=None, end_reason=None)
    world.add(replace(job(short, runs), status=JobStatus.RUNNING))
    world.at = NOW + 3500
    (row,) = json.loads(world.run("cost", "-o", "json")[1])["jobs"]
    assert [attempt["charged_seconds"] for attempt in row["attempts"]] == [60.0, 3600.0]
    assert row["attempts"][0]["why"] == "a minute at least"


def test_since_counts_from_the_launch(world: World) -> None:
    two_jobs(world)
    world.at = 1_800_000_060.0
    assert json.loads(world.run("cost", "--since", "30s", "-o", "json")[1])["total"]["jobs"] == 1
    assert world.run("cost", "--since", "5s")[1:] == ("", "no jobs to count; next: `cloudtrain ls`\n")
    code, _, err = world.run("cost", "--since", "yesterday")
    assert (code, "90s, 15m, 2h or 1d" in err) == (2, True)


def test_prices_of_the_local_cloud_are_said_to_be_simulated(world: World) -> None:
    world.add(replace(succeeded(job(), NOW), cloud="local"))
    assert "1 job in the local cloud: local, simulated prices" in world.run("cost")[1]


def test_an_unknown_job(world: World) -> None:
    assert world.run("cost", "nope")[0] == 3
