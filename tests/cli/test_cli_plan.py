"""`cloudtrain plan`: the plan of a launch, changed by flags and by the configuration, with nothing done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .world import World

JOB = """
name: digits
resources: {accelerators: "T4:1", use_spot: true, memory: 16+}
run: python train.py
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def pools(out: str) -> list[str]:
    return [offering["pool"] for offering in json.loads(out)["offerings"]]


def test_plan_and_dry_run_say_the_same(world: World, job_file: Path) -> None:
    for more in ([], ["-o", "json"], ["--gpu", "L4:1", "--on-demand", "--region", "us-west-2"]):
        planned = world.run("plan", job_file, *more)
        assert planned == world.run("launch", job_file, "--dry-run", *more)
        assert planned[0] == 0
        assert max(map(len, planned[1].splitlines())) <= 80 or "json" in more
    assert world.store.list() == ()
    assert list((world.home.root / "jobs").iterdir()) == []


def test_every_place_is_named_with_its_region(world: World, job_file: Path) -> None:
    out = world.run("plan", job_file, "--region", "us-west-2")[1]
    assert "us-west-2/usw2-az" in out
    assert "spot machines, tried in this order" in out


def test_alternatives_on_both_markets_name_the_market(world: World, job_file: Path) -> None:
    alternatives = 'any_of: [{accelerators: "T4:1", use_spot: true}, {accelerators: "T4:1"}], memory: 16+'
    job_file.write_text(f"resources: {{{alternatives}}}\nrun: a\n")
    out = world.run("plan", job_file, "--region", "us-west-2")[1]
    assert "spot or on-demand machines" in out
    assert "bought" in out.splitlines()[2]


def test_the_configured_region_and_cloud_are_taken_unless_a_flag_says_otherwise(world: World, job_file: Path) -> None:
    world.run("config", "set", "region", "us-west-2")
    world.run("config", "set", "cloud", "local")
    found = pools(world.run("plan", job_file, "-o", "json")[1])
    assert {pool.split("/")[0] + pool.split("/")[1] for pool in found} == {"localus-west-2"}
    found = pools(world.run("plan", job_file, "-o", "json", "--cloud", "aws", "--region", "us-east-1")[1])
    assert {pool.split("/")[0] + pool.split("/")[1] for pool in found} == {"awsus-east-1"}
    job_file.write_text(JOB.replace("memory", "infra: aws/us-east-2, memory"))
    found = pools(world.run("plan", job_file, "-o", "json")[1])
    assert {pool.split("/")[1] for pool in found} == {"us-east-2"}  # the job file says where


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--gpu", "T5:1"], 2, "--gpu"),
        (["--region", "us-eest-1"], 2, "did you mean us-east-1?"),
        (["--gpu", "A100:3"], 4, "nothing fits"),
        (["--max-price", "0.0001"], 4, "max_hourly_cost"),
        (["--env", "A"], 2, "NAME=VALUE"),
    ],
)
def test_refusals(world: World, job_file: Path, args: list[str], code: int, words: str) -> None:
    got, out, err = world.run("plan", job_file, *args)
    assert (got, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_no_such_file(world: World) -> None:
    assert world.run("plan", "nowhere.yaml")[0] == 3
