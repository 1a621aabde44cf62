"""What is built holds exactly what the top-level folders hold, and nothing is built where the links were lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("pricing", "provisioner", "templates", "trainer")
NEEDED = (*LINKED, "src", "pyproject.toml", "setup.py", "README.md", "LICENSE")

# Each test builds in a process of its own and is as slow as setuptools: a worker may take them all.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build needs, links kept, so that no build/ or egg-info of the checkout plays a part."""
    copy = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=leave)
        else:
            shutil.copy2(source, copy / name)
    return copy


def build(tree: Path, what: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the build without network: setuptools comes from the test environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(out), str(tree)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def built(tree: Path, what: str, out: Path) -> Path:
    result = build(tree, what, out)
    assert result.returncode == 0, result.stdout + result.stderr
    (made,) = out.iterdir()
    return made


def code_and_data(wheel: Path) -> set[str]:
    """The wheel's members less its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def expected(tree: Path) -> set[str]:
    """Every file of the package, found without setuptools."""
    files = {f"cloudtrain/{path.name}" for path in (tree / "src/cloudtrain").iterdir() if path.is_file()}
    for folder in LINKED:
        files |= {f"cloudtrain/{path.relative_to(tree)}" for path in (tree / folder).rglob("*") if path.is_file()}
    return files


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_of_the_folders_and_nothing_else(tree: Path, wheel: Path) -> None:
    members = code_and_data(wheel)
    assert members == expected(tree)
    assert {"cloudtrain/py.typed", "cloudtrain/trainer/contract.py", "cloudtrain/pricing/model.py"} <= members


def test_the_wheel_brings_the_command_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        scripts = archive.read(metadata["entry_points.txt"]).decode()
        assert archive.read(metadata["top_level.txt"]).decode().split() == ["cloudtrain"]
    assert "cloudtrain = cloudtrain.provisioner.cli.main:main" in scripts
    assert "LICENSE" in metadata


def test_an_sdist_builds_the_same_wheel(wheel: Path, tree: Path, tmp_path: Path) -> None:
    sdist = built(tree, "sdist", tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert code_and_data(built(source, "wheel", tmp_path / "wheel")) == code_and_data(wheel)


@pytest.mark.parametrize("name", LINKED)
def test_lost_links_refuse_to_build(tree: Path, tmp_path: Path, name: str) -> None:
    """Git on Windows without core.symlinks checks a link out as a text file that holds its target."""
    damaged = tmp_path / "damaged"
    shutil.copytree(tree, damaged, symlinks=True)
    link = damaged / "src/cloudtrain" / name
    link.unlink()
    link.write_text(f"../../{name}")
    result = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=damaged, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert name in line
    assert "core.symlinks=true" in line
