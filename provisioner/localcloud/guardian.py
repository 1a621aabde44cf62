"""The guardian: a process that outlives the embedded cloud's daemon by a moment and ends all that the daemon's hosts ran."""

from __future__ import annotations

from pathlib import Path


def spawn(cloud_id: str, *, log: Path | None) -> int:
    """Start the guardian of a cloud; returns a pipe's writing end, to be kept open while the cloud lives.

    When it closes, by whatever death, the guardian sweeps the cloud and leaves. ``log`` gets its stderr.
    """
    raise NotImplementedError


def sweep(cloud_id: str) -> None:
    """SIGKILL every process whose environment carries the cloud's mark, again until there is none."""
    raise NotImplementedError
