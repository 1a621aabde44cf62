"""The fault simulator: ``python -m tests.faults --schedules 10000 --seed 1 --json``. docs/faults.md says what it does.

Prints one JSON object (``--json``) or a few lines; for a violation also, on stderr, its seed and its shortest history.
Ends with 1 where something was violated, or where a mutant was not caught.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time

from tests.faults import play
from tests.faults.mutants import MUTANTS
from tests.faults.schedule import draw

SHOWN = 3  # violations that are told in full


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--schedules", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=None, help="the first of N; without it, one by chance")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="switch off one safety at a time; without names, all"
    )
    parser.add_argument("--show", action="store_true", help="tell the whole history of --seed")
    asked = parser.parse_args(argv)
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    if asked.show:
        return _show(seed)
    if asked.mutants is not None:
        return _mutants(asked.mutants or list(MUTANTS), seed, asked.schedules, asked.processes, as_json=asked.json)
    return _schedules(seed, asked.schedules, asked.processes, as_json=asked.json)


def _show(seed: int) -> int:
    play.prepare()
    simulation = play.run(draw(seed), record=True)
    print("\n".join([draw(seed).story(), *simulation.history]))
    return simulation.violation is not None


def _schedules(seed: int, count: int, processes: int, *, as_json: bool) -> int:
    total, seconds = play.tally(range(seed, seed + count), processes)
    document = total.document(seconds)
    play.prepare()
    shown = []
    for failed in sorted(total.failed, key=lambda f: f.seed)[:SHOWN]:
        assert failed.violation is not None
        history = play.story(failed.seed, failed.violation.invariant)
        shown.append({"seed": failed.seed, "invariant": failed.violation.invariant, "history": history.split("\n")})
        print(f"\n{failed.violation.invariant}: {failed.violation.text}\n{history}", file=sys.stderr)
    if shown:
        document["failed"] = shown
        document["seeds"] = sorted(failed.seed for failed in total.failed)
    if as_json:
        print(json.dumps(document))
    else:
        print(f"{count} schedules from seed {seed}: {len(total.failed)} violations, {len(total.points)} crash points,")
        print(f"{seconds:.0f} s")
    return 1 if total.failed else 0


def _mutants(names: list[str], seed: int, count: int, processes: int, *, as_json: bool) -> int:
    found: list[dict[str, object]] = []
    for name in names:
        began, after, caught = time.monotonic(), 0, None
        for played in play.play_many(range(seed, seed + count), processes, name):
            after += 1
            if played.violation is not None:
                caught = played
                break
        by = caught.violation.invariant if caught is not None and caught.violation is not None else None
        text = caught.violation.text if caught is not None and caught.violation is not None else ""
        seconds = round(time.monotonic() - began, 1)
        found.append(
            {"mutant": name, "caught_by": by, "seed": caught and caught.seed, "schedules": after, "seconds": seconds}
        )
        if not as_json:
            verdict = (
                f"{by} after {after}, seed {caught.seed}: {text}" if caught is not None else f"NOT CAUGHT in {after}"
            )
            print(f"{name:20} {verdict}", flush=True)
    missed = [entry["mutant"] for entry in found if entry["caught_by"] is None]
    if as_json:
        print(json.dumps({"mutants": found, "caught": len(found) - len(missed), "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
