"""The thread between the machine and the bucket: the supervisor's loop never waits for the network.

Until the end it publishes checkpoints, uploads the log now and then and looks whether a newer generation exists. Then
it delivers, in this order: the last checkpoint, the log, the outputs, the last status. An outage is waited out, with
the error for everybody to see; training goes on meanwhile.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..contract import AgentConfig, AgentStatus, Keys, to_json
from .counted import Counted
from .decide_stop import Verdict
from .deliver import deliver_outputs
from .objects import Denied, Fenced, Objects, ObjectsError
from .places import Places
from .restore import Restored, restore, restore_local
from .uploads import SETTLE_S, Publisher

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
BEAT_EVERY_S = 60.0
FENCE_EVERY_S = 20.0
_PASS_S = 0.25
_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
DISK_FULL = "disk full on the machine"


@dataclass(frozen=True)
class Ending:
    """What to deliver. ``status``: the last one, with the final phase, to which the durable step is added."""

    status: Callable[[], AgentStatus]
    verdict: Verdict
    outputs_until: float | None = None  # Unix seconds: no output is sent after it; None: all are


class Courier:
    """Owns the thread. The supervisor reads its attributes, which are replaced and never changed in place."""

    def __init__(self, config: AgentConfig, places: Places, connect: Callable[[], Objects]) -> None:
        self._config = config
        self._places = places
        self._connect = connect
        self._keys = Keys(config.prefix)
        self._wake = threading.Event()
        self._objects: Counted | None = None
        self._publisher: Publisher | None = None
        self._ending: Ending | None = None
        self._restoring = False
        self._failures = 0
        self._sent_outputs = False
        self._next_log_at = 0.0
        self._next_fence_at = 0.0
        self.restored: Restored | None = None
        self.durable_step: int | None = None
        self.local_rejected: tuple[str, ...] = ()
        self.left_out: tuple[str, ...] = ()
        self.prunes_local = False
        self.warm = False  # the job is past its start: connect now, not in the seconds that a notice leaves
        self.fenced = False
        self.delivered = False
        self.error: str | None = None
        self._pass_began_at = 0  # of the bytes that the bucket has moved
        self._most = 0
        self.barred_since: float | None = None  # monotonic; the bucket has refused us ever since, and taken nothing yet
        self._has_written = False
        self.crash: Exception | None = None

    def start(self, *, restore_first: bool) -> None:
        """Start the thread; with ``restore_first``, ``restored`` is set before anything is published."""
        self._restoring = restore_first
        if not restore_first:
            self.restored = Restored()
        now = time.monotonic()
        self._next_log_at = now + LOG_EVERY_S
        self._next_fence_at = now + FENCE_EVERY_S
        threading.Thread(target=self._run, name="courier", daemon=True).start()
        threading.Thread(target=self._beats, name="beats", daemon=True).start()

    def finish(self, ending: Ending) -> None:
        """Ask for the delivery; ``delivered`` says when everything is durable."""
        self._most = 0  # what went before is not to be outdone
        self._ending = ending
        self._wake.set()

    @property
    def moved_bytes(self) -> int:
        """The most that one round has moved: a round that fails and begins again gets no further by repeating."""
        objects = self._objects
        if objects is not None:
            self._most = max(self._most, objects.moved_bytes - self._pass_began_at)
        return self._most

    def _run(self) -> None:
        try:
            while not (self.fenced or self.delivered):
                wait_s = self._pass()
                self._wake.wait(wait_s)
                self._wake.clear()
        except Exception as error:  # the supervisor sees ``crash`` and ends the attempt
            logger.exception("the courier failed")
            self.crash = error

    def _beats(self) -> None:
        """Once a minute the status as it lies on the machine, so that whom SSH does not let through knows that we live.

        In a thread of its own: a restore and a delivery may take hours.
        """
        while not (self.fenced or self.delivered or self.crash):
            time.sleep(BEAT_EVERY_S)
            objects = self._objects  # connected by the other thread, at its first need
            if objects is None or self.delivered:
                continue
            try:
                objects.put(self._keys.beat(self._config.generation), self._places.status.read_bytes())
            except (ObjectsError, OSError) as error:
                logger.info("no beat: %s", error)

    def _pass(self) -> float:
        """One round; returns how long to wait before the next."""
        self._pass_began_at = self._objects.moved_bytes if self._objects is not None else 0
        try:
            if self._restoring and self._ending is None:  # a stop does not wait for a download
                self._restore()
            elif self._ending is not None:
                self._deliver(self._ending)
            else:
                self._carry()
        except Fenced:
            logger.warning("a newer generation exists: nothing is published any more")
            self.fenced = True
        except (ObjectsError, OSError) as error:
            return self._note(error)
        self._failures = 0
        self.error = None
        return _PASS_S

    def _note(self, error: Exception) -> float:
        wait_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        if isinstance(error, Denied) and not self._has_written and self.barred_since is None:
            self.barred_since = time.monotonic()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            self.error = f"{DISK_FULL}: {error.filename or 'a checkpoint could not be written'}"
        else:
            self.error = f"bucket {self._config.bucket}: {error}; tried again every {wait_s:g} s"
        logger.warning("%s", self.error)
        return wait_s

    @property
    def sent_bytes(self) -> int:
        """What went to the bucket."""
        return self._objects.sent_bytes if self._objects is not None else 0

    @property
    def received_bytes(self) -> int:
        """What came from it."""
        return self._objects.received_bytes if self._objects is not None else 0

    def _bucket(self) -> Objects:
        """Connected at first need: importing boto3 takes a core for a while, which the job wants at its start."""
        if self._objects is None:
            self._objects = Counted(self._connect())
        return self._objects

    def _restore(self) -> None:
        result = restore(self._bucket(), self._keys, self._config.generation, self._places.checkpoints)
        self.durable_step = result.step
        self.restored = restore_local(self._places.checkpoints, result)
        self._restoring = False

    def _publishing(self) -> Publisher:
        if self._publisher is None:
            damaged = self.restored.damaged if self.restored is not None else frozenset()
            self._publisher = Publisher(
                self._bucket(),
                self._keys,
                self._config.generation,
                self._places.checkpoints,
                staging=self._places.run / "uploading",
                keep=self._config.checkpoint_keep,
                durable_step=self.durable_step,
                damaged=damaged,
            )
        return self._publisher

    def _carry(self) -> None:
        """While the job runs."""
        now = time.monotonic()
        if self.warm:
            self._bucket()
        if self._publisher is not None or any(self._places.checkpoints.glob("step-*")):
            self._publish()
        if now >= self._next_fence_at:
            self._publishing().check_fence()
            self._next_fence_at = now + FENCE_EVERY_S
        if now >= self._next_log_at:
            self._upload_log()
            self._next_log_at = now + LOG_EVERY_S

    def _publish(self, *, settle_s: float = SETTLE_S) -> None:
        publisher = self._publishing()
        published = publisher.publish_newest(settle_s=settle_s)
        self.durable_step = publisher.durable_step
        self.local_rejected = publisher.rejected
        if published:
            self._took()
            publisher.prune_bucket()
            if self.prunes_local:
                publisher.prune_local()

    def _upload_log(self) -> None:
        if self._places.job_log.exists():
            self._bucket().upload_file(self._places.job_log, self._keys.log(self._config.generation))
            self._took()

    def _took(self) -> None:
        self._has_written, self.barred_since = True, None

    def _deliver(self, ending: Ending) -> None:
        """Everything, in order; begun again from the start after an error: each part may be repeated."""
        self._publishing().check_fence()
        self._publish(settle_s=0.0)
        self._upload_log()
        if not self._sent_outputs:
            until = ending.outputs_until
            self.left_out = deliver_outputs(
                self._bucket(),
                self._keys,
                self._config.generation,
                self._places.outputs,
                in_time=lambda: until is None or time.time() < until,
            )
            self._sent_outputs = True
        self._publishing().check_fence()
        status = ending.status()
        self._bucket().put(self._keys.outcome(self._config.generation), to_json(status).encode())
        self.delivered = True
