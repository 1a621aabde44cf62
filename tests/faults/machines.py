"""A machine of the simulator: its dead-man switch as the user data set it, and an agent that trains, saves and leaves
by the real one's rules (``may_publish`` is the real one)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudtrain.provisioner.model import MachineState
from cloudtrain.trainer.agent.decide_publish import Publish
from cloudtrain.trainer.contract import AgentConfig, AgentStatus, Keys, Latest, Progress, latest_from_json, to_json
from tests.fakes import FakeInstance

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

SAVE_S = 6.0  # from the moment a checkpoint is taken to its being published
RESTORE_S = 8.0
BEAT_EVERY_S = 60.0  # trainer/agent/courier.py
AGENT_BACK_S = 30.0  # systemd starts an agent again that has died
TAKEN_LATE_S = 300.0  # trainer/agent/headway.py: EC2 did not take the machine that it announced to take
UNDELIVERED_S = 7200.0  # the same: the bucket refuses results

_AT = re.compile(r"^\s*at=(\d+)$", re.MULTILINE)
_HARD = re.compile(r"^\s*hard=(\d+)$", re.MULTILINE)
_ROUND = re.compile(r"while sleep (\d+)")
_STILL = re.compile(r'"\$still" -ge (\d+)')
_THROWN_IN = re.compile(r"ed25519_public: (\S+ \S+)")
_EXTEND = re.compile(r'"\$arm" (\d+)')


@dataclass
class Machine:
    """What lives on an instance. ``deadline``: the switch's time; ``hard``: it is never moved past this."""

    sim: Simulation
    instance: FakeInstance
    deadline: float
    hard: float
    still_s: float  # its work stands still for so long: the switch's watch ends it
    host_key: str
    agent: Agent | None = None
    refuses: bool = False  # the disk is full: no agent can be unpacked
    idle_since: float = 0.0  # since when it has done nothing that anybody needs
    gone: bool = False
    notice_at: float | None = None  # what the metadata service says: EC2 takes it then

    @classmethod
    def booted(cls, sim: Simulation, instance: FakeInstance) -> Machine:
        """As its user data tells it."""
        text = instance.request.user_data
        boot, hard, key = _AT.search(text), _HARD.search(text), _THROWN_IN.search(text)
        assert boot and hard and key, "the user data's switch is not understood any more"
        still, each = _STILL.search(text), _ROUND.search(text)
        still_s = float(still[1]) * float(each[1]) if still and each else float("inf")
        limit = float(hard[1]) or float("inf")
        return cls(sim, instance, float(boot[1]), limit, still_s, key[1], idle_since=instance.launched_at)

    def extend(self, command: str) -> None:
        """The command that moves the deadline."""
        at = _EXTEND.search(command)
        assert at is not None, "the command that moves the deadline is not understood any more"
        self.deadline = min(float(at[1]), self.hard)

    @property
    def running(self) -> bool:
        """Whether the cloud runs it now."""
        return self.instance.state(self.sim.now) is MachineState.RUNNING

    def tick(self) -> None:
        """Let time pass up to now, or to its end."""
        end = self.instance.shutting_down_at
        now = self.sim.now if end is None else min(self.sim.now, end)
        if now >= self.instance.running_at and now >= self.deadline:
            self.sim.log(f"{self.instance.instance_id}: its deadline ends it")
            self.off(max(self.deadline, self.instance.running_at))
            now = min(now, self.instance.shutting_down_at or now)
        if self.agent is not None:
            self.agent.tick(now)
        if self.agent is not None and self.agent.useful:
            self.idle_since = now
        elif now - max(self.idle_since, self.instance.running_at) >= self.still_s:
            self.sim.log(f"{self.instance.instance_id}: its work stands still, its switch ends it")
            self.off(now)
        if (
            not self.gone
            and self.instance.shutting_down_at is not None
            and self.sim.now >= self.instance.shutting_down_at
        ):
            self.gone = True
            self.sim.watch.machine_went(self)

    def off(self, at: float) -> None:
        """It powers itself off, which ends it."""
        self.sim.cloud.power_off(self.instance, at)


@dataclass
class Agent:
    """One started agent, ticked with at most ten seconds between."""

    machine: Machine
    config: AgentConfig
    first_at: float  # its first start on this machine
    begun_at: float = 0.0
    beat_at: float = 0.0
    phase: str = "restoring"
    start_step: int = 0
    step: int = 0
    durable: int | None = None
    lineage: tuple[tuple[int, int], ...] = ()  # (from, to] of every stretch that led to this state, oldest first
    run_at: float | None = None
    ran_s: float = 0.0
    saving: tuple[int, float, tuple[tuple[int, int], ...]] | None = None  # step, when it is whole, lineage
    taken_at: float | None = None
    stop_at: float | None = None
    dead_at: float | None = None  # the process is gone, or stands still
    hung: bool = False  # nothing brings it back
    ending: str | None = None
    failure: str | None = None
    error: str | None = None
    fenced: bool = False
    blind: bool = False  # the metadata service does not answer
    heard_at: float = 0.0
    shown_at: float = 0.0
    last_loss: int = 0
    published: list[int] = field(default_factory=list)

    @property
    def sim(self) -> Simulation:
        return self.machine.sim

    @property
    def training(self) -> bool:
        """Whether it makes progress that counts."""
        return self.phase == "running" and self.dead_at is None and not self.fenced

    @property
    def useful(self) -> bool:
        """Whether anybody needs the machine: it trains, or brings what it has to a bucket that is down."""
        waits = self.phase in ("restoring", "saving")
        return self.dead_at is None and (self.training or waits)

    def status(self) -> AgentStatus:
        """``status.json`` as it was last written."""
        began = self.run_at is not None
        return AgentStatus(
            generation=self.config.generation,
            phase=self.phase,
            heartbeat_at=self.shown_at,
            progress=Progress(step=self.step if began else 0, total_steps=self.total, done=self.phase == "done"),
            durable_step=self.durable,
            resumed_step=(self.start_step or None) if began else None,
            notice_deadline_at=self.taken_at,
            run_seconds=self.ran_s,
            fenced=self.fenced,
            error=self.error,
            failure=self.failure,
        )

    @property
    def total(self) -> int:
        return self.sim.schedule.total_steps

    def tick(self, now: float) -> None:
        """Up to ``now``."""
        if self.dead_at is not None:
            if self.hung or now - self.dead_at < AGENT_BACK_S:
                return
            self.revive(now)
        self.shown_at = now
        if self.phase in ("done", "failed", "stopped"):
            if self.taken_at is not None and now - self.taken_at > TAKEN_LATE_S:
                self.machine.off(now)
            return
        self._look(now)
        if self.phase == "restoring":
            self._restore(now)
        if self.phase == "running":
            self._train(now)
        if self.saving is not None and now >= self.saving[1]:
            self._publish()
        if self.phase == "saving" and self.saving is None:
            self._deliver(now)

    def revive(self, now: float) -> None:
        """The agent's process is started again: what ran is killed, and it resumes from the bucket."""
        self.dead_at, self.saving = None, None
        if self.phase in ("running", "saving") and self.ending is None:
            self.phase, self.begun_at = "restoring", now

    # ---- inside

    def _look(self, now: float) -> None:
        """For what may end it: a notice, a stop request, max_run, a run that hangs, a newer generation."""
        if self.machine.notice_at is not None and self.taken_at is None and not self.blind:
            self.taken_at = self.machine.notice_at
            self._stop(now, "stopped")
        if self.stop_at is not None and self.ending is None:
            self._stop(now, "stopped")
        limit = self.config.limit_s
        if limit is not None and now - self.first_at > limit and self.ending is None:
            self.error, self.failure = f"{self.config.limit} is over", self.config.limit
            self._stop(now, "failed")
        if now - self.beat_at > BEAT_EVERY_S and not self.sim.bucket_is_down:
            self.beat_at = now
            self.sim.bucket.objects[Keys(self.config.prefix).beat(self.config.generation)] = self.sim.encode(
                self.status()
            )
        if now - self.heard_at > 20 and not self.sim.bucket_is_down:
            self.heard_at = now
            latest = self._latest()
            if latest is not None and latest.generation > self.config.generation:
                self._fence(now)

    def _stop(self, now: float, phase: str) -> None:
        if self.phase == "running":
            self._count(now)
            if self.step > (self.durable or 0):
                self.saving = (self.step, now + SAVE_S, self._line())
        self.phase, self.ending = "saving", phase

    def _fence(self, now: float) -> None:
        self._count(now)
        self.fenced, self.phase, self.ending, self.saving = True, "stopped", "stopped", None
        self.sim.log(f"agent {self.config.generation}: a newer generation exists, it leaves")
        self.machine.off(now)

    def _restore(self, now: float) -> None:
        if now - self.begun_at < RESTORE_S or self.sim.bucket_is_down:
            return
        latest = self._latest()
        if latest is not None and latest.generation > self.config.generation:
            self._fence(now)
            return
        self.start_step = self.step = (latest.step or 0) if latest is not None else 0
        self.durable = self.start_step or None
        self.lineage = self.sim.lineages.get(latest.key or "", ()) if latest is not None else ()
        self.run_at, self.phase, self.shown_at = now, "running", now
        self.sim.watch.resumed(self)
        self.sim.poke()

    def _count(self, now: float) -> None:
        """The steps that were made."""
        if self.run_at is None or self.phase != "running":
            return
        self.ran_s = now - self.run_at
        done = self.start_step + int(max(0.0, now - self.run_at) * self.sim.schedule.steps_per_s)
        self.step = min(self.total, max(self.step, done))

    def _line(self) -> tuple[tuple[int, int], ...]:
        return (*self.lineage, (self.start_step, self.step)) if self.step > self.start_step else self.lineage

    def _train(self, now: float) -> None:
        self._count(now)
        fail_at = self.sim.schedule.fail_at
        if fail_at is not None and self.step >= fail_at:
            self.error, self.failure = "the run exited with 1", "job"
            self._stop(now, "failed")
        elif self.step >= self.total:
            self._stop(now, "done")
        elif self.saving is None and self.step - (self.durable or self.start_step) >= self.sim.schedule.interval:
            self.saving = (self.step, now + SAVE_S, self._line())

    def _latest(self) -> Latest | None:
        found = self.sim.bucket.objects.get(Keys(self.config.prefix).latest)
        return None if found is None else latest_from_json(found)

    def _publish(self) -> None:
        if self.sim.bucket_is_down or self.saving is None:
            return
        step, _, lineage = self.saving
        keys, generation = Keys(self.config.prefix), self.config.generation
        latest, key = self._latest(), keys.checkpoint(generation, step)
        verdict = self.sim.may_publish(latest, generation=generation, step=step, key=key)
        if verdict is Publish.FENCED:
            self._fence(self.shown_at)
            return
        if verdict is Publish.UNCLAIMED:
            return  # as the real one: an error, and again
        self.saving = None
        if verdict is not Publish.PUBLISH:
            return
        self.sim.lineages[key] = lineage
        self.sim.bucket.objects[keys.latest] = to_json(Latest(generation, step, key, "x")).encode()
        self.sim.watch.published(generation, step, latest)
        self.durable = step
        self.published.append(step)

    def _deliver(self, now: float) -> None:
        if self.sim.bucket_is_down:
            return
        keys, generation = Keys(self.config.prefix), self.config.generation
        latest = self._latest()
        if latest is not None and latest.generation > generation:
            self._fence(now)
            return
        self.phase = self.ending or "stopped"
        if self.phase == "done":
            self.sim.watch.done(self)
        objects = self.sim.bucket.objects
        objects[keys.log(generation)] = b"log\n"
        objects[f"{keys.outputs()}.json"] = b'{"files": []}'
        objects[keys.outcome(generation)] = self.sim.encode(self.status())
        self.sim.log(f"agent {generation}: {self.phase} at step {self.step}")
        self.sim.poke()
        if self.taken_at is None:
            self.machine.off(now)
