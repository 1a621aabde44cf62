"""What a Session saves, reports and refuses; how it is asked to stop, on a clock that the test holds."""

import json
import os
import random
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cloudtrain.trainer import checkpoint, contract
from cloudtrain.trainer.contract import Progress
from cloudtrain.trainer.session import Session, SessionError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def sigterm_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    held = Clock()
    monkeypatch.setattr("cloudtrain.trainer.session.time", held)
    return held


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment that the agent gives."""
    for name in [name for name in os.environ if name.startswith("CLOUDTRAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(contract.ENV_CHECKPOINT_DIR, str(tmp_path / "checkpoints"))
    monkeypatch.setenv(contract.ENV_PROGRESS, str(tmp_path / "progress.json"))
    monkeypatch.setenv(contract.ENV_NOTICE_FILE, str(tmp_path / "notice.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Counter:
    """A user's own thing with a state."""

    def __init__(self, content: Any = 0) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return {"content": self.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state["content"]


def session(**more: Any) -> Session:
    model = more.pop("model", None) or nn.Linear(2, 1)
    return Session(model=model, optimizer=more.pop("optimizer", None) or Counter(), **more)


def progress(place: Path) -> Progress:
    return contract.progress_from_json((place / "progress.json").read_text())


def steps(place: Path) -> list[int]:
    names = [contract.parse_checkpoint_name(path.name) for path in (place / "checkpoints").glob("step-*")]
    return sorted(step for step in names if step is not None)


def test_says_at_once_that_it_stops_by_file(place: Path, clock: Clock) -> None:
    session()
    assert progress(place) == Progress(stops_by_file=True)


def test_progress_is_written_at_the_first_step_and_then_once_a_second(place: Path, clock: Clock) -> None:
    running = session(total_steps=100)
    clock.now += 0.01
    running.step(loss=torch.tensor(0.5), accuracy=torch.tensor(0.25))
    assert progress(place) == Progress(
        step=1, total_steps=100, loss=0.5, stops_by_file=True, metrics={"accuracy": 0.25}
    )
    clock.now += 0.9
    running.step(loss=0.125)
    assert progress(place).step == 1
    clock.now += 0.2
    running.step(loss=0.0625)
    assert (progress(place).step, progress(place).loss) == (3, 0.0625)


def test_samples_per_second_come_from_the_loaders_batch_size(place: Path, clock: Clock) -> None:
    running = session()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 1)), batch_size=8)
    for count, _ in enumerate(running.batches(loader, epochs=4), start=1):
        clock.now += 0.25
        running.step()
        if count == 20:
            break
    assert progress(place).samples_per_s == pytest.approx(32.0)
    assert progress(place).total_steps == 32


def test_a_loss_that_is_no_number_is_left_out_of_the_json(place: Path, clock: Clock) -> None:
    running = session()
    clock.now += 2
    running.step(loss=float("nan"), other=float("inf"))
    raw = json.loads((place / "progress.json").read_text(), parse_constant=pytest.fail)
    assert (raw["loss"], raw["metrics"]) == (None, {})


@pytest.mark.parametrize(("interval", "expected"), [("3steps", [3, 6, 9, 10]), ("2.5s", [3, 6, 9, 10]), ("600s", [10])])
def test_saves_when_due_and_at_the_end(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, interval: str, expected: list[int]
) -> None:
    monkeypatch.setenv(contract.ENV_CHECKPOINT_INTERVAL, interval)
    monkeypatch.setenv(contract.ENV_CHECKPOINT_KEEP, "9")
    running = session()
    for _ in range(10):
        clock.now += 1.0
        assert running.step() is False
    running.finish(accuracy=0.5)
    assert steps(place) == expected
    assert progress(place).checkpoint_step == 10


@pytest.mark.parametrize("interval", ["10", "0s", "0steps", "5 steps", "10m", "-3s"])
def test_an_interval_that_makes_no_sense_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    monkeypatch.setenv(contract.ENV_CHECKPOINT_INTERVAL, interval)
    with pytest.raises(SessionError, match="write it like 600s or 500steps"):
        session()


def test_keeps_as_many_as_it_is_told_and_leaves_those_of_another_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_CHECKPOINT_INTERVAL, "1steps")
    monkeypatch.setenv(contract.ENV_CHECKPOINT_KEEP, "2")
    checkpoint.write(place / "checkpoints", 900, {"theirs": b""})
    running = session()
    for _ in range(5):
        running.step()
    assert steps(place) == [4, 5, 900]


def test_a_notice_file_saves_and_stops_at_the_next_step(place: Path, clock: Clock) -> None:
    running = session()
    assert running.step() is False
    (place / "notice.json").write_text(contract.to_json(contract.Notice("interruption", 0.0)))
    clock.now += 0.051
    assert running.step(loss=torch.tensor(0.1)) is True
    assert running.stopped
    assert steps(place) == [2]
    report = progress(place)
    assert (report.step, report.checkpoint_step, report.done, report.loss) == (2, 2, False, float(torch.tensor(0.1)))
    with pytest.raises(SystemExit) as left:
        running.finish(accuracy=1.0)
    assert left.value.code == 75
    assert not progress(place).done


def test_sigterm_saves_and_stops_at_the_next_step_however_soon(place: Path, clock: Clock) -> None:
    running = session()
    assert running.step() is False
    os.kill(os.getpid(), signal.SIGTERM)
    assert running.step() is True
    assert steps(place) == [2]


def in_a_fork(body: Callable[[], None]) -> int:
    """Run ``body`` in a forked child that then ends with 0, and return the child's exit code (negative: its signal)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def terminate_oneself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_sigterm_ends_the_process(place: Path) -> None:
    def once() -> None:
        session()
        terminate_oneself()

    def twice() -> None:
        once()
        terminate_oneself()

    assert in_a_fork(once) == 0
    assert in_a_fork(twice) == -signal.SIGTERM


def test_processes_that_the_script_forks_still_end_on_sigterm(place: Path) -> None:
    running = session()
    assert in_a_fork(terminate_oneself) == -signal.SIGTERM
    assert running.step() is False


def test_a_step_with_nothing_due_costs_next_to_nothing(place: Path) -> None:
    running = session()
    loss = torch.tensor(0.5)
    running.step(loss=loss)
    rounds = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            running.step(loss=loss)
        rounds.append((time.perf_counter() - began) / 200)
    assert statistics.median(rounds) < 20e-6


def test_finish_reports_the_exact_last_loss(place: Path, clock: Clock) -> None:
    running = session()
    loss = torch.tensor(1.0) / 3
    running.step(loss=loss)
    running.finish(accuracy=0.975)
    assert progress(place).done
    assert progress(place).metrics == {"loss": loss.item(), "accuracy": 0.975}


def test_everything_comes_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    running = Session(model=model, optimizer=optimizer, scheduler=scheduler, counter=Counter(41))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    random.gauss(0, 1)  # leaves a second number behind in the generator
    np.random.normal()
    running.step(loss=torch.tensor(0.3))
    running.finish()
    drawn = (torch.rand(3).tolist(), random.gauss(0, 1), random.random(), np.random.normal(), np.random.random())

    torch.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    other = nn.Linear(2, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    other_scheduler = torch.optim.lr_scheduler.StepLR(other_optimizer, step_size=1)
    counter = Counter()
    resumed = Session(model=other, optimizer=other_optimizer, scheduler=other_scheduler, counter=counter)
    monkeypatch.setenv(contract.ENV_RESUME, str(place / "checkpoints" / "step-000000001"))
    assert resumed.resume() == 1
    assert drawn == (
        torch.rand(3).tolist(),
        random.gauss(0, 1),
        random.random(),
        np.random.normal(),
        np.random.random(),
    )
    assert torch.equal(other.weight, model.weight)
    assert other_optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert torch.equal(other_optimizer.state[other.weight]["momentum_buffer"], torch.ones(1, 2))
    assert (other_scheduler.last_epoch, counter.content) == (1, 41)
    assert progress(place) == Progress(
        step=1, loss=torch.tensor(0.3).item(), checkpoint_step=1, start_step=1, stops_by_file=True
    )
    resumed.finish()
    assert progress(place).metrics == {"loss": torch.tensor(0.3).item()}, "no step was left, the loss is still known"


def test_nothing_to_resume_from_is_step_0(place: Path) -> None:
    checkpoint.write(place / "checkpoints", 900, {"theirs": b""})
    assert session().resume() == 0


def saved(place: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Path:
    running = session(**more)
    running.step()
    running.finish()
    path = place / "checkpoints" / "step-000000001"
    monkeypatch.setenv(contract.ENV_RESUME, str(path))
    return path


def test_a_named_checkpoint_that_is_not_there_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_RESUME, str(place / "step-000000009"))
    with pytest.raises(SessionError, match=r"step-000000009: no MANIFEST\.json"):
        session().resume()


def test_a_named_checkpoint_that_is_damaged_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(place, monkeypatch)
    content = bytearray((path / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "model.pt").write_bytes(content)
    with pytest.raises(SessionError, match=r"model\.pt does not match its digest"):
        session().resume()


def test_a_checkpoint_of_another_kind_or_another_script_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(place, monkeypatch, counter=Counter())
    with pytest.raises(SessionError, match=r"it holds counter, model, optimizer, this script has model, optimizer$"):
        session().resume()
    with pytest.raises(SessionError, match="its model does not fit this script's"):
        session(model=nn.Linear(3, 1), counter=Counter()).resume()
    theirs = checkpoint.write(place / "checkpoints", 2, {"pytorch_model.bin": b"theirs"})
    monkeypatch.setenv(contract.ENV_RESUME, str(theirs))
    with pytest.raises(SessionError, match="not written by a Session"):
        session().resume()


class Boom:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code from a checkpoint was run",))


def test_a_checkpoint_never_runs_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(place, monkeypatch)
    evil = {"parts": {"optimizer": Boom()}, "random": {}, "data": None, "loss": None}
    parts: dict[str, checkpoint.Part] = {
        "model.pt": (path / "model.pt").read_bytes(),
        "training.pt": lambda file: torch.save(evil, file),
    }
    checkpoint.write(place / "checkpoints", 1, parts)
    with pytest.raises(SessionError, match=r"training\.pt can't be loaded safely \(UnpicklingError\)"):
        session().resume()


def test_a_state_that_could_not_be_loaded_safely_is_refused_when_it_is_saved(place: Path) -> None:
    running = session(counter=Counter(SimpleNamespace()))
    running.step()
    with pytest.raises(SessionError, match=r"holds types\.SimpleNamespace, which can't be loaded"):
        running.finish()
    assert steps(place) == []


def test_a_full_disk_is_one_line_and_costs_no_earlier_checkpoint(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_CHECKPOINT_INTERVAL, "1steps")
    running = session()
    running.step()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cloudtrain.trainer.checkpoint.os.fsync", full)
    with pytest.raises(SessionError, match=r"step 2 can't be written to .*: No space left on device; earlier ones"):
        running.step()
    monkeypatch.undo()
    assert checkpoint.newest(place / "checkpoints") == (place / "checkpoints" / "step-000000001", [])


def test_progress_that_can_not_be_written_stops_nothing(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.ENV_PROGRESS, str(place / "no such folder" / "progress.json"))
    assert session().step() is False
    assert "progress.json can't be written: No such file or directory" in capsys.readouterr().err


def test_without_cloudtrain_it_writes_to_checkpoints_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLOUDTRAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    running = session()
    assert running.resume() == 0
    assert [running.step() for _ in running.batches([1, 2], epochs=2)] == [False] * 4
    running.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert checkpoint.verify(tmp_path / "checkpoints" / "step-000000004").step == 4


def test_misuse_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="counter=int: it has no state_dict"):
        session(counter=1)
    running = session()
    running.batches([1])
    with pytest.raises(SessionError, match="call it once, with epochs=N"):
        running.batches([1])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SessionError, match="one process"):
        session()
