"""One controller with 1,000 jobs against the same with 100, while 5 % of all calls are throttled.

``python benchmarks/scale.py [--json] [--jobs 100 1000]``. Controller, store and boto3 are the real ones, at AWS's pace
and in a process of their own; the embedded cloud is in another, with machines that only pretend
(``_scale_controller.py``, ``_scale_cloud.py``). Needs nothing running, and ends what it starts. Takes some ten minutes:
moto needs some 5 ms to write an instance out, so it is what a thousand machines wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _claims import Claim, report
from _scale_jobs import add_jobs

from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client

HERE = Path(__file__).parent
FEW, MANY = 100, 1000
THROTTLED = 0.05
WINDOW_S = 60.0  # twelve passes of each job, at AWS's pace
PATIENCE_S = 1800.0
PASS_BAR = 13.0  # for ten times as many jobs
MEMORY_BAR_MB = 500.0
CALLS_BAR = 0.1  # a call for each machine and pass would be 1 or more
GAP_BAR_S = 30.0  # a lost machine is to be noticed within 60 s
LS_BAR = 6.0  # it reads ten times as many records, and starts once


@dataclass(frozen=True)
class Measured:
    """What one number of jobs cost. ``calls``: of the API in the window, by action."""

    jobs: int
    started_s: float  # until all of them trained
    cpu_per_round_s: float  # of the controller, for one pass over all jobs
    wall_per_round_s: float
    longest_gap_s: float  # between two passes of one job
    most_memory_mb: float
    threads: int
    calls_per_pass: float  # Describe calls for each machine and pass
    calls: dict[str, int]
    ls_s: float
    down_s: float
    left: int


@contextmanager
def process(script: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A script beside this one in a process of its own, ended with the block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CLOUDTRAIN_"))}
    with log.open("ab") as output:
        started = subprocess.Popen(
            [sys.executable, str(HERE / script), str(folder)],
            cwd=HERE.parent,
            env={**kept, "MALLOC_ARENA_MAX": "2"},  # as `controller.process` starts one
            stdout=output,
            stderr=output,
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def until(look: Callable[[], Any], what: str) -> Any:
    """What ``look`` finds, once it finds something. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:g} s for {what}")
        time.sleep(0.2)
    return found


def read(path: Path) -> dict[str, Any]:
    """A JSON object; {} before it is there."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict)
    return found


def command(home: Home, *arguments: str) -> tuple[float, str]:
    """How long a cloudtrain command took, and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cloudtrain.provisioner.cli.main", *arguments],
        env={**os.environ, "CLOUDTRAIN_HOME": str(home.root), "XDG_CONFIG_HOME": str(home.root / "config")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - started, done.stdout


def measure(number: int, folder: Path, window_s: float) -> Measured:
    """So many jobs: started, watched for a while, listed and ended."""
    root = folder / str(number)
    root.mkdir()
    home = Home(root, root / "local")
    costs, calls = root / "cost.json", home.local_home / "calls.json"
    with process("_scale_cloud.py", home.local_home, root / "cloud.log"):
        cloud = until(lambda: client.find(home.local_home), "the embedded cloud")
        client.fault_add(cloud, "*", "RequestLimitExceeded", share=THROTTLED)
        add_jobs(home, cloud, number)
        started = time.monotonic()
        with process("_scale_controller.py", root, root / "controller.log"):
            until(lambda: read(costs).get("trains") == number, f"{number} machines that train")
            started_s = time.monotonic() - started
            time.sleep(10)  # the last ones come to rest
            (root / "fresh").touch()
            until(lambda: not (root / "fresh").exists(), "the controller")
            before, called_before = read(costs), read(calls)
            time.sleep(window_s)
            after, called_after = read(costs), read(calls)
            ls_s = sorted(command(home, "ls", "-o", "json")[0] for _ in range(3))[1]
            down_s = command(home, "down", "--all", "--yes", "-o", "json")[0]
        left = [m for m in client.status(cloud)["machines"] if m["state"] != "terminated"]
    rounds = (after["passes"] - before["passes"]) / number
    made = {action: count - called_before.get(action, 0) for action, count in called_after.items()}
    describes = sum(count for action, count in made.items() if action.startswith("Describe"))
    return Measured(
        jobs=number,
        started_s=started_s,
        cpu_per_round_s=(after["cpu_s"] - before["cpu_s"]) / rounds,
        wall_per_round_s=(after["at"] - before["at"]) / rounds,
        longest_gap_s=after["longest_s"],
        most_memory_mb=read(costs)["most_rss_mb"],
        threads=after["threads"],
        calls_per_pass=describes / (rounds * number),
        calls={action: count for action, count in made.items() if count},
        ls_s=ls_s,
        down_s=down_s,
        left=len(left),
    )


def claims(few: Measured, many: Measured) -> list[Claim]:
    """What must hold of many jobs, measured beside few."""
    of = f"{many.jobs:,} jobs"
    return [
        Claim(f"CPU of a pass over {of} / over {few.jobs}", many.cpu_per_round_s / few.cpu_per_round_s, "x", PASS_BAR),
        Claim(f"controller's memory at its most, {of}", many.most_memory_mb, "MB", MEMORY_BAR_MB),
        Claim(f"Describe calls for each machine and pass, {of}", many.calls_per_pass, "", CALLS_BAR),
        Claim(f"longest time between two looks at a job, {of}", many.longest_gap_s, "s", GAP_BAR_S),
        Claim(f"`ls -o json` with {of} / with {few.jobs}", many.ls_s / few.ls_s, "x", LS_BAR),
        Claim(f"machines left after `down --all` of {of}", float(many.left), "", 0.0),
    ]


def main() -> int:
    """Returns 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object, last")
    parser.add_argument("--jobs", type=int, nargs=2, default=[FEW, MANY], metavar="N", help="few and many")
    parser.add_argument("--window", type=float, default=WINDOW_S, metavar="S", help="how long they are watched")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-scale-") as folder:
        measured = []
        for number in options.jobs:
            measured.append(measure(number, Path(folder), options.window))
            print(measured[-1], file=sys.stderr)
    return report(claims(*measured), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
