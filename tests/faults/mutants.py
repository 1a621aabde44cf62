"""One safety switched off at a time, by patching, in this process alone: each must be missed by the simulator's checks.

Shipped code has no switch for any of this.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cloudtrain.provisioner.decide.limits import DEFAULT
from cloudtrain.provisioner.model import EndReason, JobRecord, Phase
from tests.faults.jobs import SECRET
from tests.faults.schedule import Fault, Schedule


def _module(name: str) -> Any:
    """A module whose names may be replaced."""
    return importlib.import_module(name)


absorb = _module("cloudtrain.provisioner.decide.absorb")
allowance = _module("cloudtrain.provisioner.decide.allowance")
attempt_files = _module("cloudtrain.provisioner.controller.attempt_files")
attempts = _module("cloudtrain.provisioner.decide.attempts")
clouds = _module("tests.faults.clouds")
effects = _module("cloudtrain.provisioner.controller.effects")
job = _module("cloudtrain.provisioner.decide.job")
journal = _module("cloudtrain.provisioner.controller.journal")
loop = _module("cloudtrain.provisioner.controller.loop")
machines = _module("tests.faults.machines")
observe = _module("cloudtrain.provisioner.controller.observe")
pools = _module("cloudtrain.provisioner.decide.pools")
simulation = _module("tests.faults.simulation")
terminating = _module("cloudtrain.provisioner.adapters.terminating")


@dataclass(frozen=True)
class Mutant:
    """``what`` is lost. ``schedule``: one that shows it, for the suite; the simulator finds others by itself."""

    what: str
    switch_off: Callable[[], None]
    schedule: Schedule


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, what: str, *faults: Fault, **job: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(switch_off: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[name] = Mutant(what, switch_off, Schedule(0, faults=faults, **job))
        return switch_off

    return register


def _limits(**changed: Any) -> None:
    """The loop decides under other limits."""
    limits = replace(DEFAULT, **changed)
    loop.limits_of = effects.limits_of = lambda cloud: limits


@_mutant(
    "token",
    "each launch call brings a client token of its own",
    Fault("lost-reply", what="launch", n=1, x=1),
    Fault("hidden", 0.0, 60.0, x=40),
)
def _token() -> None:
    real, count = effects.Effects._request, iter(range(10**9))

    def fresh(self: Any, record: JobRecord, attempt: Any) -> Any:
        request = real(self, record, attempt)
        token = f"{request.attempt.client_token}-{next(count)}"
        return replace(request, attempt=replace(request.attempt, client_token=token))

    effects.Effects._request = fresh


@_mutant("pool-in-token", "the token names the job alone, whatever pool is asked", Fault("interrupt", 100.0, x=120))
def _pool_in_token() -> None:
    pools.client_token = lambda job_id, generation, rest: f"ct-{job_id}"


@_mutant(
    "intent-first",
    "an attempt is stored once its machine is known, not before",
    Fault("crash", 0.0, 300.0, n=10),
    Fault("person", 100.0, what="cancel"),
)
def _intent_first() -> None:
    real = journal.Journal.save

    def late(self: Any, record: JobRecord) -> Any:
        if record.attempts and record.attempts[-1].phase is Phase.CLAIMED:
            self.record = record
            return record
        if self.record.attempts and self.record.attempts[-1].phase is Phase.CLAIMED:
            self._behind = True
        return real(self, record)

    journal.Journal.save = late


@_mutant("sweep", "what a job made beside its machines is left")
def _sweep() -> None:
    clouds.SimCloud.sweep = lambda self, job_id, regions: ()


@_mutant("grace", "a machine that is not listed is gone", Fault("hidden", 0.0, 60.0, x=100))
def _grace() -> None:
    _limits(unseen_s=0.0, gone_unseen_s=0.0)


@_mutant(
    "fence",
    "the next generation is claimed by its first checkpoint, not before its resume point is read",
    Fault("vanish", 200.0, 1000.0),
    total_steps=1200,
)
def _fence() -> None:
    effects.Effects._fence = lambda self, record, generation: None
    real = simulation.may_publish

    def when_it_publishes(latest: Any, *, generation: int, step: int, key: str, **more: Any) -> Any:
        if latest is not None and latest.generation < generation:
            latest = replace(latest, generation=generation)
        return real(latest, generation=generation, step=step, key=key, **more)

    simulation.may_publish = when_it_publishes


@_mutant(
    "record-cas",
    "the record is written whatever the bucket holds",
    Fault("sleep", 30.0, 300.0, n=1),
    Fault("adopt", 60.0),
)
def _record_cas() -> None:
    real = clouds.SimBucket.put

    def blindly(self: Any, key: str, data: bytes, **conditions: Any) -> Any:
        return real(self, key, data, **({} if key.endswith("record.json") else conditions))

    clouds.SimBucket.put = blindly


@_mutant(
    "reread",
    "after a conflict the record is written again, unread",
    Fault("sleep", 30.0, 300.0, n=1),
    Fault("adopt", 60.0),
)
def _reread() -> None:
    def again(self: Any, wanted: JobRecord) -> None:
        found = self._objects.get(self._key)
        assert found is not None
        self._etag = self._objects.put(self._key, journal.encode(wanted), if_match=found[1])

    journal.Journal._after_conflict = again


@_mutant(
    "not-found",
    "a machine that is not listed after terminate counts as terminated",
    Fault("boot", 0.0, 60.0, "never"),
    Fault("lost-request", what="terminate", n=1, x=3),
    Fault("vanish", 901.0, 100.0),
)
def _not_found() -> None:
    _limits(gone_unseen_s=0.0)


@_mutant(
    "batch-split",
    "one id that EC2 does not know keeps the other machines of its batch",
    Fault("person", 10.0, what="cancel"),
    Fault("crowd", 0.0, 1500.0),
)
def _batch_split() -> None:
    terminating.of_one = lambda error: False


@_mutant(
    "watchdog",
    "a machine whose work stands still stays, for its switch and for the controller",
    Fault("agent-hangs", 100.0),
)
def _watchdog() -> None:
    machines._STILL = re.compile("never to be found")
    _limits(restart_s=1e12, silent_s=1e12)


@_mutant("dead-man", "no switch is armed at boot", Fault("crash", 0.0, 14000.0, n=26))
def _dead_man() -> None:
    machines._STILL = re.compile("never to be found")
    attempt_files.BOOT_DEADLINE_S = 1e10


@_mutant("budget-stop", "nothing ends because its money is spent", budget_usd="0.03", total_steps=600)
def _budget_stop() -> None:
    allowance.reached = lambda *of: None
    allowance.short = lambda *of: None
    effects.machine_limit = lambda *of: None


@_mutant(
    "adopt-by-tag",
    "a machine of a launch without an answer is not looked up by its tag",
    Fault("lost-reply", what="launch", n=1, x=40),
    Fault("lost-request", what="terminate", n=1, x=8),
)
def _adopt_by_tag() -> None:
    real = attempts._claimed
    attempts._claimed = lambda attempt, machine, *rest: real(attempt, None, *rest)


@_mutant(
    "strays",
    "a machine that no attempt owns is left alone",
    Fault("lost-reply", what="launch", n=1, x=40),
    Fault("hidden", 0.0, 60.0, x=240),
    Fault("person", 3.0, what="cancel"),
)
def _strays() -> None:
    job._strays = lambda record, seen: []


@_mutant(
    "handover",
    "the next machine starts at the notice, not once the last checkpoint is durable",
    Fault("interrupt", 100.0, x=120),
)
def _handover() -> None:
    real = attempts._working

    def eager(attempt: Any, *rest: Any) -> Any:
        step = real(attempt, *rest)
        noticed = step.attempt.notice_at is not None and step.attempt.phase is Phase.WORKING
        return replace(step, attempt=replace(step.attempt, handed_over=True)) if noticed else step

    attempts._working = eager


@_mutant(
    "preemptions",
    "an interruption counts as a machine that failed",
    *(Fault("interrupt", at, x=120) for at in (100.0, 300.0, 500.0, 700.0)),
    total_steps=600,
)
def _preemptions() -> None:
    real = job.conclude

    def counted(record: JobRecord, old: Any, new: Any, now: float, limits: Any) -> Any:
        if new.end_reason is EndReason.INTERRUPTED and old.end_reason is None:
            new = replace(new, end_reason=EndReason.MACHINE_LOST)
        return real(record, old, new, now, limits)

    job.conclude = absorb.conclude = counted


@_mutant(
    "terminate-again",
    "the end of a machine is asked for once",
    Fault("person", 10.0, what="cancel"),
    Fault("lost-request", what="terminate", n=1, x=3),
)
def _terminate_again() -> None:
    real = attempts._ending

    def once(attempt: Any, *rest: Any) -> Any:
        return replace(real(attempt, *rest), effects=())

    attempts._ending = once


@_mutant("ssh-is-life", "a machine that does not answer over SSH is given up", Fault("ssh-dark", 100.0, 400.0))
def _ssh() -> None:
    _limits(unreachable_s=60.0)
    observe.Observer._overhear = _count_alone


def _count_alone(self: Any, record: JobRecord, generation: int, gap_s: float) -> None:
    self._unanswered_s[generation] = self._unanswered_s.get(generation, 0.0) + gap_s
    self._unreachable_s[generation] = self._unreachable_s.get(generation, 0.0) + gap_s


@_mutant("secrets", "the values of secrets travel in the user data")
def _secrets() -> None:
    real = attempt_files.AttemptFiles.user_data

    def told(self: Any, attempt: Any, *rest: Any) -> str:
        return f"{real(self, attempt, *rest)}\n# {SECRET}"

    attempt_files.AttemptFiles.user_data = told
