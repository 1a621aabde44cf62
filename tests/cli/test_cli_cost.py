"""`cloudtrain cost`: what was paid, what was free, what it would have been, in four forms that agree."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from cloudtrain.pricing import extras
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from tests.records import OFFERINGS, job, over

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


def rated(world: World) -> None:
    """A job that was taken in its first hour, with a volume, an address, data from elsewhere and results at home."""
    taken = over(1, 1790, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True)
    done = over(2, 3560, EndReason.SUCCEEDED, steps=(100, 300))
    attempts = [
        replace(
            a, instance_id="i-1", root_gib=100, launched_at=(a.running_at or 0) - 10, gone_at=(a.ended_at or 0) + 30
        )
        for a in (taken, done)
    ]
    attempts[1] = replace(attempts[1], received_bytes=5 * 10**9)
    record = replace(
        job(*attempts, job_id="one-aaaaaa", name="one"),
        region="us-west-2",
        rates=extras.pinned(OFFERINGS, "us-west-2", []),
        home_bytes=2 * 10**9,
    )
    world.add(replace(record, status=JobStatus.SUCCEEDED, outcome=EndReason.SUCCEEDED, finished_at=NOW))


def test_a_bill_says_what_it_is_made_of(world: World) -> None:
    rated(world)
    found = json.loads(world.run("cost", "-o", "json")[1])
    (row,) = found["jobs"]
    one, two = row["attempts"]
    assert (one["machine_usd"], one["address_usd"], one["transfer_usd"]) == (0, 0.0025, 0)
    assert (two["machine_usd"], two["address_usd"], two["transfer_usd"]) == (0.356, 0.005, 0.1)
    assert one["volume_usd"] > 0 and one["usd"] == round(one["volume_usd"] + 0.0025, 4)
    assert (row["home_usd"], row["home_bytes"], row["unpriced"], row["assumed"]) == (0.18, 2 * 10**9, [], [])
    assert round(one["usd"] + two["usd"] + row["home_usd"], 4) == row["usd"] == found["total"]["usd"]
    assert row["savings_pct"] == found["total"]["savings_pct"], "machines alone, as the comparison is"
    out = world.run("cost", "one")[1]
    assert "made of: machines $0.3560, volumes $0.0163, addresses $0.0075, transfer $0.1000, results home $0.1800" in (
        " ".join(out.split())
    )
    assert "results brought home, 2.000 GB: $0.1800" in out
    assert "AWS gives 100 GB a month free" in out
    assert [line.split() for line in out.splitlines() if line.startswith("    1 ")][-1][1:] == [
        "0.0000", "0.0055", "0.0025", "0.0000", "0.0080"
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) <= 80
    shown = world.run("show", "one")[1]
    assert "in its first hour, volume and address not" in shown and "made of: machines $0.3560" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_is_not_known_is_said(world: World) -> None:
    record = replace(
        job(over(1, 600, EndReason.SUCCEEDED), job_id="one-aaaaaa", name="one"),
        region="ap-south-1",
        rates=extras.pinned(OFFERINGS, "ap-south-1", []),
        home_bytes=3 * 10**9,
    )
    world.add(replace(record, status=JobStatus.SUCCEEDED, outcome=EndReason.SUCCEEDED))
    out = world.run("cost")[1]
    assert "one-aaaaaa: 3.000 GB from ap-south-1 to internet is not counted: no price is known" in out
