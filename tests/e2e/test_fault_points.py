"""A slice of ``tests.faults.kill_points`` and ``tests.faults.interrupts``, drawn by a seed: real processes of a launch
are killed, or interrupted, at one of their external effects. The whole of both runs as commands of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import interrupts, kill_points
from tests.faults.kill_points import left_on_disk
from tests.faults.points import Point
from tests.faults.stage import Stage, chosen

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("e2e-points")]

SEED = 4
KILLS = [
    Point("controller", "ec2.RunInstances", 1, "after"),
    Point("controller", "ec2.CreateSecurityGroup", 1, "after"),
    Point("controller", "s3.PutObject latest.json", 1, "after"),
    Point("controller", "ssh.ship", 1, "before"),
    Point("controller", "ssh.extend", 1, "before"),
    Point("controller", "collect", 1, "after"),
    Point("controller", "ec2.DeleteSecurityGroup", 1, "before"),
]
OF_LAUNCH = [Point("cli", "add", 1, "after"), Point("cli", "keep_secrets", 1, "after")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A home whose processes carry points."""
    made = Stage(tmp_path_factory.mktemp("points"))
    try:
        yield made
    finally:
        made.leave()


def test_a_launch_whose_processes_are_killed_at_an_effect_ends_well_all_the_same(stage: Stage) -> None:
    for point in [*chosen(KILLS, 2, SEED), *OF_LAUNCH]:
        seen = kill_points.one_try(stage, point)
        assert (seen.met, seen.wrong) == (True, []), point
    assert left_on_disk(stage) == []


def test_ctrl_c_at_an_effect_leaves_nothing_or_a_job_that_is_told(stage: Stage, tmp_path: Path) -> None:
    begun = Point("controller", "s3.PutObject record.json", 1, "before")
    for case in (
        interrupts.Case(Point("cli", "keep_secrets", 1, "before"), twice=True, terminal=False),
        interrupts.Case(begun, twice=True, terminal=True),
    ):
        seen = interrupts.one_try(stage, case)
        assert (seen.met, seen.stored, seen.wrong) == (True, case.point is begun, []), case
