"""The rules that keep imports straight do bite: each is shown code that breaks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ruff(code: str, where: str) -> str:
    """What ruff's import bans say of code that would lie at ``where`` in this repository."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID", "--output-format", "concise", "-"]
    command += ["--no-cache", "--stdin-filename", str(ROOT / where)]
    return subprocess.run(command, input=code, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", ["pricing", "trainer", "provisioner"])
@pytest.mark.parametrize("where", ["tests/unit/x.py", "provisioner/x.py", "trainer/x.py", "benchmarks/x.py"])
def test_flat_names_are_banned_everywhere(name: str, where: str) -> None:
    for line in (
        f"import {name}",
        f"import {name}.model",
        f"from {name} import model",
        f"from {name}.model import Pool",
    ):
        assert f"TID251 `{name}` is banned: import cloudtrain.{name}" in ruff(f"{line}\n", where)


@pytest.mark.parametrize("where", ["trainer/x.py", "trainer/agent/x.py"])
def test_relative_imports_are_allowed_in_trainer(where: str) -> None:
    assert "TID" not in ruff("from . import contract\nfrom .contract import Latest\n", where)


def test_relative_imports_of_parents_are_banned_elsewhere() -> None:
    assert "TID252" in ruff("from ..model import Job\n", "provisioner/adapters/x.py")


BREACHES = {
    "trainer/contract.py": "from cloudtrain.pricing.model import Pool",
    "trainer/agent/__init__.py": "import torch",
    "pricing/model.py": "from cloudtrain.provisioner.errors import CloudtrainError",
    "provisioner/model.py": "from cloudtrain.provisioner.ports import Cloud",
    "provisioner/decide.py": "import time",
    "provisioner/ledger.py": "from cloudtrain.trainer.checkpoint import Manifest",
    "provisioner/ports.py": "import boto3",
    "provisioner/adapters/store.py": "from cloudtrain.provisioner.cli import main",
    "provisioner/home.py": "import paramiko",
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts on a tree of its own; PYTHONPATH shadows the package that is installed."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    environment = {"PYTHONPATH": str(tree / "src"), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pricing", "provisioner", "trainer", "src"):
        shutil.copytree(
            ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_contracts_hold_on_a_copy(tree: Path) -> None:
    result = lint_imports(tree)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", BREACHES)
def test_a_breach_breaks_a_contract(tree: Path, where: str) -> None:
    path = tree / where
    path.write_text(f"{path.read_text()}\n{BREACHES[where]}\n")
    result = lint_imports(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout


@pytest.mark.slow
def test_a_new_module_must_be_given_a_place(tree: Path) -> None:
    (tree / "provisioner/unplaced.py").write_text('"""Nobody said what this may import."""\n')
    result = lint_imports(tree)
    assert result.returncode != 0
    assert "unplaced" in result.stdout + result.stderr
