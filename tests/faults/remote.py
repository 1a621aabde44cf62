"""SSH of the simulator: from a home to the agents of its machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.model import MachineState
from cloudtrain.provisioner.ports import RunResult, Target
from cloudtrain.trainer.contract import config_from_json
from tests.fake_agent import own_key
from tests.faults.machines import Agent, Machine

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation


class SimRemote:
    """The Remote port. What is sent is looked at for secrets."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def forget(self, target: Target) -> None:
        pass

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        self._sim.watch.leaves(command, "a remote command")
        box = self._reach(target, timeout_s)
        self._sim.moment("run", "before")
        if "stop.json" in command:
            if box.agent is not None and box.agent.stop_at is None:
                box.agent.stop_at = self._sim.now
                self._sim.log("the agent is asked to stop")
            result = RunResult(0, b"", b"") if box.agent is not None else RunResult(1, b"", b"no such folder")
        elif stdin is not None:
            result = self._ship(box, stdin)
        elif "ssh-keygen" in command:
            result = RunResult(0, f"{own_key(box.instance.instance_id)} \n".encode(), b"")
        elif "systemctl reload ssh" in command:
            box.host_key = own_key(box.instance.instance_id)
            result = RunResult(0, b"", b"")
        else:
            if command != "exit 0":
                box.extend(command)
            result = RunResult(0, b"", b"")
        self._sim.moment("run", "after")
        return result

    def _ship(self, box: Machine, stdin: BinaryIO) -> RunResult:
        if box.refuses:
            self._sim.watch.broke()
            return RunResult(1, json.dumps({"ok": False, "error": "disk full"}).encode(), b"")
        sent = json.loads(stdin.read())
        if box.agent is None:
            box.agent = Agent(
                box, config_from_json(json.dumps(sent["config"])), self._sim.now, self._sim.now, shown_at=self._sim.now
            )
            self._sim.log(f"agent {box.agent.config.generation} starts on {box.instance.instance_id}")
        elif box.agent.dead_at is not None and not box.agent.hung:
            box.agent.revive(self._sim.now)
        return RunResult(0, b'{"ok": true, "agent": "started"}\n', b"")

    def read(self, target: Target, path: str, *, offset: int, limit: int, timeout_s: float) -> bytes:
        box = self._reach(target, timeout_s)
        self._sim.moment("read", "before")
        if box.agent is None or not path.endswith("status.json"):
            return b""
        return self._sim.encode(box.agent.status())

    def _reach(self, target: Target, timeout_s: float) -> Machine:
        home = self._sim.current
        assert home is not None
        if not 0 < timeout_s < 3600:
            self._sim.fail("I7", f"a remote command may take {timeout_s} s")
        if self._sim.window("ssh-dark") is not None:
            self._sim.wait(home, timeout_s)
            raise RemoteError("no answer")
        for box in self._sim.cloud.boxes.values():
            if box.instance.endpoint == target.endpoint and box.instance.state(self._sim.now) is MachineState.RUNNING:
                if box.host_key not in {" ".join(key.split()[:2]) for key in target.host_keys}:
                    raise RemoteError("it shows a host key that is not pinned")
                return box
        raise RemoteError("connection refused")
