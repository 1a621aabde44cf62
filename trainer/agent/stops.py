"""What asks a job to stop: EC2's notice, the controller's file, a limit, a newer generation, a shutdown."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from ..contract import AgentConfig, Notice, to_json, write_atomic
from .decide_stop import Reason, Stop, job_deadline, merge
from .places import Places
from .state import State

if TYPE_CHECKING:
    from .notices import Interruption

logger = logging.getLogger(__name__)

TOLD_NOTICE_S = 90.0  # of EC2's 120 s, where the controller says so: it looks every few seconds, and tells after some
QUICK_GRACE_S = 5.0  # for a job whose work nobody can use any more
GOING_DOWN_GRACE_S = 20.0  # of the 90 s that systemd gives us


class Stops:
    """Changes ``state`` and writes the job's notice file; who sends the signals is ``commands``."""

    def __init__(self, config: AgentConfig, places: Places, state: State) -> None:
        self._config = config
        self._places = places
        self._state = state

    def look(self, notice: Interruption | None, *, fenced: bool, going_down: bool, sent_bytes: int) -> None:
        """Take up what asks now. ``notice``: EC2's, by the metadata service. ``fenced``: a newer generation exists.
        ``going_down``: this machine shuts down. ``sent_bytes``: to the bucket so far. Never raises."""
        state, config, now = self._state, self._config, time.time()
        if notice is not None and state.taken_at is None:
            state.taken_at = notice.at
            self._ask(Stop(Reason.INTERRUPTION, now, job_deadline(now, notice.at)))
        elif state.taken_at is None and self._told_of_interruption():
            logger.warning("the controller says that EC2 takes this machine; the metadata service has not")
            state.taken_at = now + TOLD_NOTICE_S
            self._ask(Stop(Reason.INTERRUPTION, now, job_deadline(now, state.taken_at)))
        if state.verdict is not None:
            return  # it has ended; nothing is left to stop
        reason = state.stop.reason if state.stop is not None else None
        if fenced and reason is not Reason.FENCED:
            self._ask(Stop(Reason.FENCED, now, now + QUICK_GRACE_S))
        if state.stop is not None:
            return
        if going_down:
            self._ask(Stop(Reason.GOING_DOWN, now, now + min(GOING_DOWN_GRACE_S, config.grace_seconds)))
        elif self._places.stop.exists():  # its deadline is by another machine's clock: ours counts
            self._ask(Stop(Reason.STOP, now, now + config.grace_seconds))
        elif config.limit_s is not None and self._spent_s(sent_bytes) > config.limit_s:
            words = f"{config.limit_words} is used up at step {state.progress.step}: raise it to go on"
            reason = Reason.BUDGET if config.limit == "budget" else Reason.MAX_RUN
            self._ask(Stop(reason, now, now + config.grace_seconds, words))

    def _spent_s(self, sent_bytes: int) -> float:
        """Of the limit: time, and traffic as the time that would cost as much."""
        return time.monotonic() - self._state.started + sent_bytes / 1e9 * self._config.limit_s_per_gb

    def _ask(self, new: Stop) -> None:
        """A stop request: the file first. A job that saves by itself needs no more."""
        state = self._state
        state.stop = merge(state.stop, new)
        logger.info("stop asked: %s, deadline in %.1f s", new.reason.value, state.stop.deadline_at - time.time())
        notice = Notice(state.stop.reason.word, state.stop.deadline_at)
        try:
            write_atomic(self._places.notice, to_json(notice))
        except OSError as error:
            logger.warning("the notice file could not be written: %s", error)
        if state.current is not None and state.verdict is None:
            state.phase = "saving"

    def _told_of_interruption(self) -> bool:
        """Whether the controller, who watches the spot request, has put EC2's notice here."""
        try:
            return bool(json.loads(self._places.stop.read_bytes())["reason"] == Reason.INTERRUPTION.word)
        except (OSError, ValueError, LookupError, TypeError):
            return False
