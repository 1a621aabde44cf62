"""The machine check, with made-up machines: what fails, whose fault it is, and what is said."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.trainer.agent.checks import Checks
from cloudtrain.trainer.agent.jobcode import chooses_python, wants_torch
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.contract import AgentConfig

SYSTEM_PATH = "/usr/bin:/bin"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "cloudtrain")
    made.create()
    return made


def python_that(places: Places, script: str, folder: Path | None = None) -> str:
    """A PATH whose python is this shell script."""
    python = (folder or places.root / "bin") / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return f"{python.parent}:{SYSTEM_PATH}"


def says(**more: Any) -> str:
    """The script of a python that answers the probe so."""
    told = {"version": [3, 12], "executable": "/usr/bin/python3", "torch": "2.12.0"} | more
    return f"echo noise; echo '{json.dumps(told)}'"


def check(places: Places, *, real: bool, gpus: int = 2, path: str = SYSTEM_PATH, **more: Any) -> Checks:
    """Looked, and asked to the end."""
    given: dict[str, Any] = {"run": "torchrun train.py", "expect_accelerator": "T4:2", "expect_gpus": 2} | more
    config = AgentConfig("j", 1, "b", "r", "p", **given)
    checks = Checks(config, places, {"PATH": path}, real=real, gpus=lambda: gpus)
    checks.look()
    deadline = time.monotonic() + 20
    while not checks.ready() and checks.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert checks.ready() is (checks.failure is None)
    return checks


def test_a_local_host_stands_in_and_says_so(places: Places) -> None:
    checks = check(places, real=False, gpus=0, path=python_that(places, says()))
    assert checks.lines[1:] == (
        "gpu: skipped, a local host stands in for T4:2",
        "python: 3.12, with torch",
    )


def test_the_agents_own_python_is_asked_without_a_process(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    beside = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    config = AgentConfig("j", 1, "b", "r", "p", "torchrun train.py")
    checks = Checks(config, places, {"PATH": beside}, real=False)
    checks.look()
    assert checks.ready(), "at the first call"
    assert checks.lines[-1] == f"python: {sys.version_info[0]}.{sys.version_info[1]}, with torch"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    plain = Checks(AgentConfig("j", 1, "b", "r", "p", "echo hello"), places, {"PATH": beside}, real=False)
    assert plain.ready(), "who needs no torch does not wait for it either"


def test_the_images_environment_is_the_one_that_is_asked(places: Places) -> None:
    venv = places.root / "opt" / "pytorch"
    python_that(places, says(executable=str(venv)), venv / "bin")
    (venv / "bin" / "activate").write_text(f'PATH="{venv}/bin:$PATH"\n')
    outside = python_that(places, says(torch=None))
    config = AgentConfig("j", 1, "b", "r", "p", "torchrun x", venv="/opt/pytorch")
    for root, fails in ((places.root, False), (places.work, True)):
        checks = Checks(config, places, {"PATH": outside, "CLOUDTRAIN_ROOT": str(root)}, real=False)
        while not checks.ready() and checks.failure is None:
            time.sleep(0.005)
        assert (checks.failure is not None) is fails


def test_a_machine_that_lacks_a_gpu_is_unfit_before_anything_is_asked(places: Places) -> None:
    checks = check(places, real=True, gpus=1)
    assert (checks.failure, checks.fault) == ("machine check: 1 GPUs, not the 2 of T4:2", "machine")


@pytest.mark.parametrize(
    ("said", "failure", "fault"),
    [
        ({"machine": "GPU 1 computes a wrong product"}, "GPU 1 computes a wrong product", "machine"),
        ({"machine": "torch 2.12 sees 1 GPUs, not 2"}, "torch 2.12 sees 1 GPUs, not 2", "machine"),
        ({"image": "torch 2.12 is a build for CPUs"}, "a build for CPUs: install one for CUDA in `setup`", "image"),
        ({"torch": None}, "has no torch, and run uses torchrun: install it in `setup`, or choose an image", "image"),
        ({"version": [3, 9], "torch": None}, "the job's Python 3.9 (/usr/bin/python3) has no torch", "image"),
    ],
)
def test_what_the_probe_says_of_a_machine(places: Places, said: dict[str, Any], failure: str, fault: str) -> None:
    checks = check(places, real=True, path=python_that(places, says(**said)))
    assert checks.failure is not None
    assert failure in checks.failure
    assert checks.fault == fault


def test_a_fit_machine_says_what_was_seen(places: Places) -> None:
    checks = check(places, real=True, path=python_that(places, says(products=2)))
    assert checks.lines[1:] == (
        "gpu: 2 present",
        "python: 3.12, torch 2.12.0, a product on each of 2 GPUs is right",
    )


FAKE_TORCH = """
import types
__version__ = "2.12.0"
version = types.SimpleNamespace(cuda={cuda!r})
cuda = types.SimpleNamespace(is_available=lambda: {gpus} > 0, device_count=lambda: {gpus})
class Matrix:
    def __init__(self, device): self.device = device
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return 256.0 ** 3 if self.device != {wrong!r} else 1.0
def ones(rows, columns, device): return Matrix(device)
"""


@pytest.mark.parametrize(
    ("torch", "failure", "fault"),
    [
        (FAKE_TORCH.format(cuda="13.2", gpus=2, wrong=""), None, "machine"),
        (FAKE_TORCH.format(cuda="13.2", gpus=2, wrong="cuda:1"), "GPU 1 computes a wrong product", "machine"),
        (FAKE_TORCH.format(cuda="13.2", gpus=1, wrong=""), "torch 2.12.0 sees 1 GPUs, not 2", "machine"),
        (FAKE_TORCH.format(cuda=None, gpus=0, wrong=""), "torch 2.12.0 is a build for CPUs: install one", "image"),
        ("raise OSError('libcudart.so.13: cannot open')", "torch does not load (libcudart.so.13: cannot", "image"),
    ],
)
def test_the_probe_itself_with_a_made_up_torch(places: Places, torch: str, failure: str | None, fault: str) -> None:
    site = places.root / "site"
    site.mkdir()
    (site / "torch.py").write_text(torch)
    checks = check(
        places,
        real=True,
        path=python_that(places, f'PYTHONPATH={site} exec {sys.executable} -S "$@"'),
        run="torchrun x",
    )
    if failure is None:
        assert checks.failure is None
        assert checks.lines[-1].endswith("torch 2.12.0, a product on each of 2 GPUs is right")
    else:
        assert checks.failure is not None
        assert failure in checks.failure
    assert checks.fault == fault


def test_a_script_without_torch_runs_on_a_python_without_torch(places: Places) -> None:
    (places.work / "plain.py").write_text("print(1)\n")
    old = python_that(places, says(version=[3, 6], torch=None))
    checks = check(places, real=True, path=old, run="python plain.py")
    assert checks.lines[-1] == "python: 3.6, without torch; GPUs are checked by their driver alone"
    assert check(places, real=False, path="/nowhere", run="./program").failure is None


def test_the_shipped_trainer_needs_a_new_python(places: Places) -> None:
    old = python_that(places, says(version=[3, 9]))
    checks = check(places, real=False, path=old, run="python -m cloudtrain.trainer")
    assert checks.failure is not None
    assert "is too old, and run uses cloudtrain.trainer, which needs 3.10 or later" in checks.failure
    assert checks.fault == "image"


def test_a_run_with_a_python_of_its_own_is_left_alone(places: Places) -> None:
    none = python_that(places, says(torch=None))
    checks = check(places, real=False, path=none, run=". ~/venv/bin/activate && torchrun train.py")
    assert "python: run brings its own, which is not checked" in checks.lines


@pytest.mark.parametrize("script", ["echo oh >&2; exit 3", "echo no JSON", "kill -9 $$"])
def test_a_python_that_does_not_answer(places: Places, script: str) -> None:
    checks = check(places, real=False, path=python_that(places, script))
    assert checks.failure is not None
    assert "the job's Python could not be asked" in checks.failure


def test_a_clock_that_s3_would_refuse(places: Places) -> None:
    fit = check(places, real=True, path=python_that(places, says(products=2)), sent_at=time.time() - 30)
    assert "clock: 30 s from the launching computer's" in fit.lines
    unfit = check(places, real=True, path=python_that(places, says(products=2)), sent_at=time.time() + 1200)
    assert unfit.failure == "machine check: the machine's clock is 20 minutes off, and S3 would refuse its requests"


def test_a_disk_without_room(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 100, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    checks = check(places, real=True)
    assert checks.failure is not None
    assert checks.failure.endswith("raise resources.disk_size")
    assert checks.fault == "image", "the next machine has the same disk"


def test_the_scratch_disk(places: Places) -> None:
    path = python_that(places, says(products=2))
    missing = check(places, real=True, path=path, scratch=str(places.work))
    assert f"scratch: {places.work} is not mounted; data goes to the root disk" in missing.lines
    there = check(places, real=True, path=path, scratch="/")
    assert any(line.startswith("scratch: /, ") for line in there.lines)


# ---- what the job's files say


@pytest.mark.parametrize(
    ("run", "files", "why"),
    [
        ("torchrun train.py", {}, "run uses torchrun"),
        ("exec python -m cloudtrain.trainer --epochs 3", {}, "run uses cloudtrain.trainer"),
        ("python -m torch.distributed.run x.py", {}, "run uses torch.distributed.run"),
        ("python train.py", {"train.py": "import os\nimport torch\n"}, "train.py imports torch"),
        ("python train.py", {"train.py": "from torch.nn import Linear\n"}, "train.py imports torch"),
        ("python 'my train.py'", {"my train.py": "import lightning as L\n"}, "my train.py imports lightning"),
        (
            "python -m pkg.fit",
            {"pkg/fit.py": "from cloudtrain.trainer import Session\n"},
            "pkg/fit.py imports cloudtrain.trainer",
        ),
        ("python -u src/a.py --x 1", {"src/a.py": "import torchvision\n"}, "src/a.py imports torchvision"),
        ("python -m pkg", {"pkg/__main__.py": "import torch\n"}, "pkg/__main__.py imports torch"),
        ("python plain.py", {"plain.py": "print(1)\n", "other.py": "import torch\n"}, None),
        ("python t.py", {"t.py": "try:\n    import torch\nexcept ImportError:\n    torch = None\n"}, None),
        ("python t.py", {"t.py": "import torchless\n"}, None),
        ("python t.py", {"t.py": "x = 'import torch'\n"}, None),
        ("echo it's torch", {}, None),
        ("python missing.py; bash train.sh", {"train.sh": "torchrun x"}, None),
    ],
)
def test_whether_a_job_needs_torch(places: Places, run: str, files: dict[str, str], why: str | None) -> None:
    for name, text in files.items():
        (places.work / name).parent.mkdir(parents=True, exist_ok=True)
        (places.work / name).write_text(text)
    assert wants_torch(run, places.work) == why


@pytest.mark.parametrize(
    ("run", "own"),
    [
        ("python train.py", False),
        ("python3 train.py --activation relu --conda_free", False),
        ("source .venv/bin/activate && python train.py", True),
        (".venv/bin/python train.py", True),
        ("/opt/py/bin/python3.11 train.py", True),
        ("uv run train.py", True),
        ("conda run -n x python train.py", True),
        ("docker run --gpus all image", True),
        ("pip install torch && python train.py", True),
        ("export PATH=~/py/bin:$PATH; python train.py", True),
        ("torchrun --nproc-per-node=8 train.py", False),
    ],
)
def test_whether_run_brings_its_own_python(run: str, own: bool) -> None:
    assert chooses_python(run) is own
