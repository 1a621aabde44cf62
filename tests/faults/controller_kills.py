"""kill -9 of the controller at moments drawn by seed: ``python -m tests.faults.controller_kills --tries 20 --seed 1``.

Each try launches a short job with --detach, kills its controller once, lists the jobs, and waits. What must hold: the
controller comes back and says so, the job succeeds, never two machines for it, none left. Prints a line per try.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import PATIENCE_S, Person, digits_job

SPAN_S = 7.0  # kills fall between the launch and so long after it: before, in and after the training


@dataclass(frozen=True)
class Try:
    """What one try saw."""

    after_s: float
    status_then: str
    status: str
    told: bool
    most_machines: int
    left: int
    attempts: int

    @property
    def holds(self) -> bool:
        """A job that had ended before the kill needs no controller."""
        told = self.told or self.status_then in ("SUCCEEDED", "gone")
        return self.status == "SUCCEEDED" and told and self.most_machines <= 1 and self.left == 0


def one_try(person: Person, job_file: Path, after_s: float) -> Try:
    """Launch, kill after so many seconds, and watch to the end."""
    job_id = person.ok("launch", str(job_file), "--cloud", "local", "--yes", "--detach").out.strip()
    deadline = time.monotonic() + after_s
    most = 0
    while time.monotonic() < deadline:
        most = max(most, _machines(person, job_id))
        time.sleep(0.02)
    status_then = _job(person, job_id)["status"] if after_s > 1 else "PENDING"
    killed = person.kill_controller()
    told = "the controller was not running" in person.ok("ls").err
    give_up = time.monotonic() + PATIENCE_S
    while _job(person, job_id)["status"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        most = max(most, _machines(person, job_id))
        if time.monotonic() > give_up:
            break
        time.sleep(0.1)
    listed = _job(person, job_id)
    return Try(
        after_s,
        str(status_then) if killed else "gone",
        str(listed["status"]),
        told,
        most,
        _machines(person, job_id),
        int(str(listed["attempt"])),
    )


def _job(person: Person, job_id: str) -> dict[str, object]:
    return next(job for job in person.jobs() if job["job"] == job_id)


def _machines(person: Person, job_id: str) -> int:
    return sum(m["job"] == job_id and m["state"] != "terminated" for m in client.status(person.cloud())["machines"])


def main() -> int:
    """Returns 1 where a try does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    held = 0
    with tempfile.TemporaryDirectory(prefix="cloudtrain-kills-") as folder:
        person = Person(Path(folder))
        person.ok("local", "up")
        try:
            job_file = digits_job(Path(folder) / "job.yaml", epochs=3)
            for number in range(1, options.tries + 1):
                seen = one_try(person, job_file, moments.uniform(0, SPAN_S))
                held += seen.holds
                print(f"{number:3} {'holds' if seen.holds else 'FAILS'} {seen}", flush=True)
        finally:
            person.leave()
    print(f"{held} of {options.tries} hold")
    return int(held != options.tries)


if __name__ == "__main__":
    sys.exit(main())
