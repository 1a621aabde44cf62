"""`cloudtrain controller`: hidden, and nothing but the controller itself."""

from __future__ import annotations

import pytest

from .world import World


def test_it_runs_the_controller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain.provisioner.cli import controller

    called: list[str] = []
    monkeypatch.setattr(controller, "main", lambda: called.append("main"))
    code, _, _ = world.run("controller")
    assert (code, called) == (0, ["main"])


def test_the_list_of_commands_does_not_name_it(world: World) -> None:
    assert "controller" not in world.run("--help")[1]
