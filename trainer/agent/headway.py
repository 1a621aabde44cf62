"""Whether the attempt gets on, and the mark by which the machine's dead-man switch sees it (``contract.WORK_FILE``).

The mark moves only when something has moved, not because the agent lives: an agent that is stuck and one that is dead
look the same to the switch, which ends the machine. A job whose shell lives is left alone, however quiet it is: that it
trains is for a watchdog to judge that knows its steps. Judged here is what has no such end of its own: data and
checkpoint on their way in, ``setup``, what a shell has left behind, results on their way out, a machine that EC2
announced to take and did not.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

STILL_S = 20 * 60.0  # nothing moves: the attempt ends in good order, before the switch's 25 minutes
UNDELIVERED_S = 7200.0  # the bucket refuses results: they are worth waiting for, as long as the controller does
TAKEN_LATE_S = 300.0  # EC2 did not take the machine that it announced to take: it bills, so it goes by itself
_LOOK_S = 30.0
_BUSY_SHARE = 0.05  # of one core: an idle server uses less, a download in C more
_DISK_STEP = 16 << 20  # bytes; logs alone do not fill so much


@dataclass(frozen=True)
class Seen:
    """One look at the attempt. ``counts``: numbers of which one changes while it gets on.

    ``trains``: a job lives that is not judged here. ``refused``: results wait for a bucket that takes nothing.
    """

    phase: str
    counts: tuple[int, ...] = ()
    trains: bool = False
    refused: bool = False


class Headway:
    """``still_s``: for how long nothing has moved."""

    def __init__(self, mark: Path | None, progress: Path, now: float) -> None:
        """``mark``: the work file; None where no switch looks at one. ``now``: monotonic, as in ``look``."""
        self._mark = mark
        self._progress = progress
        self._last: Seen | None = None
        self._moved_at = now
        self._marked_at = float("-inf")
        self._number = 0
        self.still_s = 0.0

    def look(self, seen: Seen, now: float) -> bool:
        """Take note, and mark what has moved; whether the attempt must end now. Never raises."""
        if seen.trains or self._last is None or (seen.phase, seen.counts) != (self._last.phase, self._last.counts):
            self._moved_at = now
        self._last = seen
        self.still_s = now - self._moved_at
        if self.still_s == 0.0 or seen.refused:
            self._renew(now)
        return self.still_s > (UNDELIVERED_S if seen.refused else STILL_S)

    def _renew(self, now: float) -> None:
        if self._mark is None or now - self._marked_at < _LOOK_S:
            return
        self._marked_at = now
        self._number += 1
        try:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.write_text(f"{self._number} {now}\n{self._progress}\n", encoding="utf-8")
        except OSError as error:
            logger.warning("the dead-man switch could not be told that the work goes on: %s", error)


class Activity:
    """What a command does that says nothing: its log, the disk, its CPU time, looked at twice a minute."""

    def __init__(self, log: Path, cpu_s: Callable[[], float]) -> None:
        """``cpu_s``: of the processes that live, in seconds; it may be slow."""
        self._log = log
        self._cpu_s = cpu_s
        self._looked_at = float("-inf")
        self._before_s = 0.0
        self._busy = 0
        self._counts: tuple[int, ...] = ()

    def counts(self, now: float) -> tuple[int, ...]:
        """For ``Seen``. Reads the process table, but seldom. ``now``: monotonic."""
        waited_s = now - self._looked_at
        if waited_s < _LOOK_S:
            return self._counts
        used_s = self._cpu_s()
        if used_s - self._before_s >= _BUSY_SHARE * waited_s or used_s < self._before_s:  # less: one has ended
            self._busy += 1
        self._before_s, self._looked_at = used_s, now
        try:
            size = self._log.stat().st_size
            disk = shutil.disk_usage(self._log.parent).used // _DISK_STEP
        except OSError:
            size = disk = 0
        self._counts = (size, disk, self._busy)
        return self._counts
