"""Runs schedules: one, many on several cores, and the shortest one that still fails."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tests.faults import homes
from tests.faults.invariants import NAMES, Violation
from tests.faults.schedule import Schedule, draw
from tests.faults.simulation import Simulation

CHUNK = 25  # schedules that a process takes at once
SHRINK_RUNS = 400  # at most: a shorter history is worth some seconds


@dataclass(frozen=True)
class Played:
    """What came of one schedule."""

    seed: int
    violation: Violation | None
    points: frozenset[str]


@dataclass
class Tally:
    """What came of many."""

    schedules: int = 0
    by_invariant: Counter[str] = field(default_factory=Counter)
    points: set[str] = field(default_factory=set)
    failed: list[Played] = field(default_factory=list)

    def add(self, played: Played) -> None:
        """One more."""
        self.schedules += 1
        self.points |= played.points
        if played.violation is not None:
            self.by_invariant[played.violation.invariant] += 1
            self.failed.append(played)

    def document(self, seconds: float) -> dict[str, object]:
        """The object that ``--json`` prints."""
        return {
            "schedules": self.schedules,
            "violations": len(self.failed),
            "by_invariant": {name: self.by_invariant.get(name, 0) for name in NAMES},
            "crash_points": len(self.points),
            "seconds": round(seconds, 1),
        }


def prepare(mutant: str | None = None) -> None:
    """Once in a process: the slow parts are replaced, and a safety is switched off where a mutant is asked for."""
    logging.disable(logging.CRITICAL)
    homes.replace_slow_parts()
    if mutant is not None:
        from tests.faults.mutants import MUTANTS

        MUTANTS[mutant].switch_off()


def run(schedule: Schedule, *, record: bool = False) -> Simulation:
    """Play one schedule to its end, or to its first violation."""
    simulation = Simulation(schedule, record=record)
    homes.install(simulation)
    simulation.run()
    return simulation


def play(seed: int) -> Played:
    """The schedule of a seed."""
    simulation = run(draw(seed))
    return Played(seed, simulation.violation, frozenset(simulation.points))


def _chunk(work: tuple[tuple[int, ...], str | None]) -> list[Played]:
    seeds, _ = work
    gc.disable()  # every run's cycles are collected at once, between chunks
    try:
        return [play(seed) for seed in seeds]
    finally:
        gc.enable()
        gc.collect()


def play_many(seeds: Iterable[int], processes: int, mutant: str | None = None) -> Iterator[Played]:
    """All of them, on so many processes, in no particular order."""
    wanted = list(seeds)
    chunks = [(tuple(wanted[at : at + CHUNK]), mutant) for at in range(0, len(wanted), CHUNK)]
    with (
        warnings.catch_warnings(),
        multiprocessing.get_context("fork").Pool(processes, initializer=prepare, initargs=(mutant,)) as pool,
    ):
        for batch in pool.imap_unordered(_chunk, chunks):
            yield from batch


def _alone(schedule: Schedule) -> Violation | None:
    return run(schedule).violation


def caught(mutant: str | None, schedule: Schedule) -> Violation | None:
    """What a mutant violates under a schedule, played in a process of its own; None as mutant: the program as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where there are threads: ours are none
        with multiprocessing.get_context("fork").Pool(1, initializer=prepare, initargs=(mutant,)) as pool:
            return pool.apply(_alone, (schedule,))


def tally(seeds: Iterable[int], processes: int) -> tuple[Tally, float]:
    """The sum of many, and the seconds it took."""
    began, total = time.monotonic(), Tally()
    for played in play_many(seeds, processes):
        total.add(played)
    return total, time.monotonic() - began


def shrink(schedule: Schedule, invariant: str) -> Schedule:
    """Leave out faults as long as the same invariant fails; then what the job itself has of its own."""
    runs = 0
    smaller = True
    while smaller and runs < SHRINK_RUNS:
        smaller = False
        for candidate in _simpler(schedule):
            runs += 1
            violation = run(candidate).violation
            if violation is not None and violation.invariant == invariant:
                schedule, smaller = candidate, True
                break
    return schedule


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    for index in reversed(range(len(schedule.faults))):
        yield schedule.without(index)
    if schedule.fail_at is not None:
        yield replace(schedule, fail_at=None)
    if schedule.max_run_s is not None:
        yield replace(schedule, max_run_s=None)
    if schedule.budget_usd is not None:
        yield replace(schedule, budget_usd=None)


def story(seed: int, invariant: str) -> str:
    """The shortest history of a violation, for a person."""
    shortest = shrink(draw(seed), invariant)
    simulation = run(shortest, record=True)
    return "\n".join([shortest.story(), *simulation.history])
