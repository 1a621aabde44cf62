"""What goes wrong in one run of the simulator, and when: a value that a seed draws and a person can read."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

EVERY_CALL = ("find_image", "price", "prepare", "launch", "machines", "terminate", "sweep", "get", "put", "run", "read")
OUR_END_S = 1500.0  # faults begin within so many seconds


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. ``at`` and ``for_s``: seconds since the start; what the rest means depends on the kind
    (docs/faults.md). Each stands for itself, so that any of them can be left out."""

    kind: str
    at: float = 0.0
    for_s: float = 0.0
    what: str = ""
    n: int = 0
    x: float = 0.0

    @property
    def until(self) -> float:
        """When it is over."""
        return self.at + self.for_s

    def __str__(self) -> str:
        parts = [f"{self.at:6.0f} s  {self.kind}"]
        if self.what:
            parts.append(self.what)
        if self.for_s:
            parts.append(f"for {self.for_s:.0f} s")
        if self.n:
            parts.append(f"n={self.n}")
        if self.x:
            parts.append(f"x={self.x:g}")
        return "  ".join(parts)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run: a job, and what goes wrong."""

    seed: int
    total_steps: int = 300
    interval: int = 60
    fail_at: int | None = None
    max_run_s: float | None = None
    budget_usd: str | None = None
    steps_per_s: float = 1.0
    faults: tuple[Fault, ...] = ()

    @property
    def calm_at(self) -> float:
        """When the last fault is over, seconds since the start."""
        return max((f.until for f in self.faults), default=0.0)

    def without(self, index: int) -> Schedule:
        """The same with one fault less."""
        return replace(self, faults=self.faults[:index] + self.faults[index + 1 :])

    def story(self) -> str:
        """For a person."""
        job = f"{self.total_steps} steps, a checkpoint each {self.interval}"
        more = [f"fails at step {self.fail_at}"] if self.fail_at is not None else []
        more += [f"max_run {self.max_run_s:g} s"] if self.max_run_s is not None else []
        more += [f"budget {self.budget_usd} USD"] if self.budget_usd is not None else []
        lines = [f"seed {self.seed}: {', '.join([job, *more])}"]
        return "\n".join(lines + [f"  {fault}" for fault in sorted(self.faults, key=lambda f: f.at)])


def draw(seed: int) -> Schedule:
    """The schedule of a seed; always the same."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8))):
        faults += _some(rng)
    total = rng.choice((120, 240, 300, 420, 600))
    chance, poor = rng.random(), rng.random() < 0.1
    if poor:
        faults = [fault for fault in faults if fault.kind != "price"]
    return Schedule(
        seed=seed,
        total_steps=total,
        interval=rng.choice((40, 60, 90)),
        fail_at=rng.randrange(10, total) if chance < 0.06 else None,
        max_run_s=float(rng.choice((200, 600, 3600))) if rng.random() < 0.08 else None,
        budget_usd=rng.choice(("0.02", "0.03", "0.05")) if poor else None,
        faults=tuple(sorted(faults, key=lambda f: (f.at, f.kind, f.n))),
    )


def _some(rng: random.Random) -> list[Fault]:
    return rng.choice(_DRAWERS)(rng)


def _when(rng: random.Random) -> float:
    """Often in the first minute, where everything happens at once."""
    return round(rng.choice((rng.uniform(0, 60), rng.uniform(0, 400), rng.uniform(0, OUR_END_S))), 1)


def _lost(rng: random.Random) -> list[Fault]:
    kind = rng.choice(("lost-request", "lost-reply"))
    call = rng.choice((*EVERY_CALL, "launch", "launch", "terminate", "put", "run"))
    return [Fault(kind, 0.0, what=call, n=rng.choice((1, 1, 2, 3, 4, 6, 10)), x=rng.choice((1, 1, 2, 3, 8)))]


def _throttle(rng: random.Random) -> list[Fault]:
    return [
        Fault("throttle", _when(rng), rng.choice((30, 120, 600)), n=rng.randrange(1000), x=rng.choice((0.2, 0.5, 1)))
    ]


def _outage(rng: random.Random) -> list[Fault]:
    what = rng.choice(("cloud", "bucket", "ssh", "all", "replies"))
    return [Fault("outage", _when(rng), rng.choice((20, 100, 400, 1200, 3000)), what)]


def _bucket_down(rng: random.Random) -> list[Fault]:
    return [Fault("bucket-down", _when(rng), rng.choice((30, 200, 900)))]


def _credentials(rng: random.Random) -> list[Fault]:
    return [Fault("credentials", _when(rng), rng.choice((60, 600, 3600, 8 * 3600)))]


def _capacity(rng: random.Random) -> list[Fault]:
    what = rng.choice(("az1", "az2", "az1", "us-east-1", "spot", "all"))
    return [Fault("no-capacity", _when(rng), rng.choice((60, 600, 2400)), what)]


def _quota(rng: random.Random) -> list[Fault]:
    return [Fault("quota", _when(rng), rng.choice((60, 600, 2400)), rng.choice(("spot", "us-east-1")))]


def _unknown_code(rng: random.Random) -> list[Fault]:
    return [
        Fault("unknown-code", 0.0, what=rng.choice(("launch", "prepare", "find_image")), n=rng.choice((1, 2, 3)), x=1)
    ]


def _hidden(rng: random.Random) -> list[Fault]:
    return [Fault("hidden", _when(rng), rng.choice((60, 600)), x=rng.choice((10, 40, 100, 240)))]


def _vanish(rng: random.Random) -> list[Fault]:
    return [Fault("vanish", _when(rng), rng.choice((5, 30, 100, 100, 1000)))]


def _crowd(rng: random.Random) -> list[Fault]:
    return [Fault("crowd", _when(rng), rng.choice((100, 1500)))]


def _late_end(rng: random.Random) -> list[Fault]:
    return [Fault("late-end", _when(rng), rng.choice((100, 1500)), x=rng.choice((60, 300, 900)))]


def _interrupt(rng: random.Random) -> list[Fault]:
    what = rng.choice(("", "", "unseen-request", "blind", "withdrawn"))
    return [Fault("interrupt", _when(rng), what=what, x=rng.choice((120, 120, 120, 60, 0)))]


def _interrupts(rng: random.Random) -> list[Fault]:
    at = _when(rng)
    return [Fault("interrupt", at + gap, x=rng.choice((120, 0))) for gap in (0.0, 200.0, 400.0, 650.0)]


def _dies(rng: random.Random) -> list[Fault]:
    return [Fault("machine-dies", _when(rng))]


def _agent(rng: random.Random) -> list[Fault]:
    return [Fault(rng.choice(("agent-dies", "agent-hangs")), _when(rng))]


def _boot(rng: random.Random) -> list[Fault]:
    what = rng.choice(("slow", "never", "ship-refused"))
    return [Fault("boot", _when(rng), rng.choice((60, 300)), what, x=rng.choice((120, 400)))]


def _dark(rng: random.Random) -> list[Fault]:
    return [Fault("ssh-dark", _when(rng), rng.choice((60, 400, 1200, 3000)))]


def _crash(rng: random.Random) -> list[Fault]:
    down = rng.choice((0.0, 2.0, 30.0, 200.0, 200.0, 2000.0, 4 * 3600.0))
    return [Fault("crash", _when(rng), down, n=rng.choice((1, 2, 3, 4, 5, 7, 9, 12, 16, 24)))]


def _crash_early(rng: random.Random) -> list[Fault]:
    what = rng.choice(("", "power"))
    return [Fault("crash", 0.0, rng.choice((0.0, 20.0, 400.0, 2500.0)), what, n=rng.randrange(1, 40))]


def _sleep(rng: random.Random) -> list[Fault]:
    return [Fault("sleep", _when(rng), rng.choice((60, 600, 4000, 20000)), n=rng.choice((1, 2, 3, 5, 8, 12)))]


def _disk(rng: random.Random) -> list[Fault]:
    return [Fault("disk-full", _when(rng), rng.choice((10, 100, 600)))]


def _clock(rng: random.Random) -> list[Fault]:
    return [Fault("clock", _when(rng), x=rng.choice((-280, -60, 60, 280)))]


def _adopt(rng: random.Random) -> list[Fault]:
    """Another home takes the job over, mostly while the first sleeps, is down, or is lost."""
    at = _when(rng)
    kind = rng.choice(("alive", "asleep", "lost"))
    faults = [Fault("adopt", at)]
    if kind == "asleep":
        since = max(0.0, at - rng.choice((5, 50, 300)))
        faults.append(Fault("sleep", since, rng.choice((100, 600, 3000)), n=rng.choice((1, 2, 3, 4, 6, 9))))
    if kind == "lost":
        faults.append(Fault("home-lost", max(0.0, at - rng.choice((1, 20, 200, 2400)))))
    if rng.random() < 0.3:
        faults.append(Fault("adopt", at + rng.choice((30, 300, 900)), what="back"))
    return faults


def _price(rng: random.Random) -> list[Fault]:
    return [Fault("price", _when(rng), x=rng.choice((0.5, 2.0, 6.0)))]


def _given_up(rng: random.Random) -> list[Fault]:
    """Nobody hears of the machine that a launch made, and nobody sees it for long; often the person gives up."""
    faults = [Fault("lost-reply", 0.0, what="launch", n=1, x=rng.choice((3, 40))), Fault("hidden", 0.0, 60.0, x=240)]
    return [*faults, Fault("person", rng.choice((3.0, 20.0)), what="cancel")] if rng.random() < 0.6 else faults[:1]


def _ended_by_us(rng: random.Random) -> list[Fault]:
    """The person ends a job whose machine boots, so that a controller must end the machine; and that meets trouble."""
    at = round(rng.uniform(0, 40), 1)
    lost = Fault("lost-request", 0.0, what="terminate", n=1, x=rng.choice((1, 3, 8)))
    trouble = rng.choice(([Fault("crowd", 0.0, 1500)], [lost], [lost, Fault("vanish", at, 100)]))
    return [Fault("person", at, what="cancel"), *trouble]


def _unseen_end(rng: random.Random) -> list[Fault]:
    """A machine that never boots is given up; asking for its end is lost, and for a while EC2 does not list it."""
    lost = Fault("lost-request", 0.0, what="terminate", n=1, x=rng.choice((3, 8)))
    return [Fault("boot", 0.0, 60, "never"), lost, Fault("vanish", round(rng.uniform(900, 960), 1), 100)]


def _person(rng: random.Random) -> list[Fault]:
    at = _when(rng)
    what = rng.choice(("stop", "cancel", "cancel"))
    faults = [Fault("person", at, what=what)]
    if what == "stop" and rng.random() < 0.7:
        faults.append(Fault("person", at + rng.choice((1, 30, 200, 900)), what="resume"))
    return faults


_DRAWERS = (
    *(_lost, _lost, _lost, _throttle, _outage, _bucket_down, _credentials, _capacity, _capacity, _quota, _unknown_code),
    *(
        _hidden,
        _hidden,
        _vanish,
        _late_end,
        _crowd,
        _interrupt,
        _interrupt,
        _interrupt,
        _interrupts,
        _dies,
        _agent,
        _boot,
    ),
    *(_dark, _crash, _crash, _crash_early, _crash_early, _sleep, _sleep, _disk, _clock, _adopt, _adopt, _price),
    *(_person, _person, _given_up, _ended_by_us, _unseen_end),
)
