"""A home of the simulator: its store, its files, its controller, and the person who sits there."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

from cloudtrain.provisioner.adapters.userdata import cloud_config
from cloudtrain.provisioner.controller import __main__ as controller_main
from cloudtrain.provisioner.controller import attempt_files, effects, journal, loop, observe, takeover
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.controller.effects import Effects
from cloudtrain.provisioner.controller.job_secrets import keep_secrets
from cloudtrain.provisioner.controller.journal import Journal
from cloudtrain.provisioner.controller.loop import Parts
from cloudtrain.provisioner.controller.observe import Observer
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.errors import CloudtrainError, NotFound
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import adopting
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.trainer.contract import AgentConfig
from tests.faults.clouds import SimStore
from tests.faults.jobs import JOB_ID, SECRET, SECRET_NAME
from tests.faults.remote import SimRemote

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

ADOPT_AGAIN_S = 30.0


class HomeClock:
    """A process's clock: it may be off from its start on, and follows no step after that (adapters/clock.py)."""

    def __init__(self, home: SimHome) -> None:
        self._home = home
        self._offset = 0.0

    def start(self) -> None:
        """A process starts, and reads the computer's clock."""
        self._offset = self._home.offset

    def now(self) -> float:
        return self._home.sim.now + self._offset

    def sleep(self, seconds: float) -> None:
        self._home.sim.pause(self._home, seconds)


class SimHome:
    """One computer with a CLOUDTRAIN_HOME."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.offset = 0.0
        self.wake_at = float("inf")
        self.revision = -1
        self.finished = False
        self.lost = False
        self.asleep = False
        self.quiet = False  # its calls meet no faults: something that the simulator does itself
        self.pending: list[str] = []
        self.baton = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        root = sim.root / name
        root.mkdir()
        (root / "id").write_text(f"home-{name}")
        self.home = Home(root, root / "local")
        self.id = f"home-{name}"
        self.store = SimStore(sim)
        self.clock = HomeClock(self)
        self.up = False

    # ---- the person

    def launch(self, record: JobRecord) -> None:
        """The job is stored here, and its controller starts."""
        self.first = replace(record, driver=self.id, results=str(self.sim.root / "results"))
        self.store.add(self.first)
        keep_secrets(record.spec, {SECRET_NAME: SECRET}, self.home.job_dir(JOB_ID))
        self.wake_at = self.sim.now

    def ask(self, what: str) -> None:
        """The person types a command here, as soon as the computer is awake."""
        self.pending.append(what)
        if not self.asleep and not self.up:
            self.wake_at = self.sim.now
        elif not self.asleep:
            self._obey()

    def _obey(self) -> None:
        """What needs no process of its own: it is written to the store."""
        for what in [w for w in self.pending if w != "adopt"]:
            self.pending.remove(what)
            stored = self.store.get(JOB_ID)
            if not self.drives() or (what == "resume" and stored.wanted == "cancel"):
                continue  # the command refuses
            self.store.want(JOB_ID, {"stop": "stop", "resume": "run", "cancel": "cancel"}[what])
            self.sim.watch.wanted(what)
            self.sim.log(f"** the person says {what}")
            self.sim.poke()

    def drives(self) -> bool:
        """Whether this home believes that the job is its own."""
        try:
            return self.store.get(JOB_ID).record.driver == self.id
        except NotFound:
            return False

    def stage(self) -> str:
        """Where the job stands here, in a word or two."""
        try:
            record = self.store.get(JOB_ID).record
        except NotFound:
            return "adopting"
        newest = record.attempts[-1] if record.attempts else None
        return f"{record.status}/{newest.phase if newest is not None else '-'}"

    # ---- its life

    def go(self) -> None:
        """Hand the baton to this home."""
        if self._thread is None and self is not self.sim.homes[0]:
            self._thread = threading.Thread(target=self.main, name=self.name, daemon=True)
            self._thread.start()
        else:
            self.baton.release()

    def join(self) -> None:
        """Until its thread is over; raises what went wrong there."""
        if self._thread is not None:
            self._thread.join(60)
            if self._error is not None:
                raise self._error

    def main(self) -> None:
        """From the first start to the end of the run."""
        from tests.faults.simulation import Over

        try:
            self.sim.wait(self, 0.0)
            while True:
                self._life()
        except Over:
            pass
        except BaseException as error:
            self._error = error
            self.sim.ended = True
            if self._thread is None:
                raise
        finally:
            self.finished = True
            self.sim.ended = True
            self.sim.hand_on(self)

    def _life(self) -> None:
        """Start, drive, die or rest, and wait for the next thing."""
        from tests.faults.simulation import Crash

        while self.lost:
            self.pending.clear()
            self.sim.wait(self, float("inf"))
        self.up = True
        self.clock.start()
        try:
            self._obey()
            if "adopt" in self.pending and not self._adopt():
                self.up = False
                self.sim.wait(self, ADOPT_AGAIN_S)
                return
            if self.drives() and not self.store.get(JOB_ID).resting:
                controller_main.Controller(self.home, self.store, self.clock)._drive(JOB_ID)
                return
        except Crash as crash:
            self.up = False
            self.sim.wait(self, crash.down_s)
            self.sim.log("** a fresh controller")
            return
        except CloudtrainError as error:  # as a process that can't even start: somebody starts it again
            self.sim.log(f"the controller ends: {error}")
            self.up = False
            self.sim.wait(self, 60.0)
            return
        finally:
            self.up = False
        self.sim.wait(self, float("inf") if not self.pending else 1.0)

    def _adopt(self) -> bool:
        entry = SimpleNamespace(cloud="aws", cloud_id=None)
        access: Any = SimpleNamespace(objects=self.sim.bucket, bucket="bucket", entry=entry)
        try:
            found = takeover.look(self.sim.bucket, JOB_ID)
            adopting.adopt(found, access, self.home, self.sim.root / "results", {SECRET_NAME: SECRET})
        except NotFound:
            self.pending.remove("adopt")
            return True
        except CloudtrainError as error:
            self.sim.log(f"adopt: {error}")
            return False
        self.pending.remove("adopt")
        self.sim.log(f"** home {self.name} has taken the job over")
        if self.store.get(JOB_ID).wanted == "stop":  # a wish to resume was the other home's own
            self.sim.watch.wanted("stop")
        return True

    def reach(self) -> Reach:
        """The ports, as this home uses them."""
        job_dir = self.home.job_dir(JOB_ID)
        files = AttemptFiles(job_dir, self.store.get(JOB_ID).record)
        return Reach(self.sim.cloud, SimRemote(self.sim), self.sim.bucket, self.clock, files, job_dir)


# ---- what stands in for slow parts, in this process alone

_ACTIVE: list[Simulation] = []


def install(sim: Simulation) -> None:
    """Point the controller's wiring at a run; the slow and unimportant is replaced: key generation, YAML, tars."""
    _ACTIVE[:] = [sim]
    _PAIRS.clear()


def _home(home: Home) -> SimHome:
    return next(h for h in _ACTIVE[0].homes if h.home.root == home.root)


def _wire(home: Home, store: object, clock: object, job_id: str, *shared: object) -> Parts:
    at = _home(home)
    reach = at.reach()
    journal = Journal(at.store, at.sim.bucket, job_id)
    return Parts(journal=journal, observer=Observer(reach), effects=Effects(reach), cloud_gone=lambda: False)


_pairs = 0


def _pair(comment: str) -> SimpleNamespace:
    global _pairs
    _pairs += 1
    return SimpleNamespace(private_openssh=f"PRIVATE {comment} {_pairs}", public=f"ssh-ed25519 AAAA{_pairs} {comment}")


_TEXTS: dict[bool, str] = {}
_MARKS = ("CLIENT-KEY", "HOST-PRIVATE", "HOST-PUBLIC", 1999999999, 1888888888)


def _cloud_config(
    *,
    client_public_key: str,
    host_private_key: str,
    host_public_key: str,
    boot_deadline_at: float,
    hard_deadline_at: float | None = None,
) -> str:
    """The real text, made once and filled in: YAML is slow."""
    hard = hard_deadline_at is not None
    if hard not in _TEXTS:
        _TEXTS[hard] = cloud_config(
            client_public_key=_MARKS[0],
            host_private_key=_MARKS[1],
            host_public_key=_MARKS[2],
            boot_deadline_at=_MARKS[3],
            hard_deadline_at=_MARKS[4] if hard else None,
        )
    text = _TEXTS[hard].replace(_MARKS[0], client_public_key).replace(_MARKS[1], host_private_key)
    text = text.replace(_MARKS[2], host_public_key).replace(str(_MARKS[3]), str(int(boot_deadline_at)))
    return text.replace(str(_MARKS[4]), str(int(hard_deadline_at or 0)))


def _bundle(
    config: AgentConfig, snapshot_dir: Path | None, secrets: Mapping[str, str] | None = None, *, with_deps: bool
) -> BinaryIO:
    sent = asdict(config)
    sent["mounts"] = []
    return io.BytesIO(json.dumps({"config": sent, "secrets": dict(secrets or {})}).encode())


_COPIES: dict[type, tuple[Callable[[Any], Any], dict[str, Callable[[Any, Any], None]]] | None] = {}


def _copier(kind: type) -> tuple[Callable[[Any], Any], dict[str, Callable[[Any, Any], None]]] | None:
    """What copies a frozen dataclass with slots, field by field, and what sets one; None for any other."""
    if "__slots__" not in vars(kind) or hasattr(kind, "__post_init__"):
        return None
    puts = {field.name: getattr(kind, field.name).__set__ for field in fields(kind)}
    names = {f"put_{name}": put for name, put in puts.items()} | {"made": object.__new__, "kind": kind}
    lines = ["def copy(old):", " new = made(kind)", *(f" put_{name}(new, old.{name})" for name in puts), " return new"]
    exec("\n".join(lines), names)
    return names["copy"], puts


def _replaced(old: Any, /, **changes: Any) -> Any:
    """As ``dataclasses.replace`` has it, and quick."""
    kind = type(old)
    if kind not in _COPIES:
        _COPIES[kind] = _copier(kind)
    found = _COPIES[kind]
    if found is None:
        return replace(old, **changes)
    new = found[0](old)
    for name, value in changes.items():
        found[1][name](new, value)
    return new


_PAIRS: dict[tuple[Path, str], attempt_files.Pair] = {}
_make_pair = AttemptFiles._pair


def _kept_pair(self: AttemptFiles, name: str, comment: str) -> attempt_files.Pair:
    """A pair is written once and never changes: it is not read again each time."""
    key = (self._dir, name)
    if key not in _PAIRS:
        _PAIRS[key] = _make_pair(self, name, comment)
    return _PAIRS[key]


def _at_once(name: str, work: Callable[[], Any]) -> Future[Any]:
    """What has a thread of its own, and is waited for, is done in this one."""
    done: Future[Any] = Future()
    try:
        done.set_result(work())
    except CloudtrainError as error:
        done.set_exception(error)
    return done


def replace_slow_parts() -> None:
    """Once in a process that simulates."""
    here: list[tuple[Any, str, Any]] = [
        (controller_main, "wire", _wire),
        (attempt_files, "ed25519_pair", _pair),
        (AttemptFiles, "_pair", _kept_pair),
        (attempt_files, "cloud_config", _cloud_config),
        (effects, "bundle", _bundle),
        (effects, "_aside", _at_once),
        (loop, "view", lambda *seen, **more: {}),  # what `ls` shows
        (journal, "facts", lambda record: ()),  # the history that bills are recounted from
        (observe.Observer, "_pull_log", lambda self, attempt, target: None),  # our copy of the log
        (adopting, "SqliteStore", lambda path: next(h.store for h in _ACTIVE[0].homes if h.home.db == path)),
        (adopting, "ensure", lambda home: True),
        (adopting, "renew", lambda home: None),
    ]
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("cloudtrain.") and getattr(module, "replace", None) is replace:
            here.append((module, "replace", _replaced))
    for owner, name, stand_in in here:
        assert hasattr(owner, name), f"{owner} has no {name} any more"
        setattr(owner, name, stand_in)
