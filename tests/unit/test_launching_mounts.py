"""What file_mounts mean for the workdir's snapshot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch.launching import Prepared, snapshot
from cloudtrain.provisioner.plan import Plan
from cloudtrain.provisioner.spec import FileMount
from tests.records import OFFERINGS, job


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data/large").write_text("x")
    (folder / "code.py").write_text("pass")
    (folder / "out").symlink_to("data")
    return folder


def prepared(workdir: Path, *targets: str) -> Prepared:
    mounts = tuple(FileMount(target, "s3://b/x") for target in targets)
    spec = replace(job().spec, workdir=str(workdir), file_mounts=mounts)
    return Prepared("j-1", spec, Plan(OFFERINGS, (), None), "local", workdir.parent / "results")


def test_what_a_relative_target_covers_stays_behind_and_is_named(workdir: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home", tmp_path / "home/local")
    home.root.mkdir()
    shot = snapshot(prepared(workdir, "data", "/data", "~/code.py", "new/deep"), home=home)
    assert shot.omitted == ("data/",)
    manifest = json.loads((home.job_dir("j-1") / "snapshot.json").read_text())
    assert [row["path"] for row in manifest["files"]] == ["code.py", "out"]


@pytest.mark.parametrize("target", ["code.py/x", "out/x/y", "out"])
def test_a_target_below_a_file_is_refused_before_anything_is_spent(workdir: Path, tmp_path: Path, target: str) -> None:
    home = Home(tmp_path / "home", tmp_path / "home/local")
    home.root.mkdir()
    with pytest.raises(UsageError, match=r"(code.py is a file|out is a link) of the workdir; choose another target"):
        snapshot(prepared(workdir, target), home=home)
