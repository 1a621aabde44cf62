"""What to do next for a job: pure, over what one pass observed. No clock, random, environment or I/O in here.

A pass is ``decide`` → save the record → perform the effects → ``absorb`` each outcome. The record is durable before
any effect, so that a controller that dies between any two lines finds its intent again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.attempts import Effect
from cloudtrain.provisioner.decide.limits import DEFAULT, Limits
from cloudtrain.provisioner.decide.outcomes import (
    Collected,
    Launched,
    LaunchRefused,
    LaunchUnknown,
    NotCollected,
    Outcome,
    Repriced,
    Resolved,
    Shipped,
    ShipRefused,
    SnapshotKept,
    StopHeard,
    Swept,
)
from cloudtrain.provisioner.model import (
    Attempt,
    Avoid,
    EndReason,
    JobRecord,
    JobStatus,
    MachineState,
    Observed,
    Phase,
    PricePoint,
)
from cloudtrain.trainer.contract import AgentStatus

TOKEN_LIMIT = 64  # ASCII characters; EC2 developer guide, "Ensuring idempotency", seen 2026-11


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
    steps: list[at.Step] = []
    for attempt in record.attempts:
        if attempt.phase is Phase.ENDED:
            steps.append(at.Step(attempt))
        else:
            steps.append(at.advance(attempt, seen, now, leaving=record.outcome, limits=limits))
    before = record.attempts
    record = replace(record, attempts=tuple(step.attempt for step in steps))
    effects = [effect for step in steps for effect in step.effects]
    events += [line for step in steps for line in step.events]
    for old, new in zip(before, record.attempts, strict=True):
        events += _resumed(record, old, new, seen.report(new.generation))
        record, lines = _conclude(record, old, new, now, limits)
        events += lines
    record = _note_progress(record, seen)
    effects += _strays(record, seen)
    if record.snapshot_sha256 and not record.snapshot_kept and any(a.phase is Phase.WORKING for a in record.attempts):
        effects.append(at.KeepSnapshot())  # once a machine trains: nobody waits for it
    if record.outcome is None and not any(at.live(a) for a in record.attempts) and seen.machines is not None:
        record, lines = _next_attempt(record, now, limits)
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


def _conclude(record: JobRecord, old: Attempt, new: Attempt, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """What an attempt's notice or end means for the job, once, when it becomes known."""
    if old.notice_at is None and new.notice_at is not None:  # the next attempt may start before this one has ended
        record = replace(record, avoid=(*record.avoid, Avoid(new.pool, now + limits.avoid_s, "reclaimed")))
    reason = new.end_reason
    if reason is None or old.end_reason is not None:
        return record, []
    detail = f": {new.end_detail}" if new.end_detail else ""
    lines = [f"attempt {new.generation}: {reason}{detail}"]
    if reason is EndReason.INTERRUPTED:
        avoid = Avoid(new.pool, now + limits.avoid_s, "reclaimed")
        return replace(record, preemptions=record.preemptions + 1, avoid=(*record.avoid, avoid)), lines
    if reason in (EndReason.NO_CAPACITY, EndReason.QUOTA, EndReason.DENIED, EndReason.BOOT_TIMEOUT):
        avoid = Avoid(new.pool, now + limits.avoid_s, new.end_detail or str(reason))
        record = replace(record, avoid=(*record.avoid, avoid))
    last_words = (
        EndReason.SUCCEEDED,
        EndReason.JOB_FAILED,
        EndReason.MAX_RUN,
        EndReason.REFUSED,
        EndReason.IMAGE_UNFIT,
    )
    if reason in last_words:
        if record.outcome in (None, EndReason.STOPPED):  # it was over before it could stop
            record = replace(record, outcome=reason, detail=new.end_detail)
        return record, lines
    unfit = (EndReason.MACHINE_LOST, EndReason.BOOT_TIMEOUT, EndReason.AGENT_LOST, EndReason.MACHINE_UNFIT)
    if reason in unfit:
        avoid = Avoid(new.pool, now + limits.avoid_s, str(reason))
        record = replace(record, failures=record.failures + 1, avoid=(*record.avoid, avoid))
        if record.failures >= limits.machine_failures and record.outcome is None:
            detail = new.end_detail or str(reason)
            record = replace(
                record, outcome=EndReason.JOB_FAILED, detail=f"{record.failures} machines failed: {detail}"
            )
    return record, lines


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
        at.Terminate(regions.get(m.generation, record.region), m.instance_id)
        for m in seen.machines or ()
        if m.instance_id not in owned
        and m.generation not in claiming
        and m.state not in (MachineState.TERMINATED, MachineState.SHUTTING_DOWN)
    ]


def _next_attempt(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[str]]:
    """Claim the cheapest pool that is not avoided; without one, end (nothing ran yet) or wait (in recovery)."""
    avoided = {a.pool: a for a in record.avoid if a.until_at > now}
    offering = next((o for o in record.offerings if o.pool not in avoided), None)
    if offering is not None:
        generation = record.generation + 1
        attempt = Attempt(
            generation=generation,
            pool=offering.pool,
            client_token=client_token(record.job_id, generation, offering),
            phase=Phase.CLAIMED,
            claimed_at=now,
            prices=(PricePoint(now, offering.price_per_hour.amount),),
        )
        record = replace(
            record,
            generation=generation,
            attempts=(*record.attempts, attempt),
            avoid=tuple(avoided.values()),
        )
        again = f", {record.preemptions} interruption(s) so far" if record.preemptions else ""
        return record, [f"attempt {generation}: asking for {offering.pool}{again}"]
    last = max((a.ended_at or 0 for a in record.attempts if a.started_at is not None), default=None)
    if last is not None and now - last < limits.recovery_wait_s:
        return record, []  # the avoided pools come back within minutes
    return _out_of_pools(record)


def _out_of_pools(record: JobRecord) -> tuple[JobRecord, list[str]]:
    """Every pool has refused. Where it was the quota or a permission each time, waiting would not help."""
    tried = len({a.pool for a in record.attempts})
    last = record.attempts[-1].end_detail if record.attempts else None
    words = f"; the last: {last}" if last else ""
    if record.attempts and all(a.end_reason is EndReason.QUOTA for a in record.attempts):
        detail = f"the account's quotas allow none of the pools{words}"
        return replace(record, outcome=EndReason.REFUSED, detail=detail), [detail]
    if record.attempts and all(a.end_reason in (EndReason.QUOTA, EndReason.DENIED) for a in record.attempts):
        detail = f"the account may use none of the pools{words}"
        return replace(record, outcome=EndReason.REFUSED, detail=detail), [detail]
    detail = f"no capacity: {tried} pools refused; try later, other accelerators, or use_spot: false{words}"
    return replace(record, outcome=EndReason.NO_CAPACITY, detail=detail), [detail]


def client_token(job_id: str, generation: int, offering: Offering) -> str:
    """The attempt's client token. It holds the pool, so that one token can't make two machines in two zones."""
    digest = hashlib.sha256(str(offering.pool).encode()).hexdigest()[:12]
    return f"ct-{job_id[:32]}-{generation}-{digest}"[:TOKEN_LIMIT]


def _close(record: JobRecord, now: float, limits: Limits) -> tuple[JobRecord, list[Effect], list[str]]:
    """Everything is terminated: bring it home, sweep, and then, not before, call the job finished."""
    overdue = record.closing_tries > limits.closing_tries
    if not record.collected and not overdue:
        return record, [at.Collect()], []
    if not record.swept and not overdue:
        return record, [at.Sweep()], []
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


def absorb(record: JobRecord, outcome: Outcome, now: float, limits: Limits = DEFAULT) -> Decision:
    """The record once an effect's outcome is known. Holds no effects."""
    if isinstance(outcome, Collected):
        return Decision(replace(record, collected=True, collect_trouble=None))
    if isinstance(outcome, SnapshotKept):
        return Decision(replace(record, snapshot_kept=True))
    if isinstance(outcome, NotCollected):
        news = () if record.collect_trouble == outcome.detail else (f"{outcome.detail}; it is tried again",)
        tries = record.closing_tries + 1
        return Decision(replace(record, collect_trouble=outcome.detail, closing_tries=tries), (), news)
    if isinstance(outcome, Swept):
        tries = record.closing_tries + bool(outcome.left)
        return Decision(replace(record, swept=not outcome.left, closing_tries=tries))
    old = next(a for a in record.attempts if a.generation == outcome.generation)
    new, events = _absorb_attempt(old, outcome, now, limits)
    record = replace(record, attempts=tuple(new if a is old else a for a in record.attempts))
    record, lines = _conclude(record, old, new, now, limits)
    if isinstance(outcome, LaunchRefused) and outcome.quota:
        record = _avoid_like(record, old, outcome.detail, now, limits, family=True)
    if isinstance(outcome, LaunchRefused) and outcome.denied:
        record = _avoid_like(record, old, outcome.detail, now, limits, family=False)
    if isinstance(outcome, LaunchUnknown) and new.phase is Phase.ENDED:  # an outage or a throttle is the region's
        record = _avoid_like(record, old, outcome.detail, now, limits, family=False)
    return Decision(record, (), (*events, *lines))


def _absorb_attempt(old: Attempt, outcome: Outcome, now: float, limits: Limits) -> tuple[Attempt, tuple[str, ...]]:
    match outcome:
        case Resolved(price=price, image=image):
            prices = old.prices if price is None else (PricePoint(now, price),)
            return at.pinned(replace(old, prices=prices), image), ()
        case Launched(machine=machine):
            text = f"attempt {old.generation}: {machine.instance_id} at ${old.prices[0].usd_per_hour}/h"
            return at.launched(old, machine), (text,)
        case LaunchRefused(detail=detail):
            return at.ended(old, _refusal(outcome), detail, now), ()
        case LaunchUnknown():
            return _launch_unknown(old, outcome, now, limits)
        case Shipped() if old.started_at is not None:
            return old, ()
        case Shipped():
            return replace(old, phase=Phase.WORKING, started_at=now), (f"attempt {old.generation}: agent started",)
        case ShipRefused(detail=detail, image=image_unfit):
            reason = EndReason.IMAGE_UNFIT if image_unfit else EndReason.MACHINE_UNFIT
            return at.end(old, reason, detail, now).attempt, ()
        case StopHeard():
            return replace(old, stop_heard_at=now), ()
        case Repriced(price=price):
            paid = price if price is not None else old.prices[-1].usd_per_hour
            return replace(old, prices=(*old.prices, PricePoint(now, paid))), ()
    raise AssertionError(outcome)


def _refusal(outcome: LaunchRefused) -> EndReason:
    if outcome.fatal:
        return EndReason.REFUSED
    return EndReason.DENIED if outcome.denied else EndReason.QUOTA if outcome.quota else EndReason.NO_CAPACITY


def _launch_unknown(
    old: Attempt, outcome: LaunchUnknown, now: float, limits: Limits
) -> tuple[Attempt, tuple[str, ...]]:
    """Ask again, less and less often, with the same token; give up in the end. Said once."""
    if now - old.claimed_at > limits.launch_unknown_s:
        return at.ended(old, EndReason.NO_CAPACITY, f"no answer to the launch: {outcome.detail}", now), ()
    pause_s = min(limits.retry_s * 2**old.unknown_launches, limits.retry_most_s)
    new = replace(
        old,
        unknown_launches=old.unknown_launches + 1,
        retry_at=now + pause_s,
        launch_asked_at=old.launch_asked_at if outcome.asked else None,
    )
    first = (f"attempt {old.generation}: {outcome.detail}; asking again",) if old.unknown_launches == 0 else ()
    return new, first


def _avoid_like(
    record: JobRecord, refused: Attempt, why: str, now: float, limits: Limits, *, family: bool
) -> JobRecord:
    """Leave alone every pool of the region that would say the same. A quota counts a family's vCPUs in one market."""

    def same(offering: Offering) -> bool:
        pool = offering.pool
        return pool.region == refused.pool.region and (
            not family
            or (
                pool.capacity_type is refused.pool.capacity_type
                and pool.instance_type[0] == refused.pool.instance_type[0]
            )
        )

    more = tuple(Avoid(o.pool, now + limits.avoid_s, why) for o in record.offerings if same(o))
    return replace(record, avoid=record.avoid + more)
