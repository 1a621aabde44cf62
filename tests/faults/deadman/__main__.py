"""``python -m tests.faults.deadman``: boot machines with the very user data and see the dead-man switch end them.

Exit code 1 where a scenario fails, 2 where nothing can be booted here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.deadman.scenarios import SCENARIOS, Bench
from tests.faults.deadman.tree import CACHE, CannotBoot, tree


@dataclass(frozen=True)
class Result:
    """One scenario's end. ``detail``: the figures, or what did not hold."""

    scenario: str
    ok: bool
    seconds: float
    detail: str


def play(name: str, bench: Bench, scenario: Callable[[Bench], str]) -> Result:
    """Never raises: what goes wrong is the result."""
    began = time.monotonic()
    try:
        ok, detail = True, scenario(bench)
    except Exception as error:  # noqa: BLE001 - an error of ours is no proof of anything either
        ok, detail = False, f"{type(error).__name__}: {error}"
    return Result(name, ok, round(time.monotonic() - began, 1), detail)


def main() -> int:
    """Play the scenarios; print a line for each, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.deadman", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--tree", type=Path, default=CACHE, help="where the small Debian lies, or is built once")
    parser.add_argument("--jobs", type=int, default=3, help="machines at a time")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="these alone: " + ", ".join(_BY_NAME))
    options = parser.parse_args()
    chosen = options.names or list(_BY_NAME)
    if unknown := [name for name in chosen if name not in _BY_NAME]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    began = time.monotonic()
    try:
        root = tree(options.tree)
    except CannotBoot as error:
        sys.stderr.write(f"deadman: {error}\n")
        return 2
    results = []
    with tempfile.TemporaryDirectory(prefix="deadman-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        waiting = [
            pool.submit(play, name, Bench(root, Path(folder), check_s), scenario)
            for name in chosen
            for scenario, check_s in [_BY_NAME[name]]
        ]
        for future in as_completed(waiting):
            result = future.result()
            results.append(result)
            line = f"{'ok  ' if result.ok else 'FAIL'} {result.scenario} ({result.seconds} s): {result.detail}\n"
            (sys.stderr if options.json else sys.stdout).write(line)
    failed = sum(not result.ok for result in results)
    if options.json:
        shown = [asdict(result) for result in results]
        document = {"scenarios": shown, "failed": failed, "seconds": round(time.monotonic() - began, 1)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 1 if failed else 0


_BY_NAME = {scenario.__name__: (scenario, check_s) for scenario, check_s in SCENARIOS.items()}

if __name__ == "__main__":
    sys.exit(main())
