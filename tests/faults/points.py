"""External effects of a real process as points at which a test lets something happen: kill -9, or a signal elsewhere.

Works in the process itself, put there by ``site/sitecustomize.py``: the shipped program has no switch for it. A plan
(``Plan``, in a file that is read again before each effect) says which point fires, once; every point that is passed is
appended to its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

READS = ("Describe", "Get", "List", "Head", "Decode", "Simulate")
TWICE_S = 0.05
DRAWN = re.compile(r"[0-9a-f]{16,}")  # parts of names that are new each time


@dataclass(frozen=True)
class Point:
    """The ``number``-th effect of a name, in one process role, and the side of it."""

    role: str
    name: str
    number: int
    moment: str

    def __str__(self) -> str:
        return f"{self.moment} {self.role}'s {self.name} #{self.number}"


@dataclass(frozen=True)
class Plan:
    """What is to happen. ``action``: "kill" the process itself, "int" or "int2" (twice, 50 ms apart) the process whose
    id is in ``pid_file``, "none" (only write down what passes). ``number`` is new with each plan."""

    number: int
    log: str
    action: str = "none"
    at: Point | None = None
    pid_file: str = ""

    def write(self, path: Path) -> None:
        """Put it where the processes look, whole."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def read(path: Path) -> Plan:
    """The plan in a file."""
    found = json.loads(path.read_text())
    at = Point(**found.pop("at")) if found["at"] else found.pop("at")
    return Plan(**found, at=at)


def passed(log: Path) -> list[Point]:
    """The points in a log, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Point(**json.loads(line)) for line in lines]


def fired(plan: Plan) -> bool:
    """Whether the plan's point was met."""
    return _marker(plan).exists()


def _marker(plan: Plan) -> Path:
    return Path(f"{plan.log}.fired")


class Points:
    """The points of this process."""

    def __init__(self, role: str, path: Path) -> None:
        self._role = role
        self._path = path
        self._lock = threading.Lock()
        self._plan: int | None = None
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """One effect."""
        plan = read(self._path)
        with self._lock:
            if plan.number != self._plan:
                self._plan = plan.number
                self._counts.clear()
            self._counts[name] += 1
            point = Point(self._role, name, self._counts[name], "before")
        self._at(plan, point)
        yield
        self._at(plan, replace(point, moment="after"))

    def _at(self, plan: Plan, point: Point) -> None:
        with Path(plan.log).open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(point)) + "\n")
        if point == plan.at:
            try:
                _marker(plan).touch(exist_ok=False)
            except FileExistsError:
                return
            _happen(plan)


def _happen(plan: Plan) -> None:
    if plan.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    pid = int(Path(plan.pid_file).read_text()) if plan.pid_file else os.getpid()
    os.kill(pid, signal.SIGINT)
    if plan.action == "int2":
        threading.Thread(target=_later, args=(pid,)).start()
    time.sleep(0.01)  # a signal to ourselves is handled between two lines of the main thread


def _later(pid: int) -> None:
    time.sleep(TWICE_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


def install(role: str, path: str) -> None:
    """Put the points into this process: calls that change something in the cloud, commands over SSH, the way home, and
    of the command line also what it leaves on this computer."""
    points = Points(role, Path(path))
    _patch_calls(points)
    _patch_ssh(points)
    if role == "controller":
        from cloudtrain.provisioner.controller import effects

        _wrap(points, effects, "collect")
        return
    from cloudtrain.provisioner.adapters.store import SqliteStore
    from cloudtrain.provisioner.launch import launching

    for name in ("take", "keep_secrets", "ensure"):
        _wrap(points, launching, name)
    _wrap(points, SqliteStore, "add")


def _patch_calls(points: Points) -> None:
    import botocore.client

    base: Any = botocore.client.BaseClient  # the stubs keep what is private to themselves
    plain: Callable[..., Any] = base._make_api_call

    def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        if operation.startswith(READS):
            return plain(self, operation, parameters)
        with points.around(_call_name(self.meta.service_model.service_name, operation, parameters)):
            return plain(self, operation, parameters)

    base._make_api_call = call


def _call_name(service: str, operation: str, parameters: dict[str, Any]) -> str:
    dry = "(dry)" if parameters.get("DryRun") else ""
    key = DRAWN.sub("…", str(parameters.get("Key", "")).rpartition("/")[2])
    return " ".join(filter(None, (f"{service}.{operation}{dry}", key)))


def _patch_ssh(points: Points) -> None:
    from cloudtrain.provisioner.adapters.ssh import ParamikoRemote

    plain = ParamikoRemote.run

    def run(self: Any, target: Any, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> Any:
        if command.startswith("tail -c"):
            return plain(self, target, command, stdin=stdin, timeout_s=timeout_s)
        name = "ssh.ship" if stdin is not None else "ssh.stop" if "stop.json" in command else "ssh.extend"
        with points.around(name):
            return plain(self, target, command, stdin=stdin, timeout_s=timeout_s)

    ParamikoRemote.run = run  # type: ignore[method-assign] # this process is a test's


def _wrap(points: Points, owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with points.around(name):
            return plain(*args, **kwargs)

    setattr(owner, name, call)
