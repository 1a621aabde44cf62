"""The controller in a process of its own, with machines that only pretend to train.

``python benchmarks/_scale_controller.py HOME``. The real Controller, loop, store and boto3, at the pace that it has on
AWS; instead of SSH an agent that makes a step a second. What it costs is in ``cost.json``, twice a second.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from cloudtrain.provisioner.adapters import listing
from cloudtrain.provisioner.adapters.clients import preload
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.coalesce import Backoff
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller import loop
from cloudtrain.provisioner.controller.__main__ import Controller
from cloudtrain.provisioner.controller.process import try_lock
from cloudtrain.provisioner.controller.wiring import Shared
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import Endpoint
from cloudtrain.provisioner.ports import RunResult, Target
from cloudtrain.trainer.contract import AgentStatus, Progress, config_from_json, to_json

COST_FILE = "cost.json"
STARTING_GAP_S = 20.0  # moto writes an instance out in some 5 ms: listed each second, a thousand would never all start
WHOLE_STEPS = 1_000_000


class PretendedAgents:
    """The Remote port: each machine's agent trains from its start until it is asked to stop."""

    def __init__(self) -> None:
        self._agents: dict[Endpoint, tuple[int, float]] = {}  # generation, and since when it trains
        self._stopped: set[Endpoint] = set()

    def __len__(self) -> int:
        return len(self._agents)

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        at = target.endpoint
        if "ssh-keygen" in command:
            digest = hashlib.sha256(str(at).encode()).hexdigest()
            return RunResult(0, f"ssh-ed25519 {digest}{digest[:4]}\n".encode(), b"")
        if "stop.json" in command:
            self._stopped.add(at)
        elif stdin is not None:
            self._agents[at] = (_generation(stdin), time.time())
            return RunResult(0, b'{"ok": true}\n', b"")
        return RunResult(0, b"", b"")

    def read(self, target: Target, path: str, *, offset: int, limit: int, timeout_s: float) -> bytes:
        agent = self._agents.get(target.endpoint)
        if agent is None or not path.endswith("status.json"):
            return b""
        generation, since = agent
        trained = time.time() - since
        phase = "stopped" if target.endpoint in self._stopped else "running"
        status = AgentStatus(generation, phase, time.time(), Progress(1 + int(trained), WHOLE_STEPS, 0.5))
        return to_json(status).encode()

    def forget(self, target: Target) -> None:
        pass


def _generation(bundle: BinaryIO) -> int:
    with tarfile.open(fileobj=bundle, mode="r|*") as tar:
        for member in tar:
            if member.name == "incoming/agent.json":
                file = tar.extractfile(member)
                assert file is not None
                return config_from_json(file.read()).generation
    raise AssertionError("a bundle without a configuration")


class Costs:
    """Passes that were made, and the longest time between two of one job."""

    def __init__(self) -> None:
        self.passes = 0
        self.longest_s = 0.0
        self._last: dict[int, float] = {}
        self._lock = threading.Lock()
        self._pass_once = loop.JobLoop.pass_once

    def watch(self) -> None:
        """Count from now on."""
        costs = self

        def pass_once(self: loop.JobLoop) -> bool:
            changed = costs._pass_once(self)
            costs.note(id(self))
            return changed

        loop.JobLoop.pass_once = pass_once  # type: ignore[method-assign]

    def note(self, job: int) -> None:
        now = time.monotonic()
        with self._lock:
            self.passes += 1
            self.longest_s = max(self.longest_s, now - self._last.get(job, now))
            self._last[job] = now

    def write(self, path: Path, trains: int) -> None:
        """Whole or not at all. The longest time is that since the last writing."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        memory = {name: int(status[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM")}
        with self._lock:
            document = {
                "at": time.monotonic(),
                "cpu_s": time.process_time(),
                "passes": self.passes,
                "longest_s": self.longest_s,
                "trains": trains,
                "threads": threading.active_count(),
                "rss_mb": memory["VmRSS"],
                "most_rss_mb": memory["VmHWM"],
            }
        whole = path.with_name(f".{path.name}")
        whole.write_text(json.dumps(document))
        whole.replace(path)

    def fresh(self) -> None:
        """Forget the longest time so far."""
        with self._lock:
            self.longest_s = 0.0


def list_slowly(starting: threading.Event) -> None:
    """Leave the cloud time to start machines, while any start. What is measured afterwards is at AWS's pace."""
    wait = Backoff.wait

    def slowly(self: Backoff) -> None:
        wait(self)
        if starting.is_set():
            time.sleep(STARTING_GAP_S)

    Backoff.wait = slowly  # type: ignore[method-assign]


def main() -> int:
    """Drive the home's jobs until none is live."""
    root = Path(sys.argv[1])
    home = Home(root, root / "local")
    loop.PAUSE_S["local"] = loop.PAUSE_S["aws"]
    listing.GAP_S["local"] = listing.GAP_S["aws"]
    lock = try_lock(home)
    assert lock is not None
    agents, costs = PretendedAgents(), Costs()
    costs.watch()
    starting = threading.Event()
    starting.set()
    list_slowly(starting)

    def report() -> None:
        while True:
            if (root / "fresh").exists():
                (root / "fresh").unlink()
                starting.clear()
                costs.fresh()
            costs.write(root / COST_FILE, len(agents))
            time.sleep(0.5)

    preload()
    threading.Thread(target=report, daemon=True).start()
    clock = SystemClock()
    Controller(home, SqliteStore(home.db), clock, Shared(agents)).run()
    costs.write(root / COST_FILE, len(agents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
