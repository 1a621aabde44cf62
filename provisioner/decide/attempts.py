"""How one attempt moves on: a pure step from what was seen to the attempt's next state and the effects it needs.

claimed ──Resolve──▶ claimed(image) ──Launch──▶ booting ──Ship──▶ working ──▶ ending ──▶ ended
                          refused ─────────────────────────────────────────────────────▶ ended
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.decide.departures import asked_at, departed, ended_by_cloud, ran_unseen
from cloudtrain.provisioner.decide.effects import Admit, Effect, Launch, Reprice, RequestStop, Resolve, Ship, Terminate
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.model import (
    Attempt,
    EndReason,
    FoundImage,
    Machine,
    MachineState,
    Observed,
    Phase,
)
from cloudtrain.trainer.contract import FINAL_PHASES, AgentStatus


@dataclass(frozen=True, slots=True)
class Step:
    """What an attempt becomes, what must be done for it, and what to tell the person."""

    attempt: Attempt
    effects: tuple[Effect, ...] = ()
    events: tuple[str, ...] = ()


SAVED_FIRST = (EndReason.STOPPED, EndReason.BUDGET, EndReason.MAX_RUN, EndReason.TOO_DEAR)
"""The last checkpoint of an attempt that leaves for these is waited for; what must not be waited for ends it anyway."""
# How a machine ends whose volume EC2 can't encrypt (karpenter-provider-aws#1407, 2022; CiscoDevNet/cloud-cml#8, 2024).
_KEY_TROUBLE = ("Client.InternalError", "Client.InvalidKMSKey")


def live(attempt: Attempt) -> bool:
    """Whether the attempt still stands for the job: not ended, and not merely waiting for EC2 to take its machine."""
    return attempt.phase is not Phase.ENDED and not attempt.handed_over


def advance(attempt: Attempt, seen: Observed, now: float, *, leaving: EndReason | None, limits: Limits) -> Step:
    """One pass over an attempt that has not ended. ``leaving``: why it is to save and go, or the job's outcome
    once it has one."""
    if seen.machines is None:
        return Step(attempt)  # the cloud could not be asked: nothing is concluded
    machine = seen.machine(attempt)
    if machine is not None and machine.state is MachineState.RUNNING and attempt.running_at is None:
        since = machine.launched_at if seen.looked_at is None else max(machine.launched_at, seen.looked_at)
        attempt = replace(attempt, running_at=min(now, since))  # at the earliest, where nobody looked for a while
    if machine is not None and machine.state not in (MachineState.PENDING, MachineState.RUNNING):
        known = attempt if attempt.launched_at is not None else replace(attempt, launched_at=machine.launched_at)
        attempt = ran_unseen(known, now, seen.looked_at, limits)
    if attempt.phase is Phase.CLAIMED:
        return _claimed(attempt, machine, now, leaving, limits)
    if attempt.phase is Phase.ENDING:
        return _ending(attempt, machine, now, limits)
    report = seen.report(attempt.generation)
    if report is not None:
        attempt = _note_report(attempt, report)
    attempt, doubted = _looked_for(attempt, machine, now, limits)
    if doubted:
        return Step(attempt)
    if machine is None or machine.state in (MachineState.SHUTTING_DOWN, MachineState.TERMINATED):
        if _words_awaited(attempt, machine, report, seen, now, limits):
            return Step(attempt if attempt.ended_at is not None else replace(attempt, ended_at=now))
        return _machine_went(attempt, machine, report, now, leaving, limits)
    if machine.state in (MachineState.STOPPING, MachineState.STOPPED):
        return end(attempt, EndReason.MACHINE_LOST, f"the machine is {machine.state}", now)
    if attempt.phase is Phase.BOOTING:
        return _admitting(_booting(attempt, machine, now, leaving, limits), machine, seen, now, limits)
    return _admitting(_working(attempt, machine, report, seen, now, leaving, limits), machine, seen, now, limits)


def end(attempt: Attempt, reason: EndReason, detail: str | None, now: float) -> Step:
    """Start to end an attempt whose machine may live; terminating begins with the next pass."""
    ending = replace(attempt, phase=Phase.ENDING, ending_at=now, end_reason=reason, end_detail=detail)
    return Step(ending, terminate(ending))


def terminate(attempt: Attempt) -> tuple[Effect, ...]:
    """The terminate effect of an attempt whose instance id is known."""
    return (Terminate(attempt.pool.region, attempt.instance_id),) if attempt.instance_id else ()


def ended(attempt: Attempt, reason: EndReason, detail: str | None, now: float) -> Attempt:
    """An attempt that is over: its machine is gone or never was."""
    return replace(
        attempt,
        phase=Phase.ENDED,
        ended_at=now if attempt.ended_at is None else attempt.ended_at,
        gone_at=attempt.gone_at or (now if attempt.instance_id is not None else None),
        end_reason=attempt.end_reason or reason,
        end_detail=attempt.end_detail or detail,
    )


def _claimed(attempt: Attempt, machine: Machine | None, now: float, leaving: EndReason | None, limits: Limits) -> Step:
    if machine is not None:  # launched by us in a pass whose end we did not see: adopted by its tag
        text = f"attempt {attempt.generation}: found its machine {machine.instance_id} running"
        return Step(launched(attempt, machine, now), (), (text,))
    leaving = leaving or attempt.given_up
    if attempt.retry_at is not None and now < attempt.retry_at and leaving is None:
        return Step(attempt)
    if attempt.launch_asked_at is None:
        if leaving is not None:
            return Step(ended(attempt, leaving, None, now))
        if attempt.image_id is None:
            return Step(attempt, (Resolve(attempt.generation),))
        return Step(replace(attempt, launch_asked_at=now), (Launch(attempt.generation),))
    if leaving is not None:  # not asked again; what it made all the same shows by its tag
        since = now if attempt.unseen_since is None else attempt.unseen_since
        if now - since > limits.launch_unseen_s:
            return Step(ended(attempt, leaving, None, now))
        return Step(replace(attempt, unseen_since=since))
    # Asked before, fate unknown: the same token again can't make a second machine, and tells what became of the first.
    return Step(attempt, (Launch(attempt.generation, again=True),))


def give_up(attempt: Attempt, reason: EndReason, detail: str, now: float, *, asked: bool) -> Attempt:
    """An attempt that is not asked again: over at once, or, where it was ``asked`` without an answer, once the machine
    that it may have made has not shown for long enough."""
    if not asked:
        return ended(attempt, reason, detail, now)
    return replace(attempt, given_up=reason, end_detail=detail, unseen_since=None)


def pinned(attempt: Attempt, image: FoundImage) -> Attempt:
    """The attempt with its image: launched again, it sends the same request."""
    return replace(
        attempt,
        image_id=image.image_id,
        root_device=image.root_device,
        root_gib=image.root_gib,
        login_user=image.login_user,
    )


def launched(attempt: Attempt, machine: Machine, now: float) -> Attempt:
    """The attempt once its machine is known. When that was made, the cloud says by its own clock: no earlier than it
    was asked for by ours, and not later than now."""
    made_at = min(now, max(machine.launched_at, attempt.launch_asked_at or attempt.claimed_at))
    return replace(
        attempt,
        phase=Phase.BOOTING,
        given_up=None,
        end_detail=None,
        unseen_since=None,
        instance_id=machine.instance_id,
        spot_request_id=machine.spot_request_id,
        launched_at=made_at,
    )


def _booting(attempt: Attempt, machine: Machine, now: float, leaving: EndReason | None, limits: Limits) -> Step:
    if leaving is not None:
        return end(attempt, leaving, None, now)
    if machine.taken_by_cloud:
        attempt = _with_notice(attempt, now)  # EC2 takes it; nothing is lost by waiting
        if attempt.notice_at is not None and now - attempt.notice_at > limits.notice_grace_s:
            return end(attempt, EndReason.INTERRUPTED, "EC2 gave notice and did not take the machine", now)
        return Step(attempt)
    if now - asked_at(attempt) > limits.boot_s:
        minutes = limits.boot_s / 60
        return end(attempt, EndReason.BOOT_TIMEOUT, f"no agent {minutes:.0f} min after the launch", now)
    if machine.state is MachineState.RUNNING and machine.addressed:
        return Step(attempt, (Ship(attempt.generation, machine),))
    return Step(attempt)


def _working(
    attempt: Attempt,
    machine: Machine,
    report: AgentStatus | None,
    seen: Observed,
    now: float,
    leaving: EndReason | None,
    limits: Limits,
) -> Step:
    events: tuple[str, ...] = ()
    if attempt.notice_at is None and _noticed(machine, report):
        attempt = _with_notice(attempt, now)
        events = (f"attempt {attempt.generation}: EC2 takes the machine back; saving a last checkpoint",)
    if report is not None and report.phase in FINAL_PHASES:
        step = _finished(attempt, report, now, limits, leaving)
        return replace(step, events=events + step.events)
    if leaving is None and _unaware(attempt, machine, report, now, limits):
        return Step(attempt, (RequestStop(attempt.generation, machine, taken=True),), events)
    if leaving is not None:
        return _stop(attempt, machine, report, now, leaving, limits)
    if report is not None and report.phase == "saving" and report.notice_deadline_at is None:
        since = attempt.saving_since if attempt.saving_since is not None else now
        if now - since > limits.delivery_s:
            why = report.error or "the bucket takes nothing"
            return end(attempt, EndReason.MACHINE_UNFIT, f"results not delivered in {now - since:.0f} s: {why}", now)
        attempt = replace(attempt, saving_since=since)
    silent = dict(seen.silent_s).get(attempt.generation, 0.0)
    if silent > limits.restart_s and (attempt.restarted_at is None or now - attempt.restarted_at > limits.silent_s):
        again = f"attempt {attempt.generation}: its agent has stopped, starting it again"
        effect = Ship(attempt.generation, machine)  # harmless where it lives
        return Step(replace(attempt, restarted_at=now), (effect,), (*events, again))
    if silent > limits.silent_s:
        return end(attempt, EndReason.AGENT_LOST, f"it answers, but its agent stood still for {silent:.0f} s", now)
    unreachable = dict(seen.unreachable_s).get(attempt.generation, 0.0)
    if unreachable > limits.unreachable_s:
        return end(attempt, EndReason.AGENT_LOST, f"no answer, and no beat in the bucket for {unreachable:.0f} s", now)
    if attempt.prices and now - attempt.prices[-1].at >= limits.reprice_s:
        return Step(attempt, (Reprice(attempt.generation),), events)
    return Step(attempt, (), events)


def _admitting(step: Step, machine: Machine, seen: Observed, now: float, limits: Limits) -> Step:
    """A machine that runs and does not answer may be fine, and we may have moved: ask to be let in again."""
    attempt = step.attempt
    if machine.state is not MachineState.RUNNING or attempt.phase not in (Phase.BOOTING, Phase.WORKING):
        return step
    silent_s = dict(seen.unanswered_s).get(attempt.generation, 0.0)
    if attempt.phase is Phase.BOOTING and attempt.running_at is not None:
        silent_s = now - attempt.running_at
    if silent_s <= limits.admit_s or (attempt.admitted_at is not None and now - attempt.admitted_at < limits.admit_s):
        return step
    again = Admit(attempt.pool.region)
    return replace(step, attempt=replace(attempt, admitted_at=now), effects=(again, *step.effects))


def _stop(
    attempt: Attempt, machine: Machine, report: AgentStatus | None, now: float, leaving: EndReason, limits: Limits
) -> Step:
    """Asked until it is heard. Who stops means to go on: the last checkpoint is waited for longer than for a cancel."""
    asked_at = now if attempt.stop_asked_at is None else attempt.stop_asked_at
    heard_at = attempt.stop_heard_at
    patience_s = limits.stop_s
    if leaving in SAVED_FIRST:
        saving = heard_at is not None and report is not None and report.phase == "saving"
        patience_s = limits.delivery_s if saving else limits.stop_s if heard_at is not None else limits.stop_unheard_s
    if now - (asked_at if heard_at is None else heard_at) > patience_s:
        return end(attempt, leaving, "stopped without its agent's leave", now)
    ask = () if heard_at is not None else (RequestStop(attempt.generation, machine),)
    return Step(replace(attempt, stop_asked_at=asked_at), ask)


def _finished(attempt: Attempt, report: AgentStatus, now: float, limits: Limits, leaving: EndReason | None) -> Step:
    if report.phase == "done":
        return end(attempt, EndReason.SUCCEEDED, None, now)
    fault = _fault(report, attempt) if report.phase == "failed" else None
    if fault is not None and fault is not EndReason.INTERRUPTED:
        return end(attempt, fault, report.error, now)
    if report.fenced:
        return end(attempt, EndReason.FENCED, "a newer generation exists", now)
    if attempt.notice_at is None or leaving not in (None, EndReason.PREEMPTIONS, EndReason.TOO_DEAR):
        return end(attempt, leaving or EndReason.MACHINE_LOST, report.error, now)
    # Saved after a notice: the next generation may launch while this machine waits for EC2 (its first hour is free).
    deadline = report.notice_deadline_at or attempt.notice_at
    if now - max(deadline, attempt.notice_at) > limits.notice_grace_s:
        return end(attempt, EndReason.INTERRUPTED, "EC2 gave notice and did not take the machine", now)
    if attempt.handed_over:
        return Step(attempt)
    safe = f"checkpoint of step {attempt.durable_step} is safe" if attempt.durable_step else "left without a checkpoint"
    text = f"attempt {attempt.generation}: {safe}"
    return Step(replace(attempt, handed_over=True), (), (text,))


def _ending(attempt: Attempt, machine: Machine | None, now: float, limits: Limits) -> Step:
    if machine is None:
        since = now if attempt.unseen_since is None else attempt.unseen_since
        if now - since > limits.gone_unseen_s:  # NotFound alone does not mean gone
            return Step(ended(ran_unseen(attempt, now, None, limits), EndReason.MACHINE_LOST, None, now))
        return Step(replace(attempt, unseen_since=since), terminate(attempt))
    attempt = replace(attempt, unseen_since=None)  # each absence is judged by itself
    if machine.gone:
        return Step(ended(attempt, EndReason.MACHINE_LOST, None, now))
    if machine.state is MachineState.SHUTTING_DOWN:
        return Step(attempt if attempt.ended_at is not None else replace(attempt, ended_at=now))
    return Step(attempt, terminate(attempt))


def _looked_for(attempt: Attempt, machine: Machine | None, now: float, limits: Limits) -> tuple[Attempt, bool]:
    """Since when the cloud's lists have lacked the machine, and whether that proves nothing yet."""
    if machine is not None:
        return replace(attempt, unseen_since=None), False  # each absence is judged by itself
    since = now if attempt.unseen_since is None else attempt.unseen_since
    doubted = now - asked_at(attempt) < limits.unseen_s or now - since < limits.gone_unseen_s
    return replace(attempt, unseen_since=since), doubted


def _machine_went(
    attempt: Attempt,
    machine: Machine | None,
    report: AgentStatus | None,
    now: float,
    leaving: EndReason | None,
    limits: Limits,
) -> Step:
    """The machine is absent for good, shutting down or terminated, and not because we asked."""
    if machine is not None and not machine.gone:
        return Step(attempt if attempt.ended_at is not None else replace(attempt, ended_at=now))
    if machine is None:
        attempt = ran_unseen(attempt, now, None, limits)
    attempt = departed(attempt, report, now, limits)
    if machine is not None:
        attempt = replace(attempt, ended_by_cloud=ended_by_cloud(machine))
    if report is not None and report.phase == "done":
        return Step(ended(attempt, EndReason.SUCCEEDED, None, now))
    if report is not None and report.phase == "failed":
        return Step(ended(attempt, _fault(report, attempt), report.error, now))
    if leaving is not None and attempt.stop_asked_at is not None:
        return Step(ended(attempt, leaving, None, now))  # it stopped as it was asked, and powered off
    if machine is None:  # EC2 shows an ended one for an hour: a spot machine that went unseen was taken, most likely
        spot = attempt.pool.capacity_type is CapacityType.SPOT
        reason = EndReason.INTERRUPTED if spot else EndReason.MACHINE_LOST
        return Step(ended(attempt, reason, "the cloud shows the machine no more", now))
    words = machine.state_message or machine.state_reason or "no reason given"
    if (machine.state_reason or "").startswith(_KEY_TROUBLE):
        words += "; most often EC2 may not use the disk's KMS key: `cloudtrain doctor` looks"
    if machine.taken_by_cloud:
        return Step(ended(attempt, EndReason.INTERRUPTED, machine.state_reason or words, now))
    return Step(ended(attempt, EndReason.MACHINE_LOST, words, now))


def _fault(report: AgentStatus, attempt: Attempt) -> EndReason:
    """Whose fault a failed attempt was. A run that fails on a machine which EC2 takes is no failure of the job's."""
    faults = {
        "machine": EndReason.MACHINE_UNFIT,
        "image": EndReason.IMAGE_UNFIT,
        "denied": EndReason.REFUSED,
        "max_run": EndReason.MAX_RUN,
        "budget": EndReason.BUDGET,
    }
    by_itself = EndReason.JOB_FAILED if attempt.notice_at is None else EndReason.INTERRUPTED
    return faults.get(report.failure or "", by_itself)


def _words_awaited(
    attempt: Attempt, machine: Machine | None, report: AgentStatus | None, seen: Observed, now: float, limits: Limits
) -> bool:
    """A machine that is gone may have finished: nothing is concluded while the bucket can't be asked what it said."""
    if (machine is not None and not machine.gone) or (report is not None and report.phase in FINAL_PHASES):
        return False
    since = attempt.ended_at if attempt.ended_at is not None else now
    return attempt.generation in seen.words_unknown and now - since < limits.words_unknown_s


def _noticed(machine: Machine, report: AgentStatus | None) -> bool:
    return machine.taken_by_cloud or (report is not None and report.notice_deadline_at is not None)


def _unaware(attempt: Attempt, machine: Machine, report: AgentStatus | None, now: float, limits: Limits) -> bool:
    """Whether the spot request says that EC2 takes the machine, and its agent, which asks every 5 s, does not know."""
    if attempt.notice_at is None or not machine.taken_by_cloud or now - attempt.notice_at < limits.unaware_s:
        return False
    return report is None or report.notice_deadline_at is None


def _with_notice(attempt: Attempt, now: float) -> Attempt:
    return attempt if attempt.notice_at is not None else replace(attempt, notice_at=now)


def _note_report(attempt: Attempt, report: AgentStatus) -> Attempt:
    """What the agent's report adds to the durable record. Steps only ever grow."""
    durable = max((s for s in (attempt.durable_step, report.durable_step) if s is not None), default=None)
    began = report.phase == "running" or report.run_seconds > 0  # a stop or a failed check can end it before `run`
    return replace(
        attempt,
        start_step=(report.resumed_step or 0) if began else attempt.start_step,
        last_step=max(attempt.last_step, report.progress.step),
        durable_step=durable,
        run_seconds=max(attempt.run_seconds, report.run_seconds),
        restore_s=attempt.restore_s if report.restore_s is None else report.restore_s,
        mounted_bytes=max(attempt.mounted_bytes, report.mounted_bytes),
        received_bytes=max(attempt.received_bytes, report.received_bytes),
        sent_bytes=max(attempt.sent_bytes, report.sent_bytes),
    )
