"""What must hold at every step of every run. docs/faults.md says each in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtrain.provisioner.codec import decode
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, JobStatus, MachineState, Phase
from cloudtrain.provisioner.names import record_key
from cloudtrain.trainer.contract import Keys, Latest, latest_from_json
from tests.fakes import START_AT
from tests.faults.jobs import JOB_ID, SECRET

if TYPE_CHECKING:
    from tests.faults.machines import Agent, Machine
    from tests.faults.simulation import Simulation

NAMES = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10")
OWNED_WITHIN_S = 120.0 + 60.0  # with a controller up; a minute for the coarse passes
IDLE_AT_MOST_S = 1800.0 + 60.0
RUNNING_WITHIN_S = 1800.0 + 120.0
SLACK_S = 25.0
OVER_AT_MOST_S = 45.0  # after trouble a controller pauses for 32 s
PRICE = "0.25"  # of a spot pool, where a schedule does not move it
PRIVATE = "PRIVATE cloudtrain"  # how the simulator's client keys begin


@dataclass(frozen=True)
class Violation:
    """Which invariant, what was seen, and when, in seconds since the start."""

    invariant: str
    text: str
    at_s: float


class Watch:
    """Sees everything, and stops the run at the first thing that must not be."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.record: JobRecord | None = None  # the bucket's copy
        self.pointer: Latest | None = None
        self.acked = 0
        self.newest_publisher = 0
        self.calm_at = 0.0  # seconds since the start
        self.in_flight_until = 0.0  # a launch that its computer slept upon comes true beside another home's machine
        self.broken = 0  # machines and agents that the schedule broke
        self.asked: str | None = None  # what the person wants
        self._unowned: dict[str, float] = {}
        self._ticked_at = sim.now
        self._away_s = 0.0
        self._last_look: dict[str, int] = {}
        self._over_s = 0.0
        self._excused: set[int] = set()

    # ---- what is told

    def disturbed(self, for_s: float) -> None:
        """A fault happens now, and lasts."""
        self.calm_at = max(self.calm_at, self.sim.now - START_AT + for_s)

    def broke(self, agent: Agent | None = None) -> None:
        """The schedule broke a machine, or its agent."""
        self.broken += 1
        if agent is not None:
            self._excused.add(id(agent))

    def in_vain(self) -> None:
        """A controller asked for a machine's end, and the schedule lost it."""
        self._unowned.clear()

    def wanted(self, what: str) -> None:
        """The person has spoken."""
        if self.asked != "cancel":
            self.asked = None if what == "resume" else what

    # ---- reading

    def driver(self) -> JobRecord | None:
        """The record as its driver has it here."""
        for home in reversed(self.sim.homes):
            if home.drives():
                return home.store.get(JOB_ID).record
        return None

    def final(self) -> bool:
        """Whether the job is over for good, everywhere."""
        mine = self.driver()
        if mine is None or not mine.status.final:
            return False
        unspent = mine.outcome is EndReason.REFUSED and self.record is not None and not self.record.attempts
        return self.record is None or self.record.status.final or unspent

    def never_was(self) -> bool:
        """Whether the job was lost with its only home before anything of it was anywhere else."""
        return self.record is None and all(h.lost for h in self.sim.homes if h.drives())

    def resting(self) -> bool:
        """Whether nothing happens until somebody says so."""
        if self.final() or self.never_was():
            return True
        mine = self.driver()
        if mine is None or mine.status is not JobStatus.STOPPED or self.record is None:
            return False
        home = next(h for h in reversed(self.sim.homes) if h.drives())
        return self.record.status is JobStatus.STOPPED and home.store.get(JOB_ID).wanted == "stop"

    def words(self) -> str:
        """The job's state, for a person."""
        mine = self.driver()
        there = self.record.status if self.record is not None else "not there"
        return f"{mine.status if mine else 'unknown'} here, {there} in the bucket"

    def _owner(self, box: Machine) -> Attempt | None:
        """The attempt that owns the machine, in the bucket's record or its driver's."""
        for record in (self.record, self.driver()):
            for attempt in record.attempts if record is not None else ():
                mine = attempt.generation == box.instance.request.attempt.generation
                known = attempt.instance_id in (None, box.instance.instance_id)
                if mine and known and attempt.phase is not Phase.ENDED:
                    return attempt
        return None

    # ---- each step

    def tick(self) -> None:
        """Time has passed."""
        now = self.sim.now
        passed, self._ticked_at = now - self._ticked_at, now
        live = [box for box in self.sim.cloud.boxes.values() if not box.gone]
        if live:
            self._ownership(live, passed)
            self._one_machine(live)
        self._getting_on(passed)
        self._money(passed)

    def _controller_works(self) -> bool:
        return any(h.drives() and h.up and not h.asleep for h in self.sim.homes) and not self.sim.troubled(
            hampered=True
        )

    def _ownership(self, live: list[Machine], passed: float) -> None:
        works = self._controller_works()
        for box in live:
            owner = self._owner(box)
            abandoned = owner is None or owner.phase is Phase.ENDING
            name = box.instance.instance_id
            if not abandoned:
                self._unowned.pop(name, None)
            elif works and self.sim.now >= box.instance.visible_at:
                self._unowned[name] = self._unowned.get(name, 0.0) + passed
                if self._unowned[name] > OWNED_WITHIN_S:
                    self.sim.fail(
                        "I1", f"{name} has no owner for {self._unowned[name]:.0f} s, with a controller at work"
                    )
            if box.running and self.sim.now - max(box.idle_since, box.instance.running_at) > IDLE_AT_MOST_S:
                self.sim.fail("I1", f"{name} does nothing for {self.sim.now - box.idle_since:.0f} s and still bills")
            if self.sim.now > max(box.hard, box.instance.running_at) + SLACK_S:
                self.sim.fail("I1", f"{name} lives past its hard deadline")

    def _one_machine(self, live: list[Machine]) -> None:
        alive = [
            box for box in live if box.instance.state(self.sim.now) in (MachineState.PENDING, MachineState.RUNNING)
        ]
        if len(alive) < 2 or self._beyond() or self.sim.now < self.in_flight_until:
            return
        alive.sort(key=lambda box: (box.instance.request.attempt.generation, box.instance.launched_at))
        for box in alive[:-1]:
            owner = self._owner(box)
            left = box.agent is not None and box.agent.phase in ("stopped", "failed", "done")
            if owner is None or not owner.handed_over or not left:
                names = " and ".join(b.instance.instance_id for b in alive)
                self.sim.fail("I2", f"{names} live at once, and {box.instance.instance_id} was not handed over")

    def _beyond(self) -> bool:
        """Whether EC2 hides a machine for longer than anybody waits: the fence alone keeps its work apart then."""
        return any(f.kind == "vanish" and f.for_s > 110 for f in self.sim.schedule.faults)

    def _getting_on(self, passed: float) -> None:
        mine = self.driver()
        since = self.sim.now - START_AT
        over = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.STOPPING)
        kept = self.record  # a home that sleeps, or is locked out, may know less than the bucket
        idle = mine is None or mine.status in over or (kept is not None and kept.status in over)
        trains = any(b.agent is not None and b.agent.useful and b.running for b in self.sim.cloud.boxes.values())
        down = not any(h.drives() and not h.lost and not h.asleep for h in self.sim.homes)
        if idle or trains or down or since < self.calm_at or self.sim.troubled():
            self._away_s = 0.0
            return
        self._away_s += min(passed, since - self.calm_at)
        if self._away_s > RUNNING_WITHIN_S:
            self.sim.fail("I10", f"nothing trains for {self._away_s:.0f} s, though nothing is wrong; {self.words()}")

    def money_is_short(self) -> bool:
        """Whether a limit is near: the controller counts on a pass each few seconds then."""
        spec = self.sim.schedule
        return spec.budget_usd is not None or spec.max_run_s is not None

    def _money(self, passed: float) -> None:
        """What the machines have cost, by their own times."""
        budget = self.sim.schedule.budget_usd
        if budget is None or self._beyond():
            return
        spent = rate = 0.0
        for box in self.sim.cloud.boxes.values():
            i, now = box.instance, self.sim.now
            end = now if i.shutting_down_at is None else min(now, i.shutting_down_at)
            price = float(self.sim.cloud.prices.get(i.request.attempt.pool, PRICE))
            free = i.reason == "Server.SpotInstanceTermination" and end - i.running_at < 3600
            if end > i.running_at and not free:
                spent += max(60.0, end - i.running_at) * price / 3600
                rate += price / 3600 if end == now else 0.0
        over = spent > float(budget) + 30.0 * rate and rate > 0
        self._over_s = self._over_s + passed if over and self._controller_works() and not self._excused else 0.0
        if self._over_s > OVER_AT_MOST_S:
            self.sim.fail("I6", f"${spent:.4f} of ${budget} is spent, and a machine still bills")

    # ---- events

    def launched(self, box: Machine) -> None:
        """EC2 has made a machine."""
        token = box.instance.request.attempt.client_token
        pool = box.instance.request.attempt.pool
        for other in self.sim.cloud.boxes.values():
            sent = other.instance.request.attempt
            if other is not box and sent.client_token == token and sent.pool != pool:
                self.sim.fail("I2", f"one client token makes machines in {pool} and in {sent.pool}")
        self._one_machine([b for b in self.sim.cloud.boxes.values() if not b.gone])

    def machine_went(self, box: Machine) -> None:
        """It is shutting down: what it had not saved is lost."""
        agent = box.agent
        if agent is None or agent.phase not in ("running", "saving") or id(agent) in self._excused:
            return
        lost = agent.step - max(agent.durable or 0, agent.start_step)
        schedule = self.sim.schedule
        bound = schedule.interval + int((SLACK_S + 20) * schedule.steps_per_s)
        if lost > bound and not any(f.kind == "bucket-down" for f in schedule.faults) and not agent.fenced:
            self.sim.fail("I4", f"{lost} steps are lost with {box.instance.instance_id}: more than an interval")

    def ended_by_us(self, box: Machine) -> None:
        """A controller ends a machine."""
        agent, mine = box.agent, self.driver()
        if agent is None or not agent.training or mine is None or id(agent) in self._excused:
            return
        owner = self._owner(box)
        leaving = mine.outcome is not None or (owner is not None and owner.leave is not None)
        if not leaving and agent.taken_at is None and not box.instance.doomed and not self._was_dark():
            self.sim.fail("I4", f"{box.instance.instance_id} is ended while it trains, at step {agent.step}")

    def _was_dark(self) -> bool:
        """Whether the machine could not be reached by any way for long."""
        dark = ("ssh-dark", "outage", "bucket-down")
        return any(f.kind in dark and f.for_s >= 1200 for f in self.sim.schedule.faults)

    def published(self, generation: int, step: int, before: Latest | None) -> None:
        """A machine has published a checkpoint."""
        if generation < self.newest_publisher:
            self.sim.fail("I3", f"generation {generation} publishes step {step} after {self.newest_publisher} did")
        self.newest_publisher = generation
        if before is not None and before.generation > generation:
            self.sim.fail("I3", f"generation {generation} publishes although {before.generation} is claimed")
        if step < self.acked:
            self.sim.fail("I4", f"step {step} is published over step {self.acked}")
        newer = [b.agent for b in self.sim.cloud.boxes.values() if b.agent is not None and b.agent.run_at is not None]
        for agent in newer:
            if agent.config.generation > generation:
                self.sim.fail("I3", f"generation {generation} publishes after {agent.config.generation} has resumed")
        self.acked = step

    def resumed(self, agent: Agent) -> None:
        """A run begins, from what is in the bucket."""
        if agent.start_step < self.acked:
            self.sim.fail("I4", f"generation {agent.config.generation} resumes at {agent.start_step}, not {self.acked}")

    def done(self, agent: Agent) -> None:
        """A run is at its end: every step was made once."""
        at = 0
        for begin, end in (
            agent.lineage if agent.step == agent.start_step else (*agent.lineage, (agent.start_step, agent.step))
        ):
            if begin != at:
                self.sim.fail("I5", f"the run goes from step {at} to {begin}")
            at = end
        if at != self.sim.schedule.total_steps:
            self.sim.fail("I5", f"the run ends at step {at}")

    def written(self, key: str, data: bytes) -> None:
        """A controller has written an object."""
        self.leaves(data.decode(errors="replace"), key, host_key=True, client_key=key.startswith("control/"))
        if key == record_key(JOB_ID):
            self._record_written(decode(data))
        elif key == Keys(f"jobs/{JOB_ID}").latest:
            pointer = latest_from_json(data)
            before = self.pointer
            if before is not None and pointer.generation < before.generation:
                self.sim.fail(
                    "I3", f"the pointer goes back from generation {before.generation} to {pointer.generation}"
                )
            if (pointer.step or 0) < self.acked:
                self.sim.fail("I4", f"the pointer loses step {self.acked}")
            self.pointer = pointer

    def _record_written(self, new: JobRecord) -> None:
        old, self.record = self.record, new
        if old is None:
            return
        if new.revision <= old.revision and new != old:
            self.sim.fail("I3", f"revision {new.revision} of the record replaces {old.revision}")
        if new.generation < old.generation:
            self.sim.fail("I3", f"the record forgets generation {old.generation}")
        current = self.sim.current
        if current is not None and new.driver != current.id:
            self.sim.fail("I3", f"home {current.name} writes the record of {new.driver}")
        if old.driver != new.driver and current is not None and "adopt" not in current.pending:
            self.sim.fail("I3", f"home {current.name} takes the record back from {old.driver}")

    def leaves(self, text: str, where: str, *, host_key: bool = False, client_key: bool = False) -> None:
        """Something goes out of this computer, or to where others may read it."""
        if SECRET in text:
            self.sim.fail("I9", f"a secret's value is in {where}")
        if PRIVATE in text and not client_key:
            self.sim.fail("I9", f"the client's private key is in {where}")
        if "PRIVATE host" in text and not host_key:
            self.sim.fail("I9", f"the host's private key is in {where}")
        if "met an error of its own" in text:
            self.sim.fail("I7", text)

    # ---- the end

    def at_the_end(self) -> None:
        """The job rests: nothing is left, and it ended as it should."""
        live = self.sim.cloud.live()
        if live:
            self.sim.fail("I1", f"{', '.join(i.instance_id for i in live)} is left when the job is {self.words()}")
        mine = self.driver()
        if mine is None or self.never_was():
            return
        if self.sim.cloud.groups or self.sim.cloud.leftovers:
            gave_up = mine.closing_tries > 250
            if not gave_up:
                self.sim.fail("I8", f"left behind: {self.sim.cloud.groups} {self.sim.cloud.leftovers}")
        self._outcome(mine)

    def _outcome(self, record: JobRecord) -> None:
        """A job gives up only for a reason."""
        schedule = self.sim.schedule
        kinds = {f.kind for f in schedule.faults}
        ran = any(a.start_step is not None for a in record.attempts)
        allowed = {EndReason.SUCCEEDED}
        if self.asked == "cancel":
            allowed.add(EndReason.CANCELLED)
        if self.asked in ("stop", "cancel"):
            allowed.add(EndReason.STOPPED)
        unreachable = any(f.kind in ("ssh-dark", "outage") and f.for_s >= 1000 for f in schedule.faults)
        if schedule.fail_at is not None or self.broken >= 3 or "boot" in kinds or unreachable:
            allowed.add(EndReason.JOB_FAILED)
        if schedule.max_run_s is not None:
            allowed.add(EndReason.MAX_RUN)
        if schedule.budget_usd is not None:
            allowed.add(EndReason.BUDGET)
        if not ran:
            allowed |= {EndReason.NO_CAPACITY, EndReason.REFUSED}
        if record.outcome not in allowed:
            self.sim.fail("I10", f"the job ends {record.outcome} ({record.detail}), {sorted(allowed)} would do")
