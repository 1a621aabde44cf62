"""The Clock port on the computer's own clock."""

from __future__ import annotations

import time


class SystemClock:
    """Real time."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
