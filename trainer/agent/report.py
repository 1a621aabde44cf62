"""The status file, written even on a full disk, and the last words of the job's log."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..contract import AgentStatus, to_json, write_atomic
from .places import Places

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_AT_MOST_EVERY_S = 0.2  # for a status that changed
_BALLAST_BYTES = 64 << 10
_TAIL_BYTES = 8 << 10
_LINE_CHARACTERS = 300
_SECRET_CHARACTERS = 4  # a shorter secret is a word like any other
_NO_SPACE = ("No space left on device", "[Errno 28]")


class Reporter:
    """Writes ``status.json``: soon when something changed, and every second to show that the agent lives."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._last: AgentStatus | None = None
        self._written_at = float("-inf")
        self.disk_full = False

    def keep_room(self) -> None:
        """Take a little room now, to be given back when the disk is full."""
        if not self._places.ballast.exists():
            try:
                self._places.ballast.write_bytes(b"\1" * _BALLAST_BYTES)
            except OSError as error:
                logger.warning("no room for a ballast: %s", error)

    def report(self, status: AgentStatus, *, now: bool = False) -> None:
        """Write the status if it is due; ``now``: in any case. A full disk is noted, never raised."""
        waited_s = time.monotonic() - self._written_at
        same = self._last is not None and _without_time(status) == _without_time(self._last)
        if not now and waited_s < (EVERY_S if same else _AT_MOST_EVERY_S):
            return
        self._last = status
        self._written_at = time.monotonic()
        try:
            self._write(status)
        except OSError as error:
            logger.warning("the status could not be written: %s", error)

    def _write(self, status: AgentStatus) -> None:
        try:
            write_atomic(self._places.status, to_json(status))
            self.disk_full = False
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.disk_full = True
            self._places.ballast.unlink(missing_ok=True)
            write_atomic(self._places.status, to_json(status))


def _without_time(status: AgentStatus) -> AgentStatus:
    return replace(status, heartbeat_at=0.0, run_seconds=0.0)


def last_line(log: Path, hide: Collection[str] = ()) -> str:
    """The last line of a log that says something, cut to a sensible length; "" where there is none.

    ``hide``: secrets, of which nothing may travel further than the log itself.
    """
    lines = [_printable(line) for secret in hide for line in secret.splitlines()]
    hidden = sorted((line for line in lines if len(line) >= _SECRET_CHARACTERS), key=len, reverse=True)
    more = 2 * max((len(line.encode("utf-8", "replace")) for line in hidden), default=0)
    for line in reversed(_tail(log, _TAIL_BYTES + more).replace("\r", "\n").splitlines()):
        text = _printable(line)
        for secret in hidden:
            text = text.replace(secret, "***")
        if text:
            return text if len(text) <= _LINE_CHARACTERS else text[: _LINE_CHARACTERS - 1] + "…"
    return ""


def _printable(line: str) -> str:
    return "".join(c for c in line if c.isprintable()).strip()


def says_disk_full(log: Path) -> bool:
    """Whether the log's end holds the system's words for a full disk."""
    tail = _tail(log, _TAIL_BYTES)
    return any(words in tail for words in _NO_SPACE)


def _tail(log: Path, size: int) -> str:
    """The last ``size`` bytes; those that are no UTF-8, and a character cut in two, become replacement characters."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
