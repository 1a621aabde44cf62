"""The rules that keep imports straight do bite: each is shown code that breaks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAT_NAMES = ("pricing", "provisioner", "trainer")


def ruff(code: str, where: str) -> str:
    """What ruff's import bans say of code that would lie at ``where`` in this repository."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID", "--output-format", "concise", "-"]
    command += ["--no-cache", "--stdin-filename", str(ROOT / where)]
    return subprocess.run(command, input=code, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("where", ["tests/unit/x.py", "provisioner/x.py", "trainer/x.py", "benchmarks/x.py"])
def test_flat_names_are_banned_everywhere(where: str) -> None:
    forms = ("import {}", "import {}.model", "from {} import model", "from {}.model import Pool")
    said = ruff("\n".join(form.format(name) for name in FLAT_NAMES for form in forms) + "\n", where)
    for name in FLAT_NAMES:
        assert said.count(f"TID251 `{name}` is banned: import cloudtrain.{name}") == len(forms), said


@pytest.mark.parametrize("where", ["trainer/x.py", "trainer/agent/x.py"])
def test_relative_imports_are_allowed_in_trainer(where: str) -> None:
    assert "TID" not in ruff("from . import contract\nfrom .contract import Latest\n", where)


def test_relative_imports_of_parents_are_banned_elsewhere() -> None:
    assert "TID252" in ruff("from ..model import Job\n", "provisioner/adapters/x.py")


BREACHES = {
    "trainer/contract.py": ("from cloudtrain.pricing.model import Pool", "cloudtrain.pricing.model"),
    "trainer/agent/__init__.py": ("import torch", "torch"),
    "trainer/checkpoint.py": ("import msgspec", "msgspec"),
    "pricing/model.py": ("from cloudtrain.provisioner.errors import UsageError", "cloudtrain.provisioner.errors"),
    "provisioner/model.py": ("from cloudtrain.provisioner.ports import Cloud", "cloudtrain.provisioner.ports"),
    "provisioner/decide/job.py": ("import time", "time"),
    "provisioner/ledger.py": ("from cloudtrain.trainer.checkpoint import write", "cloudtrain.trainer.checkpoint"),
    "provisioner/ports.py": ("import boto3", "boto3"),
    "provisioner/home.py": ("import paramiko", "paramiko"),
    "provisioner/adapters/store.py": ("from cloudtrain.provisioner.cli import main", "cloudtrain.provisioner.cli.main"),
    "provisioner/adapters/ssh.py": (
        "from cloudtrain.provisioner.controller import process",
        "cloudtrain.provisioner.controller.process",
    ),
    "provisioner/localcloud/state.py": (
        "from cloudtrain.provisioner.controller import loop",
        "cloudtrain.provisioner.controller.loop",
    ),
}


def lint_imports(tree: Path) -> tuple[int, str]:
    """Check the contracts on a tree of its own; PYTHONPATH shadows the package that is installed."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    environment = {"PYTHONPATH": str(tree / "src"), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("pricing", "provisioner", "trainer", "src", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=leave)
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_contracts_hold_and_each_breach_is_named(tree: Path) -> None:
    code, said = lint_imports(tree)
    assert (code, said.count("BROKEN")) == (0, 0), said

    for where, (line, _) in BREACHES.items():
        path = tree / where
        path.write_text(f"{path.read_text()}\n{line}\n")
    (tree / "provisioner/unplaced.py").write_text('"""Nobody said what this may import."""\n')
    code, said = lint_imports(tree)
    assert code == 1
    assert "unplaced" in said
    (tree / "provisioner/unplaced.py").unlink()  # the layers are only compared once each module has its place
    code, said = lint_imports(tree)
    assert code == 1
    for where, (_, imported) in BREACHES.items():
        importer = "cloudtrain." + where.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert f"{importer} -> {imported} " in said, said
