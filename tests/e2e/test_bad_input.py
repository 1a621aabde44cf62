"""Bad input by the real command: one line, its exit code, and nothing durably trained is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.namespaces import apart, mount_small
from tests.e2e.story import Person, Said

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-bad-input")]

GOOD = "name: job\nresources: {accelerators: 'T4:1', use_spot: true}\nrun: 'true'\n"


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    someone = Person(home, cwd=tmp_path)
    try:
        yield someone
    finally:
        someone.leave()


def launch(person: Person, text: str | None, *flags: str) -> Said:
    assert person.cwd is not None
    if text is not None:
        (person.cwd / "job.yaml").write_text(text)
    return person.run("launch", "job.yaml", "--cloud", "local", "--yes", *flags)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param("name: [job\n", 2, ("job.yaml:2:1: ",), id="not YAML"),
        pytest.param("", 2, ("job.yaml:1:1: ",), id="empty"),
        pytest.param(GOOD + "runn: x\n", 2, ("job.yaml:4:1: ", "`runn`"), id="unknown key"),
        pytest.param(GOOD + "notify: me\n", 2, ("job.yaml:4:1: ", "not supported yet"), id="key for later"),
        pytest.param(GOOD + "max_run: soon\n", 2, ("job.yaml:4:10: ", "write 90s"), id="wrong value"),
        pytest.param(GOOD.replace("run:", "setup:"), 2, ("job.yaml:1:1: ", "`run` is missing"), id="no run"),
        pytest.param(
            GOOD + "workdir: gone\n", 2, ("job.yaml:4:10: ", "/gone does not exist", "create it"), id="no dir"
        ),
        pytest.param(None, 3, ("job.yaml: ", "no such job file"), id="no job file"),
        pytest.param(
            GOOD.replace("use_spot", "max_hourly_cost: 0.01, use_spot"), 4, ("T4:1", "max_hourly_cost"), id="too dear"
        ),
        pytest.param(GOOD.replace("T4:1", "T4:64"), 4, ("T4:64", "accelerator"), id="no such machine"),
    ],
)
def test_refused_in_one_line_before_anything_starts(
    person: Person, text: str | None, code: int, words: tuple[str, ...]
) -> None:
    said = launch(person, text)
    assert said.code == code, said
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("cloudtrain: ")
    for word in words:
        assert word in said.err
    left = {path.name for path in person.home.iterdir()}
    assert left <= {"id", "jobs.db"}, "no controller, no cloud, no snapshot"


def test_a_live_name_is_not_launched_twice(person: Person) -> None:
    job = launch(person, GOOD.replace("'true'", "sleep 600"), "--detach").out.strip()
    said = launch(person, None)
    assert said.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"job {job} named 'job' is " in said.err
    assert f"cloudtrain logs -f {job}" in said.err
    assert [found["job"] for found in person.jobs()] == [job]
    person.ok("down", job, "--yes")
    assert person.machines() == []


# Saves once, waits until that is in the bucket, and fills the disk where the attempt's number is among those given.
# At the end it says where it began.
FILL = """
python - <<'END'
import json, os, time
place, attempt = os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], int(os.environ["CLOUDTRAIN_ATTEMPT"])
status = os.path.join(os.path.dirname(os.environ["CLOUDTRAIN_PROGRESS"]), "status.json")
resumed = os.environ.get("CLOUDTRAIN_RESUME")
print("attempt", attempt, "resumes from", resumed and os.path.basename(resumed), flush=True)
if not resumed:
    os.makedirs(os.path.join(place, "tmp"))
    open(os.path.join(place, "tmp", "state"), "w").write("forty")
    os.rename(os.path.join(place, "tmp"), os.path.join(place, "step-40"))
    while not os.path.exists(status) or json.load(open(status))["durable_step"] != 40:
        time.sleep(0.05)
if attempt in FILLS:
    with open("big", "wb") as file:
        while True:
            file.write(bytes(1 << 16))
assert open(os.path.join(resumed, "state")).read() == "forty"
END
"""


def small_disks(person: Person) -> None:
    """The embedded cloud, whose machines share 24 MiB."""
    there = Person(person.home, (*apart(), *person.command), person.cwd)
    there.ok("local", "up")
    mount_small(person.cloud().pid, person.home / "local" / "hosts", 24)


def fill(person: Person, fills: str) -> Said:
    """Launch the job that fills the disk."""
    small_disks(person)
    lines = "".join(f"  {line}\n" for line in FILL.replace("FILLS", fills).splitlines())
    return launch(person, GOOD.replace("'true'", f"|\n{lines}"), "-o", "json")


def test_a_full_disk_costs_the_machine_and_no_checkpoint(person: Person) -> None:
    said = fill(person, "(1,)")
    assert said.code == 0, said
    report = said.json()
    assert [a["end_reason"] for a in report["attempts"]] == ["machine-unfit", "succeeded"]
    assert report["attempts"][0]["pool"] != report["attempts"][1]["pool"]
    assert report["attempts"][1]["start_step"] == 40
    assert "disk full on the machine" in report["attempts"][0]["end_detail"]
    assert "attempt 2 resumes from step-000000040" in person.ok("logs", report["job"]).out
    assert person.machines() == []


def test_a_disk_that_is_full_on_each_machine_ends_the_job_and_says_what_to_do(person: Person) -> None:
    said = fill(person, "(1, 2, 3, 4)")
    assert said.code == 100, said
    assert "Traceback" not in said.err
    report = said.json()
    assert {a["end_reason"] for a in report["attempts"]} == {"machine-unfit"}
    (line,) = [line for line in said.err.splitlines() if line.startswith("job job-") and "FAILED" in line]
    assert "disk full on the machine: raise resources.disk_size" in line
    assert [a["start_step"] for a in report["attempts"]] == [0, 40, 40]
    assert person.machines() == []


def test_a_workdir_that_does_not_fit_on_the_disk_ends_the_job_at_once(person: Person) -> None:
    assert person.cwd is not None
    (person.cwd / "data").mkdir()
    (person.cwd / "data" / "big").write_bytes(bytes(40 << 20))
    small_disks(person)
    said = launch(person, GOOD + "workdir: data\n", "-o", "json")
    assert said.code == 100, said
    assert "Traceback" not in said.err
    assert {a["end_reason"] for a in said.json()["attempts"]} == {"machine-unfit"}
    (line,) = [line for line in said.err.splitlines() if line.startswith("job job-") and "FAILED" in line]
    assert "disk is full" in line and "raise resources.disk_size" in line
    assert person.machines() == []
