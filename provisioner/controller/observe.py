"""Observe: the cloud by our tags first, then the agents' own words, over SSH or from the bucket. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.errors import CloudGone, CloudUnreachable, RemoteError
from cloudtrain.provisioner.home import log_path
from cloudtrain.provisioner.model import Attempt, JobRecord, Machine, MachineState, Observed, Phase
from cloudtrain.provisioner.ports import Target
from cloudtrain.trainer.contract import FINAL_PHASES, AgentStatus, Keys, status_from_json

STATUS_PATH = "cloudtrain/run/status.json"
LOG_PATH = "cloudtrain/run/job.log"
STATUS_LIMIT = 64 * 1024
LOG_CHUNK = 1024 * 1024
LOG_CHUNKS = (
    4  # in one pass: a run that prints faster must not keep us from seeing its machine; collect fetches the rest
)
READ_TIMEOUT_S = 10.0
LOOK_GAP_S = 30.0


def _went(machine: Machine | None) -> bool:
    """Whether a machine has ended. While it booted for us, its agent may have been started by a command whose answer
    got lost, and have finished the job."""
    return machine is not None and machine.state in (MachineState.SHUTTING_DOWN, MachineState.TERMINATED)


class Observer:
    """Keeps, between passes, only what a look back needs: the last reports and when each last changed."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._reports: dict[int, AgentStatus] = {}
        self._silent_s: dict[int, float] = {}
        self._unanswered_s: dict[int, float] = {}
        self._unreachable_s: dict[int, float] = {}
        self._beats: dict[int, tuple[float, str | None]] = {}  # when the bucket was asked for a beat, and its ETag
        self._unasked_s: dict[int, float] = {}  # without an answer over SSH, since the bucket was asked
        self._words_unknown: set[int] = set()
        self._targets: dict[int, Target] = {}
        self._looked_at: float | None = None
        self._shown_at: float | None = None  # the newest look that the cloud answered
        self.trouble: str | None = None  # why the cloud could not be asked in the last pass

    def observe(self, record: JobRecord, wanted: str, *, cloud_gone: Callable[[], bool]) -> Observed:
        """One pass over everything the job has. Blocks at most a few time-outs; idempotent."""
        if cloud_gone():
            return Observed(machines=None, wanted=wanted, cloud_gone=True)
        machines: tuple[Machine, ...] | None = ()
        self.trouble = None
        if record.regions:
            try:
                machines = self._reach.cloud.machines(record.job_id, record.regions)
            except CloudGone:
                return Observed(machines=None, wanted=wanted, cloud_gone=True)
            except CloudUnreachable as error:
                machines, self.trouble = None, str(error)
        seen = Observed(machines=machines, wanted=wanted, looked_at=self._shown_at)
        now = self._reach.clock.now()
        # A pause of ours, such as a suspended laptop, is no silence of theirs.
        gap_s = 0.0 if self._looked_at is None else min(max(0.0, now - self._looked_at), LOOK_GAP_S)
        self._looked_at = now
        if machines is not None:
            self._shown_at = now
        self._words_unknown.clear()
        if machines is not None:
            for attempt in record.attempts:
                machine = seen.machine(attempt)
                if attempt.phase is Phase.WORKING or (attempt.phase is Phase.BOOTING and _went(machine)):
                    self._hear(record, attempt, machine, gap_s)
                elif attempt.phase is Phase.ENDED and attempt.generation in self._targets:
                    self._reach.remote.forget(self._targets.pop(attempt.generation))
        return replace(
            seen,
            reports=tuple(self._reports.values()),
            silent_s=tuple(self._silent_s.items()),
            unanswered_s=tuple(self._unanswered_s.items()),
            unreachable_s=tuple(self._unreachable_s.items()),
            words_unknown=tuple(sorted(self._words_unknown)),
        )

    def _hear(self, record: JobRecord, attempt: Attempt, machine: Machine | None, gap_s: float) -> None:
        generation = attempt.generation
        known = self._reports.get(generation)
        heard, beat = None, None
        if machine is not None and machine.state is MachineState.RUNNING and machine.addressed:
            heard = self._ask(attempt, machine)
            if heard is not None:
                self._measure(generation, heard, known, gap_s)
            else:
                beat = self._overhear(record, generation, gap_s)
        elif machine is None or machine.gone:
            beat = self._last_beat(record, generation)
        if heard is None and (known is None or known.phase not in FINAL_PHASES):
            newer = beat if beat is not None and (known is None or beat.heartbeat_at > known.heartbeat_at) else None
            heard = self._last_words(record, generation) or newer
        if heard is not None and heard.generation == generation:
            self._reports[generation] = heard

    def _measure(self, generation: int, heard: AgentStatus, known: AgentStatus | None, gap_s: float) -> None:
        """How long the agent has stood still."""
        self._unanswered_s[generation] = self._unreachable_s[generation] = self._unasked_s[generation] = 0.0
        still = heard == known and heard.phase not in FINAL_PHASES
        self._silent_s[generation] = self._silent_s.get(generation, 0.0) + gap_s if still else 0.0

    def _overhear(self, record: JobRecord, generation: int, gap_s: float) -> AgentStatus | None:
        """SSH has no answer, which says nothing about the machine: its beat in the bucket tells whether it lives.

        The beat where it is a new one. While the bucket does not answer either, no time counts against the machine.
        """
        now = self._reach.clock.now()
        self._unanswered_s[generation] = self._unanswered_s.get(generation, 0.0) + gap_s
        self._unasked_s[generation] = self._unasked_s.get(generation, 0.0) + gap_s
        asked_at, etag = self._beats.get(generation, (float("-inf"), None))
        if now - asked_at < LOOK_GAP_S:
            return None
        unasked_s = self._unasked_s.pop(generation)
        try:
            found = self._reach.objects.get(Keys(record.prefix).beat(generation))
        except CloudUnreachable:
            self._beats[generation] = (now, etag)
            return None
        self._beats[generation] = (now, found[1] if found is not None else None)
        if found is None or found[1] == etag:
            self._unreachable_s[generation] = self._unreachable_s.get(generation, 0.0) + unasked_s
            return None
        self._unreachable_s[generation] = 0.0
        return _status(found[0])

    def _last_beat(self, record: JobRecord, generation: int) -> AgentStatus | None:
        """Until when a machine that is gone has lived, to the minute."""
        try:
            found = self._reach.objects.get(Keys(record.prefix).beat(generation))
        except CloudUnreachable:
            return None
        return _status(found[0]) if found is not None else None

    def _target(self, attempt: Attempt, machine: Machine) -> Target:
        target = self._reach.target(attempt, machine)
        self._targets[attempt.generation] = target
        return target

    def _ask(self, attempt: Attempt, machine: Machine) -> AgentStatus | None:
        """Over SSH. None when SSH fails: that says nothing about the machine."""
        try:
            target = self._target(attempt, machine)
            raw = self._reach.remote.read(target, STATUS_PATH, offset=0, limit=STATUS_LIMIT, timeout_s=READ_TIMEOUT_S)
            self._pull_log(attempt, target)
        except RemoteError:
            return None
        return _status(raw) if raw else None

    def _pull_log(self, attempt: Attempt, target: Target) -> None:
        """Append what is new in the job's log to our copy, which ``logs -f`` follows."""
        path = log_path(self._reach.job_dir, attempt.generation)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            for _ in range(LOG_CHUNKS):
                chunk = self._reach.remote.read(
                    target, LOG_PATH, offset=file.tell(), limit=LOG_CHUNK, timeout_s=READ_TIMEOUT_S
                )
                file.write(chunk)
                file.flush()
                if len(chunk) < LOG_CHUNK:
                    break

    def _last_words(self, record: JobRecord, generation: int) -> AgentStatus | None:
        try:
            found = self._reach.objects.get(Keys(record.prefix).outcome(generation))
        except CloudUnreachable:
            self._words_unknown.add(generation)
            return None
        return _status(found[0]) if found else None


def _status(raw: bytes) -> AgentStatus | None:
    try:
        return status_from_json(raw)
    except (ValueError, TypeError, AttributeError):
        return None
