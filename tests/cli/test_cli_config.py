"""`cloudtrain config`: set, seen by other commands, shown with its origin, and never in the way of its own repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .world import World


def test_set_show_unset(world: World) -> None:
    assert world.run("config", "set", "output", "json")[:2] == (0, "output: json\n")
    assert json.loads(world.run("ls")[1]) == {"schema_version": 1, "jobs": []}
    assert world.run("ls", "-o", "table")[1] == ""  # a flag wins
    out = world.run("config", "show", "--origin", "-o", "table")[1]
    assert "/cloudtrain/config.yaml:1" in out
    assert [line.split() for line in out.splitlines()[2:4]] == [["cloud", "aws", "default"], ["region", "-", "default"]]
    assert world.run("config", "unset", "output")[:2] == (0, "output is not set any more\n")
    assert world.run("config", "unset", "output")[1] == ""
    assert world.run("ls")[1] == ""


def test_a_variable_is_said_to_win(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_CLOUD", "local")
    assert "here CLOUDTRAIN_CLOUD decides: cloud is local" in world.run("config", "set", "cloud", "aws")[2]
    shown = json.loads(world.run("config", "show", "-o", "json")[1])
    assert shown["settings"]["cloud"] == {"value": "local", "origin": "CLOUDTRAIN_CLOUD"}


def test_set_keeps_comments_and_other_keys(world: World, tmp_path: Path) -> None:
    world.run("config", "set", "cloud", "local")
    path = tmp_path / "no-config" / "cloudtrain" / "config.yaml"
    path.write_text("# why\n" + path.read_text())
    world.run("config", "set", "region", "us-west-2")
    world.run("config", "set", "region", "eu-west-1")
    assert path.read_text() == "# why\ncloud: local\nregion: eu-west-1\n"
    assert [child.name for child in path.parent.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["set", "regoin", "x"], "unknown key `regoin`: did you mean `region`?"),
        (["set", "cloud", "gcp"], "cloud 'gcp': write aws or local"),
        (["set", "bucket", "a b"], "write a bucket's name"),
        (["unset", "colour"], "unknown key `colour`"),
    ],
)
def test_refusals(world: World, args: list[str], words: str) -> None:
    code, out, err = world.run("config", *args)
    assert (code, out) == (2, "")
    assert words in err


def test_a_wrong_project_file_stops_commands_and_not_their_help_nor_its_repair(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cloudtrain.yaml").write_text("cloud: gcp\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = world.run("ls")
    assert code == 2
    assert "cloudtrain.yaml:1:8: cloud 'gcp': write aws or local" in err
    assert world.run("ls", "--help")[0] == 0
    code, out, _ = world.run("config", "path")
    assert code == 0
    assert str(tmp_path / "cloudtrain.yaml") in out
    assert world.run("completion", "fish")[0] == 0


def test_path_says_where_everything_is_and_makes_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "elsewhere"))
    out = world.run("config", "path")[1]
    assert out.splitlines()[0] == "project  no cloudtrain.yaml from here upwards"
    assert "(not there yet)" in out
    assert str(tmp_path / "elsewhere") in out
    assert not (tmp_path / "elsewhere").exists()


def test_a_wrong_configuration_keeps_nobody_from_ending_a_job(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cloudtrain.yaml").write_text("cloud: [aws]\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = world.run("ls")
    assert (code, "cloudtrain.yaml:1:8: cloud must be text" in err) == (2, True)
    code, _, err = world.run("down", "--all", "--yes")
    assert code == 0
    assert "cloud must be text, not a list; down goes on without it" in err
    assert "no live jobs" in err
