"""When a machine that went had its life, and who ended it: what its bill rests on. Pure."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.provisioner.decide.limits import BOOT_DEADLINE_S, Limits
from cloudtrain.provisioner.model import Attempt, Machine, Phase
from cloudtrain.trainer.contract import AgentStatus


def asked_at(attempt: Attempt) -> float:
    """When its machine was made, as far as is known: this computer may have slept since the claim."""
    return max(attempt.claimed_at, attempt.launch_asked_at or 0.0, attempt.launched_at or 0.0)


def departed(attempt: Attempt, report: AgentStatus | None, now: float, limits: Limits) -> Attempt:
    """The attempt whose machine is gone, and when that was: as we saw it, or, where nobody looked for hours, soon after
    its agent's last sign of life, or when it ended itself for want of an agent."""
    ended_at = now if attempt.ended_at is None else attempt.ended_at
    gone_at = now
    if report is None and attempt.phase is Phase.BOOTING:
        last_at = asked_at(attempt) + BOOT_DEADLINE_S
        ended_at, gone_at = min(ended_at, last_at), min(gone_at, last_at)
    if report is not None:
        last_at = max(report.heartbeat_at + limits.departed_s, attempt.launched_at or attempt.claimed_at)
        if report.notice_deadline_at is not None:  # saved, it only waits for EC2, and says no more
            last_at = max(last_at, report.notice_deadline_at + limits.taken_late_s + limits.departed_s)
        ended_at, gone_at = min(ended_at, last_at), min(gone_at, last_at)
    running_at = attempt.running_at
    if running_at is None and report is not None:  # it ran while nobody looked
        running_at = attempt.launched_at or attempt.claimed_at
    return replace(attempt, running_at=running_at, ended_at=ended_at, gone_at=gone_at)


def ran_unseen(attempt: Attempt, now: float, looked_at: float | None, limits: Limits) -> Attempt:
    """A machine that went, and that nobody saw run: charged from its launch on, except where somebody looked all the
    while. ``looked_at``: None where a look would have shown nothing."""
    watched = looked_at is not None and now - looked_at <= limits.unlooked_s
    if attempt.running_at is not None or attempt.launched_at is None or attempt.ended_at is not None or watched:
        return attempt
    return replace(attempt, running_at=attempt.launched_at)


def ended_by_cloud(machine: Machine) -> bool:
    """Whether EC2 took it, which makes its first hour free. One that powered itself off after a notice, or broke, was
    not taken, and is paid."""
    reason = machine.state_reason or ""
    return machine.taken_by_cloud and (not reason or reason.startswith("Server.Spot"))
