"""The shipped trainer and a script of five lines, as processes: stopped and gone on with, to the same last bit."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from cloudtrain.trainer import checkpoint, contract
from cloudtrain.trainer.contract import Progress

pytestmark = pytest.mark.slow

TRAINER = [sys.executable, "-m", "cloudtrain.trainer", "--epochs", "4"]

# A user's script with dropout, augmentation from three generators, a scheduler of torch's and no word about seeds after
# the start. The five lines are the ones marked.
SCRIPT = """
import random, sys, time
import numpy as np, torch
from torch import nn
from cloudtrain.trainer import Session                                                        # 1

class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        return torch.rand(4) + random.random() + np.random.random(), torch.tensor(float(i % 2))

torch.set_num_threads(1)
torch.manual_seed(1); random.seed(1); np.random.seed(1)
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
loader = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler); session.resume()    # 2
for x, y in session.batches(loader, epochs=3):                                                # 3
    loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
    print(session.steps + 1, loss.item().hex(), flush=True)
    time.sleep(float(sys.argv[1]))
    if session.step(loss=loss): break                                                         # 4
session.finish()                                                                              # 5
print("the end")
"""


@dataclass
class Machine:
    """One machine's folder, and runs in it as the agent starts them."""

    path: Path
    interval: str = "600s"
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: list[str], *, resume: Path | None = None) -> subprocess.Popen[str]:
        self.path.mkdir(parents=True, exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")},
            contract.ENV_CHECKPOINT_DIR: str(self.path / "checkpoints"),
            contract.ENV_CHECKPOINT_INTERVAL: self.interval,
            contract.ENV_OUTPUT_DIR: str(self.path / "outputs"),
            contract.ENV_PROGRESS: str(self.path / "progress.json"),
            contract.ENV_NOTICE_FILE: str(self.path / "notice.json"),
        }
        if resume:
            environment[contract.ENV_RESUME] = str(resume)
        (self.path / "notice.json").unlink(missing_ok=True)
        process = subprocess.Popen(
            command,
            cwd=self.path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def progress(self) -> Progress:
        try:
            return contract.progress_from_json((self.path / "progress.json").read_text())
        except FileNotFoundError:
            return Progress()

    def wait_for_step(self, process: subprocess.Popen[str], step: int) -> None:
        while self.progress().step < step:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)

    def ask_by_file(self, _process: subprocess.Popen[str]) -> None:
        notice = contract.to_json(contract.Notice("interruption", time.time() + 30))
        contract.write_atomic(self.path / "notice.json", notice)

    def ask_by_sigterm(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)

    def ask_the_group(self, process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGTERM)

    def newest(self) -> Path:
        path, rejected = checkpoint.newest(self.path / "checkpoints")
        assert path is not None
        assert rejected == []
        return path


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(name: str, interval: str = "600s") -> Machine:
        made.append(Machine(tmp_path / name, interval))
        return made[-1]

    yield make
    for process in [process for machine in made for process in machine.processes]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The shipped trainer's run that nothing interrupted."""
    machine = Machine(tmp_path_factory.mktemp("whole"))
    outcome(machine.start(TRAINER))
    return machine


def outcome(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def losses(output: str) -> list[str]:
    return [line for line in output.splitlines() if line[0].isdigit()]


def test_stopped_at_any_step_by_file_or_signal_the_trainer_ends_at_the_same_bit(
    machines: Callable[..., Machine], whole: Machine
) -> None:
    expected = whole.progress()
    assert (expected.step, expected.total_steps, expected.done) == (172, 172, True)
    assert set(expected.metrics) == {"loss", "accuracy"}

    broken = machines("broken")
    workers = [*TRAINER, "--workers", "2"]
    process, step = broken.start(TRAINER), 0
    for ask, goes_on_as in (
        (broken.ask_by_file, workers),
        (broken.ask_by_sigterm, workers),
        (broken.ask_the_group, TRAINER),
    ):
        broken.wait_for_step(process, step + 1)
        ask(process)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 75, errors
        report = broken.progress()
        assert (report.done, report.start_step, report.checkpoint_step) == (False, step, report.step)
        assert broken.newest().name == contract.checkpoint_name(report.step)
        process, step = broken.start(goes_on_as, resume=broken.newest()), report.step
    outcome(process)

    assert broken.progress().start_step == step
    assert (broken.progress().loss, broken.progress().metrics) == (expected.loss, expected.metrics)
    assert (broken.path / "outputs/metrics.json").read_text() == (whole.path / "outputs/metrics.json").read_text()
    assert state(broken.newest()) == state(whole.newest())


def state(path: Path) -> object:
    """What a checkpoint holds of the trainer's: weights, averages, loss, torch's random numbers. Lists for tensors."""

    def convert(value: object) -> object:
        if isinstance(value, dict):
            return {key: convert(each) for key, each in value.items()}
        if isinstance(value, list):
            return [convert(each) for each in value]
        return value.tolist() if isinstance(value, torch.Tensor) else value

    training = torch.load(path / "training.pt", weights_only=True)
    model = torch.load(path / "model.pt", weights_only=True)
    return convert(
        {"model": model, "loss": training["loss"], "random": training["random"]["torch"], **training["parts"]}
    )


def test_killed_without_notice_the_trainer_goes_on_from_its_last_periodic_checkpoint(
    machines: Callable[..., Machine], whole: Machine
) -> None:
    killed = machines("killed", interval="10steps")
    process = killed.start(TRAINER)
    while not list((killed.path / "checkpoints").glob("step-*")):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    output = outcome(killed.start([*TRAINER, "--workers", "2"], resume=killed.newest()))
    assert "epoch 4/4  step 172/172" in output
    assert killed.progress().start_step % 10 == 0
    assert killed.progress().metrics == whole.progress().metrics


def test_five_lines_make_a_plain_script_exact(machines: Callable[..., Machine]) -> None:
    whole = machines("whole")
    script = whole.path.parent / "script.py"
    script.write_text(SCRIPT)
    expected = losses(outcome(whole.start([sys.executable, str(script), "0"])))
    assert len(expected) == 30

    broken = machines("broken")
    process = broken.start([sys.executable, str(script), "0.1"])
    broken.wait_for_step(process, 8)
    broken.ask_by_file(process)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "the end" not in output
    stopped_at = contract.parse_checkpoint_name(broken.newest().name)
    assert stopped_at is not None
    assert losses(output) == expected[:stopped_at]
    assert (
        losses(outcome(broken.start([sys.executable, str(script), "0"], resume=broken.newest())))
        == expected[stopped_at:]
    )
    assert broken.progress().metrics == whole.progress().metrics


def test_a_checkpoint_that_can_not_be_honoured_is_one_line_and_no_silent_start(
    machines: Callable[..., Machine],
) -> None:
    machine = machines("m")
    process = machine.start(TRAINER, resume=machine.path / "step-000000040")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("cloudtrain: can't resume from ")
    assert errors.endswith("no MANIFEST.json: the checkpoint is incomplete; unset CLOUDTRAIN_RESUME to start over\n")
    assert machine.progress().step == 0


def test_help_and_wrong_arguments_do_not_wait_for_torch() -> None:
    check = (
        "import sys; from cloudtrain.trainer.__main__ import main\ntry: main(sys.argv[1:])\nexcept SystemExit as e: "
    )
    check += "assert 'torch' not in sys.modules; raise"
    for arguments, code, text in (
        (["--help"], 0, "example: python -m cloudtrain.trainer"),
        (["--epochs", "0"], 2, "argument --epochs: 0 is less than 1"),
        (["--workers", "x"], 2, "argument --workers: 'x' is not a whole number"),
    ):
        done = subprocess.run([sys.executable, "-c", check, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert text in done.stdout + done.stderr


def test_the_words_and_the_checkpoints_of_the_trainer_do_not_import_torch() -> None:
    check = "import sys, cloudtrain.trainer.contract, cloudtrain.trainer.checkpoint; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_way_to_the_first_step_imports_no_compiler(tmp_path: Path) -> None:
    check = "import sys; from cloudtrain.trainer.__main__ import main; main(['--epochs', '1', '--batch-size', '512'])\n"
    check += "print(sorted({'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", "torch._dynamo alone takes as long as torch"
