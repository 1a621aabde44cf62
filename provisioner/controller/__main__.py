"""One detached process per home that drives its live jobs, a thread each. ``process.ensure`` starts it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import replace

from cloudtrain.provisioner.adapters.clients import preload
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.redaction import Redactor
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller.folders import drop_ownerless
from cloudtrain.provisioner.controller.job_secrets import drop_where_over
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.controller.loop import JobLoop
from cloudtrain.provisioner.controller.process import handed_lock, pid_path, try_lock
from cloudtrain.provisioner.controller.wiring import Shared, wire
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.ports import Clock, Store, Stored

log = logging.getLogger("cloudtrain.controller")

IDLE_EXIT_S = 3.0
UNUSED_EXIT_S = 8.0
"""Before its first job: `launch` starts the controller, then looks at the account and asks."""
TROUBLE_PAUSE_S = 2.0


class Controller:
    """All live jobs of one home."""

    def __init__(self, home: Home, store: Store, clock: Clock, shared: Shared | None = None) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._shared = Shared() if shared is None else shared
        self._threads: dict[str, threading.Thread] = {}
        self._passed_over: dict[str, tuple[int, str]] = {}  # live jobs that need nobody, and as what they were seen

    def run(self) -> None:
        """Until no job has been live for a while."""
        drop_where_over(self._home, self._store)  # the controller before this one may have been killed at a job's end
        drop_ownerless(self._home, self._store)
        idle_since, patience_s = self._clock.now(), UNUSED_EXIT_S
        while self._threads or self._clock.now() - idle_since < patience_s:  # time may jump: the computer slept
            for job_id in [job_id for job_id, thread in self._threads.items() if not thread.is_alive()]:
                del self._threads[job_id]
                drop_where_over(self._home, self._store)
            for job_id, head in self._store.heads().items():
                if job_id in self._threads or self._passed_over.get(job_id) == head:
                    continue
                if _is_ours(self._store.get(job_id), self._home):
                    thread = threading.Thread(target=self._drive, args=(job_id,), name=job_id, daemon=True)
                    self._threads[job_id] = thread
                    thread.start()
                else:
                    self._passed_over[job_id] = head
            if self._threads:
                idle_since, patience_s = self._clock.now(), IDLE_EXIT_S
            self._clock.sleep(0.05)

    def _drive(self, job_id: str) -> None:
        try:
            parts = wire(self._home, self._store, self._clock, job_id, self._shared)
            JobLoop(parts, self._store, self._clock).run()
        except DrivenElsewhere as error:
            record = self._store.get(job_id)
            taken = replace(record.record, driver="elsewhere", detail=str(error), let_go_at=self._clock.now())
            self._store.save(taken, version=record.version, etag=record.etag)
            self._store.add_event(job_id, self._clock.now(), str(error))
        except CloudtrainError as error:
            log.warning("%s: %s", job_id, error)
            self._clock.sleep(TROUBLE_PAUSE_S)
        except Exception as error:  # the thread's last guard: the job's loop starts afresh from its record
            log.exception("%s: the loop failed and starts again", job_id)
            self._say_once(
                job_id, f"the controller met an error of its own ({type(error).__name__}: {error}); it tries again"
            )
            self._clock.sleep(TROUBLE_PAUSE_S)

    def _say_once(self, job_id: str, text: str) -> None:
        """Not again with each new try."""
        said = self._store.events(job_id)
        if not said or said[-1].text != text:
            self._store.add_event(job_id, self._clock.now(), text)


def _is_ours(stored: Stored, home: Home) -> bool:
    """Whether this home's controller has something to do for the job."""
    return stored.record.driver == home.id and not stored.resting


def main() -> None:
    """The process: hold the lock, drive, let go, and look once more before leaving."""
    home = Home.from_env()
    clock = SystemClock()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redactor("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    store = SqliteStore(home.db)
    lock = handed_lock() or try_lock(home)
    preload()
    while lock is not None:
        pid_path(home).write_text(str(os.getpid()))
        Controller(home, store, clock).run()
        os.close(lock)
        # A job stored between our last look and the release met a held lock, so nobody else was started for it.
        waiting = any(_is_ours(stored, home) for stored in store.list(live_only=True))
        lock = try_lock(home) if waiting else None


if __name__ == "__main__":
    main()
