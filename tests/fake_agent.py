"""A world on a fake clock: the fake cloud, a bucket, and agents that train, save and leave as the real one does."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass, field
from typing import BinaryIO

from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.model import MachineState
from cloudtrain.provisioner.ports import RunResult, Target
from cloudtrain.trainer.contract import (
    AgentConfig,
    AgentStatus,
    Keys,
    Latest,
    Progress,
    config_from_json,
    latest_from_json,
    to_json,
)
from tests.fakes import FakeClock, FakeCloud, FakeInstance, FakeObjectStore

STEPS_PER_S = 1.0
SAVE_EVERY_S = 60.0
SAVE_S = 5.0
BEAT_EVERY_S = 60.0


@dataclass
class FakeAgent:
    """One started agent. Trains one step a second, publishes a checkpoint a minute, under its generation."""

    config: AgentConfig
    instance_id: str
    started_at: float
    total_steps: int
    start_step: int
    phase: str = "running"
    step: int = 0
    durable: int | None = None
    notice_deadline_at: float | None = None
    fenced: bool = False
    stop_at: float | None = None
    frozen_at: float | None = None  # its status no longer changes
    beat_at: float = 0.0
    failure: str = "job"
    hung: bool = False  # starting it again does not help
    began: bool = True  # `run` has: else it is still restoring
    rejected: tuple[str, ...] = ()
    saved_steps: list[int] = field(default_factory=list)

    def status(self, now: float) -> AgentStatus:
        return AgentStatus(
            generation=self.config.generation,
            phase=self.phase,
            heartbeat_at=now if self.frozen_at is None else self.frozen_at,
            progress=Progress(
                step=self.step if self.began else 0,
                total_steps=self.total_steps,
                loss=1 / (1 + self.step),
                done=self.phase == "done",
            ),
            durable_step=self.durable,
            resumed_step=(self.start_step or None) if self.began else None,
            notice_deadline_at=self.notice_deadline_at,
            run_seconds=(now if self.frozen_at is None else self.frozen_at) - self.started_at if self.began else 0.0,
            fenced=self.fenced,
            rejected=self.rejected,
            error="the run exited with 1" if self.phase == "failed" else None,
            failure=self.failure if self.phase == "failed" else None,
        )


class World:
    """Everything outside the controller. ``clock.sleep`` moves the agents too. Implements the Remote port."""

    def __init__(self, *, total_steps: int = 300, boot_s: float = 30.0, fail_at: int | None = None) -> None:
        self.clock = WorldClock(self)
        self.cloud = FakeCloud(self.clock, boot_s=boot_s)
        self.objects = FakeObjectStore()
        self.agents: dict[str, FakeAgent] = {}
        self.total_steps = total_steps
        self.fail_at = fail_at
        self.cut = False
        self.blind = False  # the metadata service tells the agents of no notice
        self.rejected: tuple[str, ...] = ()  # checkpoints that later agents refuse
        self.most_live = 0
        self.most_live_of_one = 0
        self.host_keys: dict[str, str] = {}  # instance id -> what its sshd serves with, where it has changed that
        self.refused_deadlines = 0  # so many machines, from now on, can't move their dead-man switch
        self.refused_keys = 0  # connections that showed a host key which was not pinned

    def tick(self) -> None:
        now = self.clock.now()
        live = self.cloud.live()
        fresh = [i for i in live if not i.doomed and i.state(now) is not MachineState.SHUTTING_DOWN]
        self.most_live = max(self.most_live, len(fresh))
        for generation in {i.request.attempt.generation for i in live}:
            same = [i for i in live if i.request.attempt.generation == generation]
            self.most_live_of_one = max(self.most_live_of_one, len(same))
        for agent in self.agents.values():
            instance = self.cloud.instances[agent.instance_id]
            if instance.state(now) is MachineState.RUNNING:
                self._advance(agent, now)

    def _advance(self, agent: FakeAgent, now: float) -> None:
        if agent.frozen_at is None and now - agent.beat_at >= BEAT_EVERY_S:
            agent.beat_at = now
            beat = Keys(agent.config.prefix).beat(agent.config.generation)
            self.objects.objects[beat] = to_json(agent.status(now)).encode()
        if agent.phase != "running" or agent.frozen_at is not None:
            return
        instance = self.cloud.instances[agent.instance_id]
        if instance.doomed and agent.notice_deadline_at is None and not self.blind:
            agent.notice_deadline_at = instance.doomed[0][0]
            agent.stop_at = now + SAVE_S
        agent.step = min(self.total_steps, agent.start_step + int((now - agent.started_at) * STEPS_PER_S))
        if self.fail_at is not None and agent.step >= self.fail_at:
            self._leave(agent, "failed", now)
        elif agent.step >= self.total_steps:
            if self._publish(agent):
                self._leave(agent, "done", now)
        elif agent.config.limit_s is not None and now - agent.started_at > agent.config.limit_s:
            self._publish(agent)
            agent.failure = agent.config.limit
            self._leave(agent, "failed", now)
        elif agent.stop_at is not None and now >= agent.stop_at:
            self._publish(agent)
            agent.phase = "stopped"
            if agent.notice_deadline_at is None:
                self._leave(agent, "stopped", now)
        elif agent.step - (agent.durable or agent.start_step) >= SAVE_EVERY_S * STEPS_PER_S:
            self._publish(agent)

    def _publish(self, agent: FakeAgent) -> bool:
        """Compare-and-set under the generation, as the real agent does."""
        keys = Keys(agent.config.prefix)
        found = self.objects.objects.get(keys.latest)
        latest = latest_from_json(found) if found else Latest(0)
        if latest.generation != agent.config.generation:
            agent.fenced, agent.phase = True, "stopped"
            return False
        new = Latest(agent.config.generation, agent.step, keys.checkpoint(agent.config.generation, agent.step), "x")
        self.objects.objects[keys.latest] = to_json(new).encode()
        agent.durable = agent.step
        agent.saved_steps.append(agent.step)
        return True

    def _leave(self, agent: FakeAgent, phase: str, now: float) -> None:
        agent.phase = phase
        keys = Keys(agent.config.prefix)
        self.objects.objects[keys.log(agent.config.generation)] = b"log\n"
        self.objects.objects[f"{keys.outputs()}.json"] = b'{"files": []}'
        self.objects.objects[keys.outcome(agent.config.generation)] = to_json(agent.status(now)).encode()
        self.cloud.kill(agent.instance_id, "Client.InstanceInitiatedShutdown")

    # ---- the Remote port

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        instance_id = self._reach(target)
        if "ssh-keygen" in command:
            return self._moment("offer", RunResult(0, f"{own_key(instance_id)} \n".encode(), b""))
        if "systemctl reload ssh" in command:
            self.cloud.faults.moment("change", "before")
            self.host_keys[instance_id] = own_key(instance_id)
            self.cloud.faults.moment("change", "after")
            return RunResult(0, b"", b"")
        if "stop.json" in command:
            agent = self.agents[instance_id]
            agent.stop_at = self.clock.now() + SAVE_S
            if "interruption" in command:
                agent.notice_deadline_at = self.clock.now() + 90
            return RunResult(0, b"", b"")
        if "cloudtrain/arm" in command and self.refused_deadlines > 0:
            self.refused_deadlines -= 1
            return RunResult(
                1, b"", b"printf: I/O error\ncloudtrain: is the disk full?, the deadline stays as it was\n"
            )
        if stdin is None:
            return RunResult(0, b"", b"")
        with tarfile.open(fileobj=io.BytesIO(stdin.read())) as tar:
            member = tar.extractfile("incoming/agent.json")
            assert member is not None
            config = config_from_json(member.read())
        if instance_id not in self.agents:
            latest = latest_from_json(self.objects.objects[Keys(config.prefix).latest])
            start = latest.step or 0
            self.agents[instance_id] = FakeAgent(
                config, instance_id, self.clock.now(), self.total_steps, start, step=start, durable=latest.step
            )
        agent = self.agents[instance_id]
        agent.rejected = self.rejected if agent.config.generation > 1 else ()
        if not agent.hung:
            agent.frozen_at = None
        return RunResult(0, b'{"ok": true, "agent": "started"}\n', b"")

    def read(self, target: Target, path: str, *, offset: int, limit: int, timeout_s: float) -> bytes:
        instance_id = self._reach(target)
        agent = self.agents.get(instance_id)
        if agent is None or not path.endswith("status.json"):
            return b""
        return to_json(agent.status(self.clock.now())).encode()

    def forget(self, target: Target) -> None:
        pass

    def _reach(self, target: Target) -> str:
        now = self.clock.now()
        for instance in self.cloud.instances.values():
            if instance.endpoint == target.endpoint and instance.state(now) is MachineState.RUNNING and not self.cut:
                self._show_key(instance, target)
                return instance.instance_id
        raise RemoteError("no route to the machine")

    def _show_key(self, instance: FakeInstance, target: Target) -> None:
        served = self.host_keys.get(instance.instance_id, thrown_in_key(instance.request.user_data))
        if served not in {" ".join(key.split()[:2]) for key in target.host_keys}:
            self.refused_keys += 1
            raise RemoteError("it shows a host key that is not pinned")

    def _moment(self, call: str, answer: RunResult) -> RunResult:
        self.cloud.faults.moment(call, "before")
        self.cloud.faults.moment(call, "after")
        return answer


def own_key(instance_id: str) -> str:
    """The host key that a machine makes for itself: the same whenever it is asked."""
    digest = hashlib.sha256(instance_id.encode()).hexdigest()
    return f"ssh-ed25519 {digest}{digest[:4]}"


def thrown_in_key(user_data: str) -> str:
    """The public host key of the user data."""
    found = re.search(r"ed25519_public: (\S+ \S+)", user_data)
    assert found is not None
    return found[1]


class WorldClock(FakeClock):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._world.tick()
