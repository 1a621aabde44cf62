"""Job files on disk: bytes, line ends, the workdir beside them, and the shipped template."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.jobfile.reader import load, loads
from cloudtrain.provisioner.spec import Interval
from cloudtrain.trainer import __main__ as trainer_main

RUN = "resources: {accelerators: T4:1}\nrun: x\n"
TEXT = """\
name: lines
resources:
  accelerators:
    - H100:8
    - A100:8
envs: {A: "1"}
run: |
  cd src
  python train.py
checkpoint: {interval: 10m}
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_windows_files_are_the_same_files(tmp_path: Path, newline: str, bom: bytes) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(bom + TEXT.replace("\n", newline).encode())
    assert load(path) == loads(TEXT, path=path)
    path.write_bytes(bom + f"run: x{newline}resources: {{}}{newline}nme: y".encode())
    with pytest.raises(UsageError, match=r"job\.yaml:3:1: unknown key"):
        load(path)


def test_the_workdir_is_taken_from_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "my code").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(RUN + "workdir: ../my code")
    monkeypatch.chdir(tmp_path)
    spec = load(Path("jobs/job.yaml"))
    assert spec.workdir == str(tmp_path / "my code")
    assert load(tmp_path / "jobs" / "job.yaml") == spec


@pytest.mark.parametrize(("make_file", "says"), [(False, "does not exist"), (True, "is not a folder")])
def test_a_missing_workdir_is_refused_at_its_place(tmp_path: Path, make_file: bool, says: str) -> None:
    if make_file:
        (tmp_path / "code").touch()
    path = tmp_path / "job.yaml"
    path.write_text(RUN + "workdir: code\n")
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:3:10: workdir {tmp_path / 'code'} {says}: create it, or take `workdir` out"


@pytest.mark.parametrize("workdir", ["x" * 5000, "~no-such-user-here/code", "loop"])
def test_a_workdir_that_cannot_be_looked_at(tmp_path: Path, workdir: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / "job.yaml"
    path.write_text(RUN + f"workdir: {workdir}\n")
    with pytest.raises(UsageError, match=r"job\.yaml:3:10: workdir .*: create it"):
        load(path)


def test_a_workdir_behind_a_link_is_the_one_that_the_shell_would_enter(tmp_path: Path) -> None:
    (tmp_path / "real" / "jobs").mkdir(parents=True)
    (tmp_path / "real" / "code").mkdir()
    (tmp_path / "jobs").symlink_to("real/jobs")
    (tmp_path / "jobs" / "job.yaml").write_text(RUN + "workdir: ../code")
    assert load(tmp_path / "jobs" / "job.yaml").workdir == str(tmp_path / "real" / "code")


def test_the_templates_command_is_one_that_the_trainer_takes() -> None:
    spec = load(Path(__file__).parents[2] / "templates" / "digits.yaml")
    words = shlex.split(spec.run)
    assert words[:3] == ["python", "-m", "cloudtrain.trainer"]
    assert trainer_main._parser().parse_args(words[3:]).epochs == 30
    assert (spec.name, spec.resources[0].accelerators, spec.resources[0].use_spot) == ("digits", "T4:1", True)
    assert (spec.checkpoint_interval, spec.checkpoint_keep) == (Interval(steps=100), 3)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no such job file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="can't be read"):
        load(tmp_path)
    path = tmp_path / "job.yaml"
    path.write_bytes(b"run: x\nname: \xff\n")
    with pytest.raises(UsageError, match=r"job\.yaml:2:7: not UTF-8"):
        load(path)
    path.write_bytes(b"#" * 300_000)
    with pytest.raises(UsageError, match="longer than 256 KiB"):
        load(path)
