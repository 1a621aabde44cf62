"""When a job is stopped, by which signal, and what its end means. Pure: the caller brings the time.

A stop is a file first. SIGTERM follows at once for a job that does not poll the file, and late in the grace for one
that does; at the deadline everything is killed. What the end means follows from what *we* asked and from what the job
said (``done``), never from the exit code alone: Lightning and HF exit 0 after SIGTERM, torchrun exits 1 whatever its
workers return (measured, torch 2.13, Lightning 2.6.6, transformers 5.24, 2026-11).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LATE_SHARE = 0.25  # of the grace: what is left of it when a job that polls the file gets SIGTERM all the same
MARGIN_S = 30.0  # of EC2's two minutes: kept for uploading the last checkpoint
MARGIN_SHARE = 0.25  # the margin of a shorter notice


class Reason(Enum):
    """Why the job was asked to stop."""

    INTERRUPTION = "interruption"  # EC2 takes the machine
    STOP = "stop"  # the controller asked
    GOING_DOWN = "going-down"  # the machine shuts down under us
    MAX_RUN = "max-run"
    BUDGET = "budget"
    FENCED = "fenced"  # a newer generation exists

    @property
    def word(self) -> str:
        """The word for ``Notice.reason``."""
        taken = (Reason.INTERRUPTION, Reason.GOING_DOWN)
        return "interruption" if self in taken else "stop"


@dataclass(frozen=True)
class Stop:
    """A stop request in force. Unix seconds."""

    reason: Reason
    asked_at: float
    deadline_at: float
    detail: str = ""  # one line for the person, where the reason needs one


class Signal(Enum):
    """What to send now."""

    NONE = 0
    TERMINATE = 1  # SIGTERM to the first processes under ``run`` that are no shells
    KILL = 2  # SIGKILL to all


def job_deadline(now: float, taken_at: float) -> float:
    """When the job must have saved, for a machine that EC2 takes at ``taken_at``; never before ``now``."""
    left = max(0.0, taken_at - now)
    return now + left - min(MARGIN_S, MARGIN_SHARE * left)


def merge(current: Stop | None, new: Stop) -> Stop:
    """The request that holds when another one comes: the first reason stays, the earlier deadline wins.

    A fenced machine, or one that EC2 takes, says more about what comes next than a plain stop does.
    """
    if current is None:
        return new
    deadline = min(current.deadline_at, new.deadline_at)
    rank = {Reason.STOP: 0, Reason.MAX_RUN: 1, Reason.BUDGET: 1}
    reason, detail = current.reason, current.detail
    if rank.get(new.reason, 2) > rank.get(reason, 2):
        reason, detail = new.reason, new.detail
    return Stop(reason, current.asked_at, deadline, detail)


def next_signal(stop: Stop, now: float, *, stops_by_file: bool) -> Signal:
    """What a job that still lives gets now: TERMINATE goes to each process once, and to those that come after it (the
    next line of a script, which must not run on half-trained weights)."""
    if now >= stop.deadline_at:
        return Signal.KILL
    late = stop.deadline_at - LATE_SHARE * (stop.deadline_at - stop.asked_at)
    return Signal.TERMINATE if not stops_by_file or now >= late else Signal.NONE


@dataclass(frozen=True)
class Verdict:
    """The final phase, and for "failed" one line and whose fault it was."""

    phase: str
    error: str | None = None
    failure: str | None = None


def verdict(*, stop: Stop | None, exit_code: int | None, done: bool, last_line: str, disk_full: bool) -> Verdict:
    """What an attempt has come to once its last process is gone. ``exit_code`` None: ``run`` never started."""
    if stop is not None and stop.reason is Reason.FENCED:
        return Verdict("stopped", "a newer generation runs this job; this one publishes nothing any more")
    if done:
        return Verdict("done")
    if stop is not None and stop.reason in (Reason.MAX_RUN, Reason.BUDGET):
        return Verdict("failed", stop.detail, "budget" if stop.reason is Reason.BUDGET else "max_run")
    if stop is not None:
        return Verdict("stopped")
    if exit_code == 0:
        return Verdict("done")
    if disk_full:
        return Verdict(
            "failed", f"disk full on the machine: raise resources.disk_size; last line: {last_line}", "machine"
        )
    return Verdict("failed", f"run {exited(exit_code)}{said(last_line)}", "job")


def exited(exit_code: int | None) -> str:
    """ "exited with code 1", in words that say what a signal was."""
    if exit_code is None:
        return "never started"
    number = -exit_code if exit_code < 0 else exit_code - 128
    names = {9: "SIGKILL, often for want of memory", 11: "SIGSEGV, a crash in native code", 6: "SIGABRT", 15: "SIGTERM"}
    if number in names:
        return f"was ended by signal {number} ({names[number]})"
    if exit_code == 127:
        return "exited with code 127 (command not found)"
    return f"exited with code {exit_code}"


def said(last_line: str) -> str:
    """The end of an error line: the log's last words."""
    return f": {last_line}" if last_line else " and printed nothing"


def settled(exit_code: int | None, *, asked: bool, ended_for_s: float, wait_s: float = 2.0) -> bool:
    """Whether a job's end may be judged. One killed by a signal that we did not send may be the first to fall on a
    machine that is going down; the next seconds show whether we follow it."""
    foreign = exit_code is not None and (exit_code < 0 or exit_code in (128 + 9, 128 + 15)) and not asked
    return ended_for_s >= wait_s if foreign else True
