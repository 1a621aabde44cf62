"""How soon the loss of a machine is noticed, at the pace that the controller has on AWS, and what a cut-off SSH does:
``python -m tests.faults.detection --json``. Real processes on the embedded cloud; seconds are measured.

Without notice the loss must show within 60 s, with notice the notice within 10 s, also while SSH leads nowhere. A job
whose machine runs is never killed for that, is watched again once the network is back, and no command waits for ever.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.model import Attempt, JobRecord
from tests.e2e.story import ROOT, Person, counting_job, until
from tests.faults.leftovers import left

SITE = Path(__file__).with_name("site")
WITHOUT_NOTICE_S = 60.0
WITH_NOTICE_S = 10.0
NOTICE_S = 40.0
COMMAND_S = 60.0
CUT_S = 90.0
STEPS = 100_000


@contextmanager
def at_aws_pace(folder: Path, *up: str) -> Iterator[Person]:
    """Somebody whose controller looks as seldom as on AWS."""
    home = folder / "home"
    home.mkdir(parents=True)
    Person(home).ok("local", "up", *up)
    paths = os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    person = Person(home, extra={"PYTHONPATH": paths, "FAULT_AWS_PACE": "1"})
    try:
        yield person
    finally:
        person.leave()


def launched(person: Person, job: Path) -> str:
    """A job under way, some steps in."""
    job_id = person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach").out.strip()
    until(lambda: (person.rows()[0]["step"] or 0) >= 20, "its first steps")
    return job_id


def record_of(person: Person, job_id: str) -> JobRecord:
    """As the store has it."""
    return next(s.record for s in person.stored() if s.record.job_id == job_id)


def seconds_until(person: Person, job_id: str, holds: Callable[[Attempt], bool], patience_s: float) -> float | None:
    """How long until the record's first attempt shows it; None where it does not."""
    started = time.monotonic()
    while time.monotonic() - started < patience_s:
        if holds(record_of(person, job_id).attempts[0]):
            return round(time.monotonic() - started, 1)
        time.sleep(0.1)
    return None


def loss(person: Person, job: Path, *, cut: bool, notice: bool) -> dict[str, Any]:
    """Take a machine away and measure when the record knows of it."""
    job_id = launched(person, job)
    if cut:
        client.cutoff(person.cloud(), job_id)
        time.sleep(8.0)  # into the waits that a dead connection brings
    client.interrupt(person.cloud(), job_id, notice_s=NOTICE_S if notice else 0.0)
    if notice:
        found = seconds_until(person, job_id, lambda a: a.notice_at is not None, NOTICE_S)
    else:
        found = seconds_until(person, job_id, lambda a: a.ended_at is not None, 2 * WITHOUT_NOTICE_S)
    limit = WITH_NOTICE_S if notice else WITHOUT_NOTICE_S
    person.ok("down", job_id, "--yes")
    remains = left(person, job_id, record_of(person, job_id).regions)
    name = f"{'with' if notice else 'without'} notice{', SSH black-holed' if cut else ''}"
    return {"case": name, "seconds": found, "holds": found is not None and found <= limit and not remains}


def black_hole(person: Person, job: Path, cut_s: float = CUT_S) -> dict[str, Any]:
    """Cut a machine off for a while. The commands are timed meanwhile; the job must be the same afterwards."""
    job_id = launched(person, job)
    client.cutoff(person.cloud(), job_id)
    cut_at = time.monotonic()
    took: dict[str, float] = {}
    for words in (["ls"], ["show", job_id], ["logs", job_id], ["cost", job_id], ["ssh", job_id, "--", "true"]):
        began = time.monotonic()
        person.wait(person.start(*words))
        took[words[0]] = round(time.monotonic() - began, 1)
    time.sleep(max(0.0, cut_s - (time.monotonic() - cut_at)))
    same = [a.end_reason for a in record_of(person, job_id).attempts] == [None]
    client.cutoff(person.cloud(), job_id, cut=False)
    before = person.rows()[0]["step"] or 0
    joined_at = time.monotonic()
    until(lambda: (person.rows()[0]["step"] or 0) > before, "its steps being watched again")
    watched_s = round(time.monotonic() - joined_at, 1)
    client.cutoff(person.cloud(), job_id)
    began = time.monotonic()
    ended = person.run("down", job_id, "--yes")
    took["down"] = round(time.monotonic() - began, 1)
    remains = left(person, job_id, record_of(person, job_id).regions)
    bounded = all(seconds <= COMMAND_S for name, seconds in took.items() if name != "down")
    return {
        "case": f"SSH black-holed for {cut_s:.0f} s",
        "seconds": watched_s,
        "commands": took,
        "holds": same and bounded and ended.code == 0 and not remains,
    }


def main() -> int:
    """Returns 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="embedded", choices=["embedded", "sshd"])
    parser.add_argument("--only", help="cases whose name holds this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases: list[tuple[str, Callable[[Person, Path], dict[str, Any]]]] = [
        ("without notice", lambda p, j: loss(p, j, cut=False, notice=False)),
        ("with notice", lambda p, j: loss(p, j, cut=False, notice=True)),
        ("without notice, SSH black-holed", lambda p, j: loss(p, j, cut=True, notice=False)),
        ("with notice, SSH black-holed", lambda p, j: loss(p, j, cut=True, notice=True)),
        ("black hole", lambda p, j: black_hole(p, j)),
    ]
    seen = []
    with (
        tempfile.TemporaryDirectory(prefix="cloudtrain-detection-") as folder,
        at_aws_pace(Path(folder), "--hosts", options.hosts) as person,
    ):
        job = counting_job(Path(folder), steps=STEPS)
        for name, case in cases:
            if options.only is None or options.only in name:
                seen.append(case(person, job))
                print(json.dumps(seen[-1]), file=sys.stderr, flush=True)
    held = all(one["holds"] for one in seen)
    print(json.dumps({"cases": seen, "held": held}) if options.json else f"{'all hold' if held else 'not all hold'}")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
