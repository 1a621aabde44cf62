"""One run: real controllers on fakes, in virtual time, under a schedule of faults.

Time passes only where a controller sleeps or a call blocks. Where there are two homes, each has a thread, and exactly
one runs at any moment: whoever waits hands on to the one that is due next.
"""

from __future__ import annotations

import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

import msgspec

from cloudtrain.provisioner.model import JobRecord
from cloudtrain.trainer.agent.decide_publish import Publish, may_publish
from cloudtrain.trainer.contract import AgentStatus, Latest
from tests.fakes import START_AT, FakeClock
from tests.faults.clouds import SimBucket, SimCloud
from tests.faults.homes import SimHome
from tests.faults.invariants import Violation, Watch
from tests.faults.jobs import first_record
from tests.faults.schedule import Fault, Schedule
from tests.faults.trouble import WINDOWS, lose

TICK_S = 10.0
CALLS_AT_MOST = 60_000  # of the ports in one run: a loop that never rests ends here
IN_FLIGHT_S = 120.0  # so long after, the machine of a launch that its computer slept upon is ended
CALM_BOUND_S = 3 * 3600.0  # from the last fault to the job's end
AFTERMATH_S = 400.0
HAMPERING = ("throttle", "outage", "bucket-down", "credentials", "ssh-dark", "disk-full", "vanish")
CHANGES = ("prepare", "launch", "terminate", "sweep", "put", "save", "run", "upload", "delete")


class Crash(BaseException):
    """A home's process dies here."""

    def __init__(self, down_s: float) -> None:
        super().__init__(down_s)
        self.down_s = down_s


class Over(BaseException):
    """The run is over: every thread unwinds."""


class SimClock(FakeClock):
    """The world's own."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim

    def now(self) -> float:
        return self.sim.now


class Simulation:
    """The world, its homes, and what goes wrong."""

    def __init__(self, schedule: Schedule, *, record: bool = False) -> None:
        self.schedule = schedule
        self.now = START_AT
        self.history: list[str] = []
        self.points: set[str] = set()
        self.lineages: dict[str, tuple[tuple[int, int], ...]] = {}
        self.violation: Violation | None = None
        self._recording = record
        self.calls = 0
        self._counts: dict[str, int] = {}
        self._moments: dict[Fault, int] = {}
        self._quiet = 0
        self._windows = [f for f in schedule.faults if f.for_s and f.kind not in ("crash", "sleep")]
        self._nth = [f for f in schedule.faults if f.kind in ("lost-request", "lost-reply", "unknown-code")]
        self._stops = [f for f in schedule.faults if f.kind in ("crash", "sleep")]
        self._events: list[tuple[float, Fault]] = sorted(
            ((START_AT + f.at, f) for f in schedule.faults if f.kind in _EVENTS), key=lambda e: e[0], reverse=True
        )
        self.cloud = SimCloud(self, SimClock(self))
        self.bucket = SimBucket(self)
        self.watch = Watch(self)
        self.root = Path(tempfile.mkdtemp(prefix="ct-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        first = first_record(schedule, self.now)
        self.homes = [SimHome(self, "a")]
        self.homes[0].launch(first)
        self.current: SimHome | None = None
        self.ended = False

    @staticmethod
    def may_publish(latest: Latest | None, *, generation: int, step: int, key: str) -> Publish:
        """The agent's own rule."""
        return may_publish(latest, generation=generation, step=step, key=key)

    # ---- the run

    def run(self) -> Violation | None:
        """To the end; returns what was violated."""
        try:
            self.homes[0].main()
            for home in self.homes[1:]:
                home.join()
            if self.violation is None:
                self._aftermath()
        except Over:
            pass
        finally:
            for home in self.homes[1:]:
                home.join()
            shutil.rmtree(self.root, ignore_errors=True)
        return self.violation

    def _aftermath(self) -> None:
        self.current = None
        try:
            self.watch.at_the_end()
            self.advance(self.now + AFTERMATH_S)
            self.watch.at_the_end()
        except Over:
            pass

    def fail(self, invariant: str, text: str) -> None:
        """A violation: the first one ends the run."""
        if self.violation is None:
            self.violation = Violation(invariant, text, self.now - START_AT)
            self.log(f"!! {invariant}: {text}")
        self.ended = True
        raise Over

    def log(self, text: str) -> None:
        """A line of the history."""
        if self._recording:
            who = f" {self.current.name}" if self.current is not None and len(self.homes) > 1 else ""
            self.history.append(f"{self.now - START_AT:8.1f}{who}  {text}")

    # ---- time

    def wait(self, home: SimHome, seconds: float) -> None:
        """Virtual time passes for a home; others run meanwhile."""
        home.wake_at = self.now + seconds
        while True:
            self._see_over()
            due = min((h for h in self.homes if not h.finished), key=lambda h: h.wake_at)
            event_at = self._events[-1][0] if self._events else float("inf")
            target = min(due.wake_at, event_at)
            if target == float("inf"):
                self._stuck()
            self.advance(target)
            if self.now < due.wake_at or due.wake_at > target:
                continue  # something happened: look again who is due
            if due is home:
                self.current = home
                return
            self.current = due
            due.go()
            home.baton.acquire()
            if self.ended:
                raise Over
            if home.wake_at <= self.now:
                self.current = home
                return

    def hand_on(self, home: SimHome) -> None:
        """A home has finished: whoever is due next goes on."""
        others = [h for h in self.homes if not h.finished]
        if others:
            due = min(others, key=lambda h: h.wake_at)
            if self.ended:
                for other in others:
                    other.go()
                return
            due.go()

    def pause(self, home: SimHome, seconds: float) -> None:
        """A controller's own pause: longer and longer while nothing happens anywhere."""
        self._quiet += 1
        if seconds < 2.0:
            self.wait(home, seconds)
            return
        longest = 240.0 if not self._anything_lives() else 5.0 if self.watch.money_is_short() else 20.0
        stretched = min(5.0 * 2 ** min(self._quiet, 6), longest)
        self.wait(home, max(seconds, stretched))

    def poke(self) -> None:
        """Something happened: controllers look closely again."""
        self._quiet = 0

    def kept(self, record: JobRecord) -> None:
        """A home has saved its record."""
        home = self.current
        assert home is not None
        if home.revision != record.revision:
            home.revision = record.revision
            self._quiet = 0
        if self._recording:
            self.log(f"saves r{record.revision} {record.status} {_attempts(record)}")

    def advance(self, until: float) -> None:
        """Let the world go on to a time."""
        self._happen_due()
        while self.now < until:
            step = until if not self._anything_lives() else min(until, self.now + TICK_S)
            if self._events:
                step = min(step, max(self._events[-1][0], self.now))
            self.now = step
            self._happen_due()
            self.cloud.settle()
            for box in self.cloud.boxes.values():
                if not box.gone:
                    box.tick()
            self.watch.tick()

    def _happen_due(self) -> None:
        while self._events and self._events[-1][0] <= self.now:
            self._happen(self._events.pop()[1])

    def _anything_lives(self) -> bool:
        return any(
            not box.gone or box.instance.terminated_at is None or box.instance.terminated_at > self.now - 60
            for box in self.cloud.boxes.values()
        )

    def _see_over(self) -> None:
        if self.ended:
            raise Over
        if self.watch.resting() and not self._more_to_come():
            self.ended = True
            raise Over
        if self.now - START_AT > max(self.schedule.calm_at, self.watch.calm_at) + CALM_BOUND_S:
            self.fail("I10", f"the job is {self.watch.words()} {CALM_BOUND_S / 3600:g} h after the last fault")

    def _stuck(self) -> None:
        self.fail("I7", f"nobody does anything any more, and the job is {self.watch.words()}")

    def _more_to_come(self) -> bool:
        """Whether the person, or another home, still does something with a job that rests."""
        if self.watch.final():
            return False
        return any(f.kind in ("person", "adopt") for _, f in self._events) or any(h.pending for h in self.homes)

    # ---- what goes wrong

    def window(self, kind: str) -> Fault | None:
        """The fault of a kind that is in force now."""
        since = self.now - START_AT
        return next((f for f in self._windows if f.kind == kind and f.at <= since < f.until), None)

    def troubled(self, *, hampered: bool = False) -> bool:
        """Whether anything that lasts is in force; ``hampered``: anything that keeps controllers from their work."""
        since = self.now - START_AT
        return any(f.at <= since < f.until and (not hampered or f.kind in HAMPERING) for f in self._windows)

    @property
    def bucket_is_down(self) -> bool:
        return self.window("bucket-down") is not None

    def moment(self, call: str, when: str) -> None:
        """A port is called, or has just done what it was asked."""
        home = self.current
        if home is None or home.quiet:
            return
        if self.ended:
            raise Over
        self.calls += 1
        if self.calls > CALLS_AT_MOST:
            self.fail("I7", f"{CALLS_AT_MOST} calls, and the job is {self.watch.words()}")
        if call in CHANGES:
            self._stop_here(home, call, when)
        if when == "before":
            self._counts[call] = self._counts.get(call, 0) + 1
        if self._windows:
            self._refuse(call, when)
        for fault in self._nth:
            if fault.what == call and fault.n <= self._counts.get(call, 0) < fault.n + fault.x:
                if call == "terminate":
                    self.watch.in_vain()
                lose(fault, call, when)

    def _stop_here(self, home: SimHome, call: str, when: str) -> None:
        if self._recording and when == "after":
            self.log(f"  {call}")
        self.points.add(f"{when} {call} {home.stage()}")
        for fault in self._stops:
            if self.now - START_AT < fault.at or self._moments.get(fault, 0) < 0:
                continue
            self._moments[fault] = self._moments.get(fault, 0) + 1
            if self._moments[fault] == fault.n:
                self._moments[fault] = -1
                self.watch.disturbed(fault.for_s)
                if fault.kind == "crash":
                    self.log(f"** the controller dies {when} {call}, for {fault.for_s:g} s {fault.what}")
                    if fault.what == "power":
                        home.store.lose_power()
                    raise Crash(fault.for_s)
                self.log(f"** the laptop sleeps {when} {call}, for {fault.for_s:g} s")
                self.nap(home, fault.for_s)
                if (call, when) == ("launch", "before"):  # on its way already: nothing can call it back
                    self.watch.in_flight_until = self.now + IN_FLIGHT_S

    def nap(self, home: SimHome, seconds: float) -> None:
        """The computer sleeps in the middle of whatever it does."""
        home.asleep = True
        self.wait(home, seconds)
        home.asleep = False
        self.log("** it wakes")

    def _refuse(self, call: str, when: str) -> None:
        since = self.now - START_AT
        for fault in self._windows:
            if fault.at <= since < fault.until:
                judge = WINDOWS.get(fault.kind)
                if judge is not None:
                    judge(self, fault, call, when)

    def _happen(self, fault: Fault) -> None:
        self.log(f"** {fault.kind} {fault.what}".rstrip())
        self.poke()
        self.watch.disturbed(0.0)
        newest = next((b for b in reversed(self.cloud.boxes.values()) if b.running), None)
        agent = newest.agent if newest is not None else None
        match fault.kind:
            case "interrupt":
                self.cloud.take_back(fault.what, fault.x)
            case "machine-dies" if newest is not None:
                self.cloud.kill(newest.instance.instance_id)
                self.watch.broke()
            case "agent-dies" | "agent-hangs" if agent is not None and agent.dead_at is None:
                agent.dead_at, agent.hung = self.now, fault.kind == "agent-hangs"
                self.watch.broke(agent)
            case "clock":
                for home in self.homes:
                    home.offset += fault.x
                    home.offset = max(-290.0, min(290.0, home.offset))
            case "price":
                for offering in self.homes[0].first.offerings:
                    base = self.cloud.prices.get(offering.pool, Decimal("0.25"))
                    self.cloud.prices[offering.pool] = base * Decimal(str(fault.x))
            case "person":
                self._person(fault.what)
            case "home-lost":
                self.homes[0].lost = True
            case "adopt":
                self._adopt(back=fault.what == "back")

    def _person(self, what: str) -> None:
        driver = next((h for h in reversed(self.homes) if h.drives() and not h.lost), None)
        if driver is not None:
            driver.ask(what)

    def _adopt(self, *, back: bool) -> None:
        if back:
            if len(self.homes) > 1 and not self.homes[0].lost:
                self.homes[0].ask("adopt")
            return
        if len(self.homes) == 1:
            self.homes.append(SimHome(self, "b"))
        self.homes[1].ask("adopt")

    @staticmethod
    def encode(status: AgentStatus) -> bytes:
        """As ``to_json`` has it, and quick."""
        return msgspec.json.encode(status)


def _attempts(record: JobRecord) -> str:
    return " ".join(
        f"{a.generation}:{a.phase}{'!' if a.handed_over else ''}{f'({a.end_reason})' if a.end_reason else ''}"
        for a in record.attempts[-3:]
    )


_EVENTS = (
    *("interrupt", "machine-dies", "agent-dies", "agent-hangs", "clock", "price", "person", "home-lost"),
    "adopt",
)
