"""kill -9 before and after each external effect of a launch, one at a time, on the embedded cloud with real processes:
``python -m tests.faults.kill_points --json``.

A first launch, undisturbed, writes down which effects there are: of the command line and of the controller. Then each
launch has its process killed at one of them. What must hold afterwards: the job succeeds (where it was stored),
at most one machine of a generation was ever made, no two lived at a time, nothing is left in the cloud or on this
computer, and record and bill are right.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.story import Person, until
from tests.faults.points import Plan, Point, fired
from tests.faults.stage import PATIENCE_S, Stage, faults_of, options_of, record_points, try_each

STARTING_S = 5.0  # a controller takes so long to make its first pass, on a busy computer


@dataclass
class Try:
    """One launch that was disturbed at a point."""

    point: Point
    met: bool
    stored: bool
    wrong: list[str]
    seconds: float


def one_try(stage: Stage, point: Point) -> Try:
    """Launch, with a kill at the point; come back with ``ls``; wait; look at everything."""
    started = time.monotonic()
    person = stage.person
    person.kill_controller()  # an idle one of the try before
    known = {s.record.job_id for s in person.stored()}
    plan = stage.plan(point, "kill")
    said = stage.launch()
    wrong = []
    if point.role == "controller" and said.code != 0:
        wrong.append(f"launch ended with {said.code}: {said.err}")
    new = [s.record.job_id for s in person.stored() if s.record.job_id not in known]
    if not new:
        wrong += [] if fired(plan) else ["no job, and no kill"]
        wrong += [f"{m['instance_id']} lives" for m in person.machines()]
        return Try(point, fired(plan), False, wrong, time.monotonic() - started)
    job_id = new[0]
    wait_for_kill(person, plan, job_id)
    killed_at = time.monotonic()
    listed = person.ok("ls")
    absent_s = time.monotonic() - killed_at + STARTING_S
    if point.role == "controller" and fired(plan) and not _over(person, job_id) and "started again" not in listed.err:
        wrong.append(f"ls did not bring the controller back: {listed.err}")
    stage.settled(job_id)
    wrong += faults_of(stage, job_id, absent_s)
    return Try(point, fired(plan), True, wrong, time.monotonic() - started)


def left_on_disk(stage: Stage) -> list[str]:
    """Folders of launches that were killed before there was a job. The next controller's start takes them away."""
    stage.person.kill_controller()
    stage.plan(None)
    stage.settled(stage.launch().out.strip())
    owned = {s.record.job_id for s in stage.person.stored()}
    return [path.name for path in (stage.person.home / "jobs").glob("*") if path.name not in owned]


def _over(person: Person, job_id: str) -> bool:
    return any(s.record.job_id == job_id and s.record.status.final for s in person.stored())


def wait_for_kill(person: Person, plan: Plan, job_id: str) -> None:
    """Until the point was met, or the job is over without."""
    until(lambda: fired(plan) or _over(person, job_id), f"{plan.at}", PATIENCE_S)


def summary(tries: Sequence[Try], known: int, ownerless: Sequence[str], seconds: float) -> dict[str, Any]:
    """For --json. A point that was not met is one whose effect this launch did not need: not a failure, but told."""
    bad = [t for t in tries if t.wrong]
    return {
        "points": known,
        "tried": len(tries),
        "met": sum(t.met for t in tries),
        "clean": sum(not t.wrong for t in tries),
        "not_met": [str(t.point) for t in tries if not t.met],
        "ownerless_folders": len(ownerless),
        "faults": [{"point": str(t.point), "wrong": t.wrong} for t in bad],
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Returns 1 where a try is not clean."""
    options = options_of(__doc__, "points")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-kills-") as folder:
        stage = Stage(Path(folder))
        try:
            points = record_points(stage)
            tries = try_each(stage, points, one_try, options)
            ownerless = left_on_disk(stage)
        finally:
            stage.leave()
    told = summary(tries, len(points), ownerless, time.monotonic() - started)
    print(json.dumps(told) if options.json else f"{told['clean']} of {told['tried']} clean")
    return int(bool(told["faults"] or ownerless))


if __name__ == "__main__":
    sys.exit(main())
