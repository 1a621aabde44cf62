"""What to do next for a job: pure, over what one pass observed. No clock, random, environment or I/O in here.

A pass is ``decide`` → save the record → perform the effects → ``absorb`` each outcome. The record is durable before
any effect, so that a controller that dies between any two lines finds its intent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.effects import Collect, Effect, KeepSnapshot, Sweep, Terminate
from cloudtrain.provisioner.decide.endings import conclude
from cloudtrain.provisioner.decide.leaving import hold
from cloudtrain.provisioner.decide.limits import DEFAULT, Limits
from cloudtrain.provisioner.decide.pools import next_attempt
from cloudtrain.provisioner.model import (
    Attempt,
    EndReason,
    JobRecord,
    JobStatus,
    MachineState,
    Observed,
    Phase,
)
from cloudtrain.trainer.contract import AgentStatus


@dataclass(frozen=True, slots=True)
class Decision:
    """The record as it must be saved, then the effects in order, and lines for the job's history."""

    record: JobRecord
    effects: tuple[Effect, ...] = ()
    events: tuple[str, ...] = ()


def decide(record: JobRecord, seen: Observed, now: float, limits: Limits = DEFAULT) -> Decision:
    """The next step of a job."""
    if seen.cloud_gone:
        return _lost(record, now)
    record, events = _wanted(record, seen)
    if record.outcome is EndReason.STOPPED and record.finished_at is not None:
        return Decision(replace(record, status=JobStatus.STOPPED), (), tuple(events))
    record, lines = _late(record, now)
    events += lines
    before = record.attempts
    steps = [
        at.Step(attempt)
        if attempt.phase is Phase.ENDED
        else at.advance(attempt, seen, now, leaving=record.outcome or attempt.leave, limits=limits)
        for attempt in before
    ]
    record = replace(record, attempts=tuple(step.attempt for step in steps))
    effects = [effect for step in steps for effect in step.effects]
    events += [line for step in steps for line in step.events]
    if seen.machines is not None:
        held = hold(record, seen, now, limits)
        record, effects, events = held.record, [*effects, *held.effects], [*events, *held.events]
    for old, new in zip(before, record.attempts, strict=True):
        events += _resumed(record, old, new, seen.report(new.generation))
        record, lines = conclude(record, old, new, now, limits)
        events += lines
    record = _note_progress(record, seen)
    if record.outcome is None and any(at.live(a) and a.instance_id is not None for a in record.attempts):
        record = replace(record, detail=None)  # it waits no more
    effects += _strays(record, seen)
    goes_on = record.outcome in (None, EndReason.STOPPED)
    if (
        goes_on
        and record.snapshot_sha256
        and not record.snapshot_kept
        and any(a.phase is Phase.WORKING for a in record.attempts)
    ):
        effects.append(KeepSnapshot())  # once a machine trains: nobody waits for it
    if record.outcome is None and not any(at.live(a) for a in record.attempts) and seen.machines is not None:
        record, lines = next_attempt(record, now, limits)
        events += lines
    if record.outcome is not None and all(a.phase is Phase.ENDED for a in record.attempts):
        record, closing, lines = _close(record, now, limits)
        effects += closing
        events += lines
    return Decision(replace(record, status=status_of(record, seen)), tuple(effects), tuple(events))


def _wanted(record: JobRecord, seen: Observed) -> tuple[JobRecord, list[str]]:
    """What the person has asked for since the last pass. An end that has begun is first brought to its end."""
    stopped = record.outcome is EndReason.STOPPED
    if seen.wanted == "cancel" and (record.outcome is None or stopped):
        over = replace(record, outcome=EndReason.CANCELLED, detail="cancelled by you", finished_at=None)
        return over, ["cancelling"]
    if seen.wanted == "stop" and record.outcome is None:
        detail = f"stopped by you; `cloudtrain resume {record.job_id}` goes on"
        return replace(record, outcome=EndReason.STOPPED, detail=detail), ["stopping: a checkpoint first"]
    if seen.wanted == "run" and stopped and record.finished_at is not None:
        again = replace(record, outcome=None, detail=None, finished_at=None, collected=False, swept=False)
        return replace(again, collect_trouble=None, closing_tries=0), ["resuming"]
    return record, []


def _late(record: JobRecord, now: float) -> tuple[JobRecord, list[str]]:
    """Whether the deadline has passed, said once: it ends nothing."""
    spec = record.spec
    if spec.deadline_s is None or record.late_at is not None or now <= record.created_at + spec.deadline_s:
        return record, []
    passed = datetime.fromtimestamp(record.created_at + spec.deadline_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return replace(record, late_at=now), [f"its deadline, {passed}, has passed: it goes on, and ends with exit code 5"]


def refused(record: JobRecord, detail: str, now: float) -> JobRecord:
    """A job that could not even be recorded: over, with nothing spent and nothing left."""
    return replace(
        record,
        outcome=EndReason.REFUSED,
        detail=detail,
        finished_at=now,
        status=JobStatus.FAILED,
    )


def _lost(record: JobRecord, now: float) -> Decision:
    detail = "lost with its cloud: the embedded cloud ended, its machines and objects are gone; launch it again"
    over = tuple(
        a
        if a.phase is Phase.ENDED
        else at.ended(replace(a, end_reason=EndReason.CLOUD_LOST), EndReason.CLOUD_LOST, None, now)
        for a in record.attempts
    )
    lost = replace(
        record,
        attempts=over,
        outcome=EndReason.CLOUD_LOST,
        detail=detail,
        finished_at=now,
        status=JobStatus.FAILED,
    )
    return Decision(lost, (), (detail,))


def _resumed(record: JobRecord, old: Attempt, new: Attempt, report: AgentStatus | None) -> list[str]:
    """Where a later attempt begins, and what it refused, is always said: silence here costs people days."""
    ran_before = any(a.start_step is not None for a in record.attempts if a.generation < new.generation)
    if old.start_step is not None or new.start_step is None or not ran_before:
        return []
    refused = report.rejected if report is not None else ()
    lines = [f"attempt {new.generation}: checkpoint refused: {text}" for text in refused]
    if new.start_step > 0:
        begin = f"resumed from step {new.start_step}, the next is {new.start_step + 1}"
    else:
        begin = f"no {'whole ' if refused else ''}checkpoint to resume from, it begins at step 1"
    return [*lines, f"attempt {new.generation}: {begin}"]


def _note_progress(record: JobRecord, seen: Observed) -> JobRecord:
    for report in seen.reports:
        if report.generation == record.generation:
            total = report.progress.total_steps or record.total_steps
            metrics = dict(report.progress.metrics)
            if report.progress.done and report.progress.loss is not None:
                metrics.setdefault("loss", report.progress.loss)
            record = replace(record, total_steps=total)
            if report.progress.done and metrics:
                record = replace(record, metrics=tuple(sorted(metrics.items())))
    return record


def _strays(record: JobRecord, seen: Observed) -> list[Effect]:
    """Machines with the job's tag that no attempt owns: a launch whose fate was unknown came true after all."""
    owned = {a.instance_id for a in record.attempts if a.phase is not Phase.ENDED}
    claiming = {a.generation for a in record.attempts if a.phase is Phase.CLAIMED}
    regions = {a.generation: a.pool.region for a in record.attempts}
    return [
        Terminate(regions.get(m.generation, record.region), m.instance_id)
        for m in seen.machines or ()
        if m.instance_id not in owned
        and m.generation not in claiming
        and m.state not in (MachineState.TERMINATED, MachineState.SHUTTING_DOWN)
    ]


def _close(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[Effect], list[str]]:
    """Everything is terminated: bring it home, sweep, and then, not before, call the job finished."""
    overdue = record.closing_tries > limits.closing_tries
    if not record.collected and not overdue:
        return record, [Collect()], []
    if not record.swept and not overdue:
        return record, [Sweep()], []
    if record.finished_at is not None:
        return record, [], []
    lines = []
    if overdue and not (record.collected and record.swept):
        kept = f"results are still in the bucket: {record.collect_trouble or 'it did not answer'}"
        left = kept if not record.collected else "some of its resources are still there"
        lines.append(f"gave up after {record.closing_tries} tries: {left}")
    return replace(record, finished_at=now), [], lines


def status_of(record: JobRecord, seen: Observed) -> JobStatus:
    """The word that ``ls`` shows."""
    if record.finished_at is not None:
        if record.outcome is EndReason.SUCCEEDED:
            return JobStatus.SUCCEEDED
        unfinished = {EndReason.CANCELLED: JobStatus.CANCELLED, EndReason.STOPPED: JobStatus.STOPPED}
        return unfinished.get(record.outcome, JobStatus.FAILED) if record.outcome else JobStatus.FAILED
    if record.outcome is not None:
        return JobStatus.STOPPING
    current = next((a for a in reversed(record.attempts) if at.live(a)), None)
    ran = any(a.started_at is not None for a in record.attempts if a is not current)
    if current is None:
        return JobStatus.RECOVERING if ran else JobStatus.PENDING
    if current.phase is Phase.WORKING:
        report = seen.report(current.generation)
        training = report is not None and report.phase in ("running", "saving", "done")
        return JobStatus.RUNNING if training else JobStatus.RECOVERING if ran else JobStatus.STARTING
    return JobStatus.RECOVERING if ran else JobStatus.PROVISIONING
