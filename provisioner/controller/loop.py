"""The loop: observe → decide → save → act. The only place that sleeps."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloudtrain.provisioner.controller.effects import Effects
from cloudtrain.provisioner.controller.journal import SLEPT_S, DrivenElsewhere, Journal, material
from cloudtrain.provisioner.controller.live import view
from cloudtrain.provisioner.controller.observe import Observer
from cloudtrain.provisioner.decide.absorb import absorb
from cloudtrain.provisioner.decide.effects import Effect
from cloudtrain.provisioner.decide.job import Decision, decide, refused
from cloudtrain.provisioner.decide.limits import limits_of
from cloudtrain.provisioner.errors import AccessError, CloudGone, CloudtrainError, CloudUnreachable, Conflict
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus, Observed, Phase
from cloudtrain.provisioner.ports import Clock, Store

log = logging.getLogger("cloudtrain.loop")

QUIET_SAVE_S = 2.0  # progress alone is kept at most this often
TROUBLE_PAUSE_S = 2.0
LAST_TRIES = 100  # of telling a silent bucket that a job is over: most of an hour
ASK_DRIVER_S = 60.0  # whether the job is still ours: where nothing happens, no save would tell
REQUEST_ID = re.compile(r" \(request [^)]*\)")  # differs with each call, and would make old news new
PAUSE_S = {"aws": (3.0, 5.0), "local": (0.05, 0.5)}  # between passes: while a machine comes up, and while it works


@dataclass(frozen=True, slots=True)
class Parts:
    """What one job's loop works through."""

    journal: Journal
    observer: Observer
    effects: Effects
    cloud_gone: Callable[[], bool]


class JobLoop:
    """Drives one job until nothing is left to do for it."""

    def __init__(self, parts: Parts, store: Store, clock: Clock) -> None:
        self._parts = parts
        self._journal = parts.journal
        self._store = store
        self._clock = clock
        self._quiet_saved_at = 0.0
        self._asked_driver_at = self._awake_at = clock.now()
        self._unsure = False  # whether the job is still ours: since a pause, the bucket has not said so
        self._first_step_at: float | None = None
        self._last_tries = 0
        self._told: set[str] = set()
        self._seen = Observed(machines=None)  # the newest look, for the live view
        self._unkept: CloudtrainError | None = None  # why the bucket's copy could not be written in this pass

    def run(self) -> None:
        """Until nothing happens to the job by itself. Raises DrivenElsewhere when another home has taken it over."""
        troubles = 0
        opened = False
        while not self._resting():
            try:
                if self._idle():
                    self._last_tries += 1
                    self._journal.save(self._journal.record)
                    continue
                if not opened:
                    self.open()
                    opened = True
                    continue
                pause = 0.0 if self.pass_once() else self._pause_s()
                troubles = 0
            except Conflict as error:  # somebody else wrote: what they wrote stands, and the next pass starts from it
                log.warning("%s: %s", self._journal.record.job_id, error)
                self._journal.reload()
                opened = False
                pause = TROUBLE_PAUSE_S
            except DrivenElsewhere:
                self._parts.effects.let_go(self._journal.record)
                raise
            except CloudtrainError as error:
                self._tell(error)
                pause = TROUBLE_PAUSE_S * 2 ** min(troubles, 4)
                troubles += 1
            if pause:
                self._clock.sleep(pause)
                self._notice_pause(pause)

    def _resting(self) -> bool:
        """Nothing is left to do; and the bucket knows, by which others go, or is silent for good."""
        lost = self._journal.record.outcome is EndReason.CLOUD_LOST
        return self._idle() and (lost or not self._journal.owing or self._last_tries >= LAST_TRIES)

    def _idle(self) -> bool:
        """Over; or stopped, and nobody has asked for more since."""
        status = self._journal.record.status
        return status.final or (status is JobStatus.STOPPED and self._store.get(self._journal.record.job_id).resting)

    def open(self) -> None:
        """Meet the bucket's copy of the record. Where the bucket refuses the first one, the job fails, unspent."""
        try:
            self._journal.open()
        except CloudGone:
            return  # the first pass finds out, and says so
        except AccessError as error:
            if self._journal.kept:
                raise
            now = self._clock.now()
            self._journal.save_locally(refused(self._journal.record, str(error), now))
            self._store.add_event(self._journal.record.job_id, now, str(error))

    def pass_once(self) -> bool:
        """Observe, decide, save, act. Returns whether something other than progress changed."""
        record = self._journal.record
        wanted = self._store.wanted(record.job_id)
        self._notice_pause()
        if self._clock.now() - self._asked_driver_at > ASK_DRIVER_S:
            self._asked_driver_at = self._clock.now()
            self._journal.look_again()
        try:
            seen = self._parts.observer.observe(record, wanted, cloud_gone=self._parts.cloud_gone)
        except CloudGone:
            seen = Observed(machines=None, wanted=wanted, cloud_gone=True)
        decision = decide(record, seen, self._clock.now(), limits_of(record.cloud))
        self._unkept = None
        self._keep(decision, seen)
        self._act(decision.effects, seen)
        if self._unkept is not None:
            raise self._unkept
        tries = self._journal.record.closing_tries  # one in vain is no change: the next is seconds away
        return material(self._journal.record) != material(replace(record, closing_tries=tries))

    def _act(self, effects: tuple[Effect, ...], seen: Observed) -> None:
        for effect in effects:
            if not self._may_act():
                return
            try:
                outcome = self._parts.effects.perform(self._journal.record, effect)
            except CloudGone:
                return
            except DrivenElsewhere:
                raise
            except CloudtrainError as error:  # one effect's trouble keeps no other from being done; it is asked again
                self._tell(error)
                continue
            if outcome is not None:
                record, now = self._journal.record, self._clock.now()
                self._keep(absorb(record, outcome, now, limits_of(record.cloud)), seen)

    def _notice_pause(self, planned_s: float = 0.0) -> None:
        now = self._clock.now()
        self._unsure = self._unsure or now - self._awake_at - planned_s > SLEPT_S
        self._awake_at = now

    def _may_act(self) -> bool:
        """Not after a pause, until the bucket has said whose the job is: what was decided before it may end a machine
        that another computer drives by now. What is not done here is decided again in the next pass."""
        self._notice_pause()
        if self._unsure:
            try:
                self._journal.confirm()
            except CloudUnreachable as error:
                self._unkept = error
                return False
            self._unsure = False
        return True

    def _tell(self, error: CloudtrainError) -> None:
        """Each trouble once in the history, and the newest in the live view."""
        record, now = self._journal.record, self._clock.now()
        log.warning("%s: %s", record.job_id, error)
        words = REQUEST_ID.sub("", str(error))
        if words not in self._told:
            self._told.add(words)
            self._store.add_event(record.job_id, now, f"trouble: {words}")
        document = view(record, self._seen, now, first_step_at=self._first_step_at, trouble=words)
        self._store.set_live(record.job_id, json.dumps(document))

    def _save(self, record: JobRecord) -> None:
        """In the bucket, then here. While the bucket does not answer, here alone: what runs can be watched and ended.

        A new generation is claimed in the bucket or not at all: another computer may be claiming it.
        """
        try:
            self._journal.save(record)
        except (CloudUnreachable, AccessError) as error:
            if record.generation != self._journal.record.generation:
                raise
            self._journal.save_locally(record)
            self._unkept = error

    def _keep(self, decision: Decision, seen: Observed) -> None:
        self._seen = seen
        now = self._clock.now()
        before = self._journal.record
        if seen.cloud_gone:
            self._journal.save_locally(decision.record)
        elif material(decision.record) != material(before) or now - self._quiet_saved_at > QUIET_SAVE_S:
            self._quiet_saved_at = now
            self._save(decision.record)
        for text in decision.events:
            self._store.add_event(before.job_id, now, text)
        if self._first_step_at is None and any(report.progress.step >= 1 for report in seen.reports):
            self._first_step_at = now
        document = view(
            decision.record, seen, now, first_step_at=self._first_step_at, trouble=self._parts.observer.trouble
        )
        self._store.set_live(before.job_id, json.dumps(document))

    def _pause_s(self) -> float:
        record = self._journal.record
        working = any(a.phase is Phase.WORKING for a in record.attempts)
        if record.collect_trouble is not None and not record.collected:
            return TROUBLE_PAUSE_S
        waiting_for_step = record.cloud == "local" and self._first_step_at is None
        return PAUSE_S[record.cloud][working and not waiting_for_step]
