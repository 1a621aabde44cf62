"""A laptop that sleeps, whose credentials expire, that reboots, or whose disk is lost, beside a machine that trains:
``python -m tests.faults.laptop --json``. Real processes on the embedded cloud; the hours are in the unit tests.

Nothing that runs is killed, the job is driven again afterwards, and it ends well on the one machine that it had.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import Person, counting_job, hurry, until
from tests.faults.leftovers import doubled, left

AWAY_S = 12.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def asleep(person: Person, job_id: str) -> Person:
    """SIGSTOP of the controller, as a suspended laptop's."""
    pid = int((person.home / "controller.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(AWAY_S)
    os.kill(pid, signal.SIGCONT)
    return person


def expired(person: Person, job_id: str) -> Person:
    """Every call says that the credentials have expired, for a while."""
    client.plant(person.cloud(), "expired-token")
    until(lambda: "expired" in json.dumps(_live(person, job_id)), "the controller to say so")
    time.sleep(AWAY_S)
    client.plant_clear(person.cloud())
    return person


def rebooted(person: Person, job_id: str) -> Person:
    """Nothing of this home runs any more; ``ls`` is what a person types first."""
    person.kill_controller()
    time.sleep(AWAY_S / 4)
    assert "started again" in person.ok("ls").err
    return person


def disk_lost(person: Person, job_id: str) -> Person:
    """The whole home is gone, and another one takes the job over. The cloud's own home is not this one's."""
    person.kill_controller()
    shutil.rmtree(person.home)
    second = Person(person.home.with_name(f"{person.home.name}-new"), extra=person.extra)
    second.home.mkdir()
    second.ok("adopt", job_id, "--cloud", "local", "--yes")
    return second


STORIES: dict[str, Callable[[Person, str], Person]] = {
    "asleep": asleep,
    "expired": expired,
    "rebooted": rebooted,
    "disk lost": disk_lost,
}


def _live(person: Person, job_id: str) -> Any:
    return person.ok("show", job_id, "-o", "json").json()


def tell(name: str, folder: Path, cloud_home: Path) -> dict[str, Any]:
    """One story, in a home of its own."""
    home = folder / "home"
    home.mkdir(parents=True)
    person = Person(home, extra={"CLOUDTRAIN_LOCAL_HOME": str(cloud_home)})
    job = counting_job(folder, steps=4000)
    job_id = person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach").out.strip()
    until(lambda: (person.rows()[0]["step"] or 0) >= 20, "its first steps")
    (machine,) = _machines(person, job_id)
    before = person.rows()[0]["step"]
    later = STORIES[name](person, job_id)
    same = _machines(later, job_id) == [machine]
    began = time.monotonic()
    until(lambda: (later.rows()[0]["step"] or 0) > before, "its steps being watched again")
    watched_s = round(time.monotonic() - began, 1)
    hurry(folder)
    until(lambda: later.rows()[0]["status"] in ENDED, "its end")
    record = later.stored()[0].record
    wrong = [*left(later, job_id, record.regions), *doubled(later, record)]
    later.kill_controller()
    ended = (str(record.status), len(record.attempts))
    return {
        "story": name,
        "watched_again_s": watched_s,
        "ended": ended[0],
        "attempts": ended[1],
        "holds": same and ended == ("SUCCEEDED", 1) and not wrong,
        "wrong": wrong,
    }


def _machines(person: Person, job_id: str) -> list[str]:
    machines = client.status(person.cloud())["machines"]
    return [m["instance_id"] for m in machines if m["job"] == job_id and m["state"] != "terminated"]


def main() -> int:
    """Returns 1 where a story does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(STORIES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seen = []
    with tempfile.TemporaryDirectory(prefix="cloudtrain-laptop-") as folder:
        cloud_home = Path(folder) / "cloud"
        keeper = Person(Path(folder), extra={"CLOUDTRAIN_LOCAL_HOME": str(cloud_home)})
        keeper.ok("local", "up")
        try:
            for name in [options.only] if options.only else STORIES:
                seen.append(tell(name, Path(folder) / name.replace(" ", "-"), cloud_home))
                print(json.dumps(seen[-1]), file=sys.stderr, flush=True)
        finally:
            keeper.run("local", "down", "--yes")
    held = all(one["holds"] for one in seen)
    print(json.dumps({"stories": seen, "held": held}) if options.json else f"{'all hold' if held else 'not all hold'}")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
