"""The loop: observe → decide → act, and the only place that sleeps. One detached process per home, a thread per job."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.attempts import live
from cloudtrain.provisioner.decide import Decision, absorb, decide
from cloudtrain.provisioner.effects import Effects
from cloudtrain.provisioner.errors import CloudGone, CloudtrainError, CloudUnreachable, Conflict
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.journal import DrivenElsewhere, Journal, material
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobRecord, Observed, Phase
from cloudtrain.provisioner.observe import Observer
from cloudtrain.provisioner.ports import Clock, Store
from cloudtrain.provisioner.wiring import Wiring, wire

log = logging.getLogger("cloudtrain.controller")

IDLE_EXIT_S = 3.0
QUIET_SAVE_S = 2.0  # progress alone is kept at most this often
TROUBLE_PAUSE_S = 2.0


class JobLoop:
    """Drives one job until nothing is left to do for it."""

    def __init__(self, wiring: Wiring, store: Store, clock: Clock) -> None:
        self._wiring = wiring
        self._store = store
        self._clock = clock
        self._journal: Journal = wiring.journal
        self._observer: Observer = wiring.observer
        self._effects: Effects = wiring.effects
        self._quiet_saved_at = 0.0
        self._first_step_at: float | None = None

    def run(self) -> None:
        """Until the job is final. Raises DrivenElsewhere when another home has taken it over."""
        with contextlib.suppress(CloudGone):  # the first pass finds out, and says so
            self._journal.open()
        while not self._journal.record.status.final:
            try:
                changed = self.pass_once()
                pause = 0.0 if changed else self._pause_s()
            except (CloudUnreachable, Conflict) as error:
                log.warning("%s: %s", self._journal.record.job_id, error)
                pause = TROUBLE_PAUSE_S
            if pause:
                self._clock.sleep(pause)

    def pass_once(self) -> bool:
        """Observe, decide, save, act. Returns whether something other than progress changed."""
        record = self._journal.record
        wanted = self._store.get(record.job_id).wanted
        try:
            seen = self._observer.observe(record, wanted, cloud_gone=self._wiring.cloud_gone)
        except CloudGone:
            seen = Observed(machines=None, wanted=wanted, cloud_gone=True)
        decision = decide(record, seen, self._clock.now())
        self._keep(decision, seen)
        for effect in decision.effects:
            try:
                outcome = self._effects.perform(self._journal.record, effect)
            except CloudGone:
                break
            if outcome is not None:
                self._keep(absorb(self._journal.record, outcome, self._clock.now()), seen)
        return material(self._journal.record) != material(record)

    def _keep(self, decision: Decision, seen: Observed) -> None:
        now = self._clock.now()
        before = self._journal.record
        if seen.cloud_gone:
            self._journal.save_locally(decision.record)
        elif material(decision.record) != material(before) or now - self._quiet_saved_at > QUIET_SAVE_S:
            self._quiet_saved_at = now
            self._journal.save(decision.record)
        for text in decision.events:
            self._store.add_event(before.job_id, now, text)
        self._store.set_live(before.job_id, json.dumps(self._live(decision.record, seen, now)))

    def _pause_s(self) -> float:
        record = self._journal.record
        working = any(a.phase is Phase.WORKING for a in record.attempts)
        if record.cloud == "local":
            return 0.25 if working else 0.05
        return 5.0 if working else 3.0

    def _live(self, record: JobRecord, seen: Observed, now: float) -> dict[str, object]:
        """What ``ls``, ``show`` and the foreground show between saves."""
        current = next((a for a in reversed(record.attempts) if live(a)), None)
        report = seen.report(current.generation) if current else None
        progress = report.progress if report else None
        spent = bill(record, now)
        if self._first_step_at is None and progress is not None and progress.step >= 1:
            self._first_step_at = now
        left_s = None
        if progress and report and progress.total_steps and report.run_seconds > 0:
            done = progress.step - (report.resumed_step or 0)
            if done > 0:
                left_s = (progress.total_steps - progress.step) * report.run_seconds / done
        return {
            "status": record.status,
            "phase": report.phase if report else current.phase if current else None,
            "step": progress.step if progress else max((a.last_step for a in record.attempts), default=None),
            "total_steps": record.total_steps,
            "loss": progress.loss if progress else None,
            "cpu_percent": report.utilisation.cpu_percent if report else None,
            "gpu_percent": report.utilisation.gpu_percent if report else None,
            "memory_percent": report.utilisation.memory_percent if report else None,
            "durable_step": report.durable_step if report else None,
            "usd": float(spent.usd),
            "usd_per_hour": float(current.prices[-1].usd_per_hour) if current and current.prices else None,
            "left_s": left_s,
            "first_step_at": self._first_step_at,
            "attempt": current.generation if current else None,
            "pool": str(current.pool) if current else None,
            "capacity_type": current.pool.capacity_type if current else None,
            "machine_id": current.instance_id if current else None,
            "checks": list(report.checks) if report else [],
            "trouble": self._observer.trouble or (report.error if report else None),
            "at": now,
        }


class Controller:
    """All live jobs of one home."""

    def __init__(self, home: Home, store: Store, clock: Clock) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._threads: dict[str, threading.Thread] = {}

    def run(self) -> None:
        """Until no job has been live for a while."""
        idle_since = self._clock.now()
        while self._clock.now() - idle_since < IDLE_EXIT_S:
            for job_id in [job_id for job_id, thread in self._threads.items() if not thread.is_alive()]:
                del self._threads[job_id]
            for stored in self._store.list(live_only=True):
                job_id = stored.record.job_id
                if job_id not in self._threads and stored.record.driver == self._home.id:
                    thread = threading.Thread(target=self._drive, args=(job_id,), name=job_id, daemon=True)
                    self._threads[job_id] = thread
                    thread.start()
            if self._threads:
                idle_since = self._clock.now()
            self._clock.sleep(0.05)

    def _drive(self, job_id: str) -> None:
        try:
            JobLoop(wire(self._home, self._store, self._clock, job_id), self._store, self._clock).run()
        except DrivenElsewhere as error:
            record = self._store.get(job_id)
            taken = replace(record.record, driver="elsewhere", detail=str(error))
            self._store.save(taken, version=record.version, etag=record.etag)
            self._store.add_event(job_id, self._clock.now(), str(error))
        except CloudtrainError as error:
            log.warning("%s: %s", job_id, error)
            self._clock.sleep(TROUBLE_PAUSE_S)
        except Exception:  # the thread's last guard: the job's loop starts afresh from its record
            log.exception("%s: the loop failed and starts again", job_id)
            self._store.add_event(job_id, self._clock.now(), "the controller met an error of its own; it tries again")
            self._clock.sleep(TROUBLE_PAUSE_S)


def try_lock(path: Path) -> int | None:
    """Hold a lock file for this process's life; returns its descriptor, or None where another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def main() -> None:
    """The detached process: take the lock, drive, let go, and look once more before leaving."""
    home = Home.from_env()
    clock = SystemClock()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    store = SqliteStore(home.db)
    for _ in range(20):
        lock = try_lock(lock_path(home))
        if lock is None:
            clock.sleep(0.05)  # a looker holds it for microseconds; another controller for longer
            continue
        pid = home.root / "controller.pid"
        pid.write_text(str(os.getpid()))
        Controller(home, store, clock).run()
        with contextlib.suppress(FileNotFoundError):
            pid.unlink()
        os.close(lock)
        # A job added between our last look and the release found the lock held: it is ours, or its launcher's.
        if not any(s.record.driver == home.id for s in store.list(live_only=True)):
            return


def lock_path(home: Home) -> Path:
    """The file whose lock says that a controller lives."""
    return home.root / "controller.lock"


if __name__ == "__main__":
    main()
