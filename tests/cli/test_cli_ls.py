"""`cloudtrain ls`: from disk, in four forms, and honest about dead controllers and dead clouds."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from tests.records import job, over

from .world import World, succeeded

FIELDS = "job name status step total_steps attempt pool capacity_type usd usd_per_hour started"


def running(world: World) -> str:
    attempt = replace(over(1, 0, EndReason.SUCCEEDED, steps=(0, 140)), phase=Phase.WORKING, ended_at=None)
    record = world.add(replace(job(attempt), status=JobStatus.RUNNING, total_steps=900))
    world.live(record.job_id, step=150, total_steps=900)
    return record.job_id


def test_no_jobs_leads_to_the_first_one(world: World) -> None:
    code, out, err = world.run("ls")
    assert (code, out) == (0, "")
    assert "next: `cloudtrain launch" in err


def test_json_has_the_fields_of_the_list_while_the_job_runs(world: World) -> None:
    running(world)
    code, out, _ = world.run("ls", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["schema_version"] == 1
    assert list(found["jobs"][0]) == FIELDS.split()
    assert found["jobs"][0]["step"] == 150
    assert found["jobs"][0]["usd"] == 0.01


def test_json_of_no_jobs_is_an_empty_list(world: World) -> None:
    assert json.loads(world.run("ls", "-o", "json")[1]) == {"schema_version": 1, "jobs": []}


def test_the_table_fits_and_leads_on(world: World) -> None:
    job_id = running(world)
    code, out, err = world.run("ls")
    assert code == 0
    assert out.splitlines()[2].split() == [job_id, "RUNNING", "150/900", "1", "g4dn.xlarge", "0.3600", "$0.0100"]
    assert max(map(len, out.splitlines())) <= 80
    assert f"`cloudtrain logs -f {job_id}`" in err


def test_csv_and_wide_have_every_field(world: World) -> None:
    running(world)
    (row,) = csv.DictReader(io.StringIO(world.run("ls", "-o", "csv")[1]))
    assert list(row) == FIELDS.split()
    assert row["pool"] == "aws/us-east-1/use1-az1/g4dn.xlarge/spot"
    wide = world.run("ls", "-o", "wide")[1]
    assert wide.splitlines()[0].split() == FIELDS.split()


def test_the_newest_come_first_and_old_ones_are_counted(world: World) -> None:
    for number in range(25):
        record = job(job_id=f"job-{number:02}", name=f"n{number}", created_at=1_800_000_000.0 + number)
        world.add(succeeded(record, 1_800_000_050.0))
    _, out, err = world.run("ls")
    assert out.splitlines()[2].startswith("job-24")
    assert len(out.splitlines()) == 22
    assert "5 older ones are not shown" in err
    assert len(json.loads(world.run("ls", "-o", "json")[1])["jobs"]) == 25


def test_a_dead_controller_is_brought_back_and_it_says_so(world: World) -> None:
    running(world)
    world.controller_lives = False
    _, _, err = world.run("ls")
    assert world.started_controllers == 1
    assert "the controller was not running; it is started again" in err


def test_finished_jobs_need_no_controller(world: World) -> None:
    world.add(succeeded(job(), 1_800_000_050.0))
    world.controller_lives = False
    world.run("ls")
    assert world.started_controllers == 0


def test_a_job_lost_with_its_cloud_is_said_in_one_line(world: World) -> None:
    record = world.add(replace(job(), cloud="local", cloud_id="dead", status=JobStatus.RUNNING))
    world.clouds_live = False
    code, out, err = world.run("ls")
    assert code == 0
    assert "FAILED" in out
    assert err.count(record.job_id) == 2  # the loss, and the next command
    assert f"job {record.job_id}: lost with its cloud" in err
    assert world.store.get(record.job_id).record.outcome is EndReason.CLOUD_LOST
    assert "lost with its cloud" in world.run("ls")[2]  # a later look tells it as well


def test_a_job_that_another_computer_took_over_is_not_shown_as_ours(world: World) -> None:
    record = world.add()
    world.change(record.job_id, status=JobStatus.RUNNING, driver="elsewhere")
    err = world.run("ls")[2]
    assert f"{record.job_id} is driven from another computer" in err
    assert f"`cloudtrain adopt {record.job_id}`" in err
    assert "logs -f" not in err and "cloudtrain down" not in err
