"""A home whose processes carry points, where ``kill_points`` and ``interrupts`` disturb launches."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from tests.e2e.story import ROOT, Person, Said, counting_job, hurry, until
from tests.faults.leftovers import doubled, left, misrecorded
from tests.faults.points import Plan, Point, passed

T = TypeVar("T")
SITE = Path(__file__).with_name("site")
STEPS = 60
PATIENCE_S = 240.0  # computers that run tests are busy


@dataclass
class Stage:
    """A home, its embedded cloud, a short job, and processes that carry points."""

    folder: Path
    steps: int = STEPS
    person: Person = field(init=False)
    job: Path = field(init=False)

    def __post_init__(self) -> None:
        home = self.folder / "home"
        home.mkdir()
        Person(home).ok("local", "up")  # without points: neither it nor its machines have any
        paths = os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.person = Person(home, extra={"PYTHONPATH": paths, "FAULT_POINTS": str(self.folder / "plan.json")})
        self.job = counting_job(self.folder, steps=self.steps)
        hurry(self.folder)
        self._plans = 0

    def plan(self, at: Point | None, action: str = "none", pid_file: str = "") -> Plan:
        """The next plan, written where the processes look."""
        self._plans += 1
        plan = Plan(self._plans, str(self.folder / f"points-{self._plans}.log"), action, at, pid_file)
        plan.write(self.folder / "plan.json")
        return plan

    def launch(self) -> Said:
        """Launch and return at once."""
        return self.person.run("launch", str(self.job), "--cloud", "local", "--yes", "--detach")

    def settled(self, job_id: str) -> None:
        """Wait until the job is over."""
        over = ("SUCCEEDED", "FAILED", "CANCELLED")
        until(lambda: any(r["job"] == job_id and r["status"] in over for r in self.person.rows()), job_id, PATIENCE_S)

    def leave(self) -> None:
        """End everything."""
        self.person.leave()


def record_points(stage: Stage) -> list[Point]:
    """The points of an undisturbed launch, in order."""
    stage.person.kill_controller()
    plan = stage.plan(None)
    said = stage.launch()
    assert said.code == 0, said
    job_id = said.out.strip()
    stage.settled(job_id)
    wrong = faults_of(stage, job_id)
    assert not wrong, wrong
    seen = passed(Path(plan.log))
    return list(dict.fromkeys(seen))


def faults_of(stage: Stage, job_id: str, absent_s: float = 0.0) -> list[str]:
    """What is not as it must be after a job has succeeded."""
    person = stage.person
    record = next(s.record for s in person.stored() if s.record.job_id == job_id)
    return [*left(person, job_id, record.regions), *doubled(person, record), *misrecorded(person, job_id, absent_s)]


class Tried(Protocol):
    """What came of one disturbance."""

    met: bool
    wrong: list[str]
    seconds: float


R = TypeVar("R", bound=Tried)


def options_of(about: str | None, what: str) -> argparse.Namespace:
    """What the command was asked: ``sample``, ``seed``, ``only``, ``json``. ``what`` is disturbed: points, or cases."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--sample", type=int, help=f"so many {what}, drawn by --seed  [default: all]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help=f"{what} whose words hold this")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def try_each(
    stage: Stage, known: Sequence[T], one_try: Callable[[Stage, T], R], options: argparse.Namespace
) -> list[R]:
    """What came of each that was asked for; a line for each on stderr."""
    wanted = [one for one in known if options.only is None or options.only in str(one)]
    tries = []
    for one in chosen(wanted, options.sample, options.seed):
        last = one_try(stage, one)
        tries.append(last)
        how = "FAILS" if last.wrong else "clean" if last.met else "not met"
        print(f"{how:8}{one} ({last.seconds:.1f} s) {'; '.join(last.wrong)}", file=sys.stderr, flush=True)
    return tries


def chosen(known: Sequence[T], sample: int | None, seed: int) -> list[T]:
    """All, or a sample drawn by seed."""
    if sample is None or sample >= len(known):
        return list(known)
    return random.Random(seed).sample(list(known), sample)
