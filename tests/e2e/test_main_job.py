"""The main job, end to end, by the real command: real images, SSH and processes, boto3 on the embedded cloud."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import Person, digits_job, until
from tests.recount import recount

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-main")]


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    someone = Person(home)
    try:
        yield someone
    finally:
        someone.leave()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The report of one run that nothing disturbed."""
    home = tmp_path_factory.mktemp("unbroken")
    someone = Person(home)
    try:
        yield someone.launch(digits_job(home / "job.yaml"))
    finally:
        someone.leave()


def interrupted(person: Person, job: Path, *, at_step: int, notice_s: float, hosts: str = "embedded") -> Any:
    """Launch a job, interrupt it once at a step, and return the final report."""
    person.ok("local", "up", "--hosts", hosts)
    assert client.interrupt(person.cloud(), "digits", at_step=at_step, notice_s=notice_s) is False
    return person.launch(job)


def test_an_unbroken_run_reports_every_field(unbroken: Any) -> None:
    assert unbroken["status"] == "SUCCEEDED"
    assert unbroken["steps"] == 8 * 43
    assert (unbroken["lost_steps"], unbroken["interruptions"]) == (0, 0)
    assert set(unbroken["metrics"]) >= {"loss", "accuracy"}
    (attempt,) = unbroken["attempts"]
    assert set(attempt) >= {"pool", "capacity_type", "started", "ended", "end_reason", "seconds", "usd"}
    assert unbroken["usd"] > 0 and unbroken["usd_on_demand"] > 0
    assert isinstance(unbroken["savings_pct"], float)


@pytest.mark.parametrize("hosts", ["embedded", "sshd"])
def test_an_interruption_with_notice_loses_no_step_and_no_bit(
    person: Person, unbroken: Any, tmp_path: Path, hosts: str
) -> None:
    report = interrupted(person, digits_job(tmp_path / "job.yaml"), at_step=120, notice_s=3, hosts=hosts)
    assert report["status"] == "SUCCEEDED"
    assert (report["lost_steps"], report["interruptions"]) == (0, 1)
    assert report["metrics"] == unbroken["metrics"]
    one, two = report["attempts"]
    assert one["pool"] != two["pool"]
    assert (one["end_reason"], one["machine_usd"]) == ("interrupted", 0)
    assert 0 < one["usd"] == round(one["volume_usd"] + one["address_usd"] + one["transfer_usd"], 4) < two["usd"]
    assert person.machines() == []
    cost = person.ok("cost", report["job"], "-o", "json").json()
    history = SqliteStore(person.home / "jobs.db").facts(report["job"])
    assert abs(recount(history, time.time()) - Fraction(str(cost["total"]["usd"]))) < Fraction(1, 200), "to the cent"


@pytest.mark.parametrize("hosts", ["sshd"])
def test_a_machine_lost_without_notice_resumes_from_the_last_checkpoint(
    person: Person, unbroken: Any, tmp_path: Path, hosts: str
) -> None:
    report = interrupted(person, digits_job(tmp_path / "job.yaml"), at_step=120, notice_s=0, hosts=hosts)
    assert report["status"] == "SUCCEEDED"
    assert report["metrics"] == unbroken["metrics"]
    start = report["attempts"][1]["start_step"]
    assert start % 50 == 0 and start >= 50, "a periodic checkpoint"
    assert report["lost_steps"] == max(0, report["attempts"][0]["last_step"] - start)  # what was seen can lag behind
    assert person.machines() == []


def test_two_loader_workers_and_three_shell_lines(person: Person, unbroken: Any, tmp_path: Path) -> None:
    run = "echo before\npython -m cloudtrain.trainer --epochs 8 --seed 7 --workers 2\necho after"
    report = interrupted(person, digits_job(tmp_path / "job.yaml", run=run), at_step=120, notice_s=5)
    assert report["status"] == "SUCCEEDED"
    assert report["lost_steps"] == 0
    assert report["metrics"] == unbroken["metrics"]
    log = person.ok("logs", report["job"]).out
    assert log.count("before") == 2 and log.count("after") >= 1


def test_ls_has_every_field_while_it_runs(person: Person, tmp_path: Path) -> None:
    person.ok("launch", str(digits_job(tmp_path / "job.yaml")), "--cloud", "local", "--yes", "--detach")
    until(lambda: (person.rows()[0]["step"] or 0) >= 1, "a first step")
    (job,) = person.jobs()
    assert list(job) == [
        *("job", "name", "status", "step", "total_steps", "attempt", "pool", "capacity_type"),
        *("usd", "usd_per_hour", "started"),
    ]
    assert all(value is not None for value in job.values())
    assert job["status"] == "RUNNING"
    person.ok("down", "digits", "--yes")
    (job,) = person.jobs()
    assert job["status"] == "CANCELLED"
    assert person.machines() == []


def test_three_pools_without_capacity_then_the_fourth(person: Person, tmp_path: Path) -> None:
    person.ok("local", "up")
    for zone in ("use2-az2", "use2-az1", "use2-az3"):
        person.ok(
            *("local", "fault", "add", "RunInstances", "InsufficientInstanceCapacity"),
            *("--match", f"zone_id={zone}"),
        )
    report = person.launch(digits_job(tmp_path / "job.yaml", epochs=1))
    assert [a["end_reason"] for a in report["attempts"]] == ["no-capacity"] * 3 + ["succeeded"]
    assert [fault["met"] for fault in client.fault_list(person.cloud())] == [1, 1, 1]
    shown = person.ok("show", report["job"]).out
    for zone in ("use2-az2", "use2-az1", "use2-az3"):
        assert zone in shown
    assert shown.count("InsufficientInstanceCapacity") >= 3


def test_no_capacity_anywhere_exits_with_4_and_leaves_nothing(person: Person, tmp_path: Path) -> None:
    person.ok("local", "up")
    person.ok("local", "fault", "add", "RunInstances", "InsufficientInstanceCapacity")
    here = ("--region", "us-east-1", "--region", "us-east-2")  # of seventeen; each pool of the plan is tried
    said = person.run("launch", str(digits_job(tmp_path / "job.yaml")), "--cloud", "local", "--yes", *here)
    assert said.code == 4, said
    assert "no capacity" in said.err
    assert "Traceback" not in said.err
    assert person.machines() == []


def test_a_run_that_fails_at_once_exits_with_100_and_says_why(person: Person, tmp_path: Path) -> None:
    job = digits_job(tmp_path / "job.yaml", run="python -c 'import nowhere_to_be_found'")
    said = person.run("launch", str(job), "--cloud", "local", "--yes")
    assert said.code == 100, said
    assert "No module named 'nowhere_to_be_found'" in said.err
    assert "Traceback" not in said.err
    assert person.machines() == []


def test_the_embedded_cloud_killed_in_the_middle_loses_its_job_in_one_line(person: Person, tmp_path: Path) -> None:
    job = digits_job(tmp_path / "job.yaml", epochs=200)
    person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach")
    until(lambda: (person.rows()[0]["step"] or 0) >= 1, "a first step")
    pid = person.cloud().pid
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
    until(lambda: client.find(person.home / "local") is None, "the cloud's death", 5)
    said = person.ok("ls")
    assert "FAILED" in said.out
    assert "lost with its cloud" in said.out + said.err
    short = digits_job(tmp_path / "short.yaml", epochs=1)
    assert person.launch(short)["status"] == "SUCCEEDED"


def test_the_controller_killed_again_and_again_comes_back_and_finishes(person: Person, tmp_path: Path) -> None:
    job = digits_job(tmp_path / "job.yaml", epochs=12)
    person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach")
    most = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.05):
            most = max(most, len(person.machines()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    said_so = 0
    for pause_s in (0.2, 0.6, 0.3, 1.1, 0.5, 2.0):
        time.sleep(pause_s)
        if person.kill_controller():
            said = person.ok("ls")
            said_so += "controller" in said.err
    until(lambda: person.jobs()[0]["status"] == "SUCCEEDED", "the job's end")
    stop.set()
    watcher.join()
    assert said_so >= 3, "a controller brought back is told of"
    assert most == 1
    assert person.machines() == []
