"""The Clock port: the wall clock as it stood when this process began, and the time that has passed since.

Durations are differences of two readings, so no reading may follow a step: NTP, a person or a resumed virtual machine
sets the wall clock, and a bill, a deadline or a lease would move with it. CLOCK_BOOTTIME never steps and counts a
suspended laptop's sleep (clock_gettime(2), Linux 2.6.39); where there is none, CLOCK_MONOTONIC does, which counts sleep
on macOS. What a process started later reads may differ by the steps between: whoever subtracts readings of two
processes clamps.
"""

from __future__ import annotations

import time

_ELAPSING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_WALL_S = time.time()
_BEGAN_S = time.clock_gettime(_ELAPSING)


class SystemClock:
    """Real time. All clocks of a process agree."""

    def now(self) -> float:
        """Unix seconds, UTC. Never less than before, in this process."""
        return _WALL_S + (time.clock_gettime(_ELAPSING) - _BEGAN_S)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
