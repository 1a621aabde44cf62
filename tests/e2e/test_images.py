"""Images that are not the reviewed one: torch in an environment that must be activated, no torch, a Python too old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.localcloud.hostpython import IMAGES
from tests.e2e.story import Person

pytestmark = pytest.mark.slow

AMI = {python: ami for ami, python in IMAGES.items()}
DIGITS = "python -m cloudtrain.trainer --epochs 1 --seed 7"


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = Person(tmp_path_factory.mktemp("home"))
    yield person
    person.leave()


def job_on(person: Person, image: str, run: str, *, setup: str = "") -> Path:
    """A job file that names an image of its own."""
    path = person.home / f"{len(list(person.home.glob('*.yaml')))}.yaml"
    path.write_text(
        f"name: job-{path.stem}\n"
        f"resources: {{accelerators: 'T4:1', use_spot: true, aws: {{image_id: {image}}}}}\n"
        f"run: {run}\n" + (f"setup: {setup}\n" if setup else "")
    )
    return path


def test_torch_in_an_environment_that_must_be_activated(person: Person) -> None:
    report = person.launch(job_on(person, AMI["torch-in-venv"], DIGITS, setup="python -c 'import torch'"))
    shown = person.ok("show", report["job"], "-o", "json").json()
    assert any(line.startswith("python: ") and line.endswith("with torch") for line in shown["checks"])


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (
            "old-python",
            "no Python of 3.10 or later, which the agent needs: python3 is 3.9, python is 3.9; choose another",
        ),
        ("no-torch", "has no torch, and run uses cloudtrain.trainer: install it in `setup`, or choose an image that"),
    ],
)
def test_an_image_that_lacks_what_is_needed_ends_the_job_at_once(person: Person, python: str, words: str) -> None:
    said = person.run("launch", str(job_on(person, AMI[python], DIGITS)), "--cloud", "local", "--yes", "-o", "json")
    assert said.code == 2, said
    report = said.json()
    assert [attempt["end_reason"] for attempt in report["attempts"]] == ["image-unfit"], "no other pool would do better"
    assert words in report["detail"]
    assert words in said.err
    assert person.machines() == []


def test_a_script_without_torch_runs_on_an_image_without_torch(person: Person) -> None:
    person.launch(job_on(person, AMI["no-torch"], "python -c 'print(6 * 7)'"))


def test_an_image_that_is_not_there_starts_nothing(person: Person) -> None:
    said = person.run("launch", str(job_on(person, "ami-0123456789abcdef0", DIGITS)), "--cloud", "local", "--yes")
    assert said.code == 6
    assert "image ami-0123456789abcdef0 does not exist in us-east-1" in said.err
    assert person.machines() == []
