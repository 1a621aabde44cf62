"""Watching a job until it ends. Reads the store only: leaving changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.tables import moment
from cloudtrain.provisioner.cli.words import clock_time, printable, say
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Clock, Store

POLL_S = 0.2
LINE_EVERY_S = 10.0  # of progress, where there is no terminal to redraw
CHECK_EVERY_S = 3.0  # whether the controller lives; longer than one takes to start
RESTARTS = 5  # more than that, and something is wrong with this computer


class Screen(Protocol):
    """Where progress is shown."""

    def event(self, text: str) -> None:
        """A line that stays."""
        ...

    def now(self, line: str, at: float) -> None:
        """How the job stands; the next call may replace it."""
        ...


class Plain:
    """Lines, for pipes and logs."""

    def __init__(self) -> None:
        self._shown_at = float("-inf")
        self._shown = ""

    def event(self, text: str) -> None:
        """Say it."""
        say(text)

    def now(self, line: str, at: float) -> None:
        """Say it now and then, and only what is new."""
        if at - self._shown_at >= LINE_EVERY_S and line != self._shown:
            self._shown_at, self._shown = at, line
            say(f"{clock_time(at)} {line}")


class EventsOnly(Plain):
    """The end of a job in its events; its progress is no news any more."""

    def now(self, line: str, at: float) -> None:
        """Nothing."""


@contextmanager
def screen() -> Iterator[Screen]:
    """One line that redraws itself where stderr is a terminal that can; plain lines elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield Plain()
        return
    from cloudtrain.provisioner.cli.liveline import live_line  # noqa: PLC0415 - rich, only on a terminal

    with live_line() as line:
        yield line


def follow(
    job_id: str,
    *,
    home: Home,
    store: Store,
    clock: Clock,
    show: Screen,
    until: Callable[[float], bool] | None = None,
    after: int = 0,
) -> JobRecord:
    """Show the job's events (after number ``after``) and progress until it is over, or ``until(now)`` holds.
    Returns its record then.

    Brings a dead controller back and says so. Raises CloudtrainError when it does not stay up, or when another
    computer has taken the job over.
    """
    restarts = 0
    check_at = clock.now() + CHECK_EVERY_S
    while True:
        stored = store.get(job_id)
        for event in store.events(job_id, after=after):
            after = event.number
            show.event(f"{clock_time(event.at)} {printable(event.text)}")
        now = clock.now()
        live: dict[str, Any] = jobs.live_view(store, job_id)
        show.now(moment(stored.record, live), now)
        if stored.resting or (until is not None and until(now)):
            return stored.record
        if stored.record.driver != home.id:
            raise CloudtrainError(
                f"job {job_id} is driven from another computer now; follow it there, or see `cloudtrain show {job_id}`"
            )
        if now >= check_at:
            check_at = now + CHECK_EVERY_S
            restarts += jobs.see_driven(home, [stored.record])
            if restarts > RESTARTS:
                raise CloudtrainError(f"the controller does not stay up; {home.root / 'controller.log'} says why")
        clock.sleep(POLL_S)
