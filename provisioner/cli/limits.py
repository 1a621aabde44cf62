"""What is said of a job's limits: the worst that they allow, what is left of them, what a deadline depends on."""

from __future__ import annotations

from datetime import UTC, datetime

from cloudtrain.provisioner.cli.words import dollars, duration
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.outputs import AtMost
from cloudtrain.provisioner.spec import JobSpec


def at_most(found: AtMost) -> list[str]:
    """The worst that the limits allow; no line where there are none."""
    parts = []
    if found["budget_usd"] is not None:
        parts.append(f"{_written(found['budget_usd'])} by its budget")
    if found["max_run_s"] is not None and found["max_run_usd"] is not None:
        time = f"{duration(found['max_run_s'])} of machine time by max_run"
        worst = f"{dollars(found['max_run_usd'])} for machines at today's prices"
        parts.append(time if found["budget_usd"] is not None else f"{time}, {worst}")
    lines = [f"at most {', '.join(parts)}"] if parts else []
    if found["max_wait_s"] is not None:
        lines.append(f"it waits for a machine for {duration(found['max_wait_s'])} at most, each time")
    return lines


def left(record: JobRecord, now: float) -> list[str]:
    """What is left of the limits, in one line, and that the deadline has passed; nothing once the job is over."""
    lines = []
    deadline_s, rest = record.spec.deadline_s, allowance.left(record, now)
    if deadline_s is not None:
        ends_at = record.created_at + deadline_s
        if record.late_at is not None:
            lines.append(f"its deadline, {moment(ends_at)}, has passed: exit code 5 at the end")
        elif not record.status.final:
            lines.append(f"deadline: {moment(ends_at)}, in {duration(ends_at - now)}")
    parts = []
    if rest.usd is not None:
        parts.append(f"{dollars(max(0.0, float(rest.usd)))} of {_written(float(record.spec.budget_usd or 0))}")
    if rest.run_s is not None:
        parts.append(f"{duration(rest.run_s)} of {duration(record.spec.max_run_s or 0)} machine time")
    return [*lines, f"left: {', '.join(parts)}"] if parts and not record.status.final else lines


def deadline(spec: JobSpec, cloud: str, expires_at: float | None, now: float) -> str | None:
    """What the deadline of a job that is about to start depends on; None where it has none. ``expires_at``: of the
    credentials, None where they do not end, or nobody knows when."""
    if spec.deadline_s is None:
        return None
    ends_at = now + spec.deadline_s
    if cloud == "local":
        return f"deadline {moment(ends_at)}: it counts on this computer being awake"
    kept = f"deadline {moment(ends_at)}: it counts on this computer being awake, with its controller running"
    if expires_at is None:
        return f"{kept} and valid AWS credentials"
    if expires_at >= ends_at:
        return f"{kept}; your credentials are valid until {moment(expires_at)}"
    return f"{kept}, and your credentials end before it, at {moment(expires_at)}: log in again by then"


def _written(usd: float) -> str:
    """A round sum as a person writes it: $0.50, not $0.5000."""
    return f"${usd:.2f}" if round(usd, 2) == usd else dollars(usd)


def moment(at: float) -> str:
    """The day and the minute, where the person sits."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
