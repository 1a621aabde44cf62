"""What the supervisor's loop knows, and what breaks it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..contract import Progress
from .decide_stop import Stop, Verdict
from .process import Job


@dataclass
class State:
    """Changed by the loop alone. Times are monotonic, unless they end in ``_at``: Unix seconds."""

    started: float
    phase: str = "checking"
    progress: Progress = field(default_factory=Progress)
    current: Job | None = None  # setup, then run
    in_setup: bool = False
    setup_done: bool = False
    restore_s: float | None = None  # what it took until data and checkpoint were there
    run_started: float | None = None
    run_seconds: float = 0.0
    exit_code: int | None = None
    shell_ended: float | None = None
    lingering: tuple[str, ...] = ()  # what of the job outlives its shell
    stop: Stop | None = None
    told: set[int] = field(default_factory=set)  # the processes that had their SIGTERM
    killed: float | None = None
    verdict: Verdict | None = None
    taken_at: float | None = None  # EC2 takes the machine
    resumed_step: int | None = None
    final: bool = False


class AgentCrash(Exception):
    """A thread of the agent's failed."""


class Stuck(Exception):
    """Nothing has moved here for too long. One line."""


class Barred(Exception):
    """The bucket takes nothing from this machine: what it trains would be lost. One line."""
