"""Waiting for threads and processes of this computer."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep  # not by the module's name: some tests replace what is in there


def until(holds: Callable[[], bool], patience_s: float = 20.0) -> None:
    """Look again, a hundred times a second, until it holds. AssertionError if it never does."""
    deadline = monotonic() + patience_s
    while not holds():
        assert monotonic() < deadline, f"it did not come to hold in {patience_s:.0f} s"
        sleep(0.01)
