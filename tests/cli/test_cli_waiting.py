"""A service that does not answer: a command says what it waits for, ends, and does not claim that it goes on trying."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.cli import account, opening
from cloudtrain.provisioner.errors import CloudUnreachable
from cloudtrain.provisioner.launch import launching
from tests.cli.world import World


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launching, "warm", lambda *_: None)
    path = tmp_path / "job.yaml"
    path.write_text("name: digits\nresources: {accelerators: 'T4:1'}\nrun: echo\n")
    return path


def test_launch_says_what_it_waits_for_and_does_not_wait_for_ever(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def silent(*_: object) -> Any:
        answered.wait(30)
        raise CloudUnreachable("too late")

    monkeypatch.setattr(account, "open_checked", silent)
    monkeypatch.setattr(opening, "SILENT_S", 0.05)
    monkeypatch.setattr(opening, "PATIENCE_S", 0.2)
    code, out, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    answered.set()
    assert (code, out) == (1, "")
    assert "waiting for the local cloud to answer about the account and its bucket" in err
    assert "nothing was started" in err
    assert list((world.home.root / "jobs").glob("*")) == []


def test_a_command_that_ends_does_not_say_that_it_tries_again(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Any:
        raise CloudUnreachable("bucket b: no answer; it is tried again")

    monkeypatch.setattr(account, "open_checked", refused)
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 1
    assert "bucket b: no answer; try again once the network, or the service, answers" in err
    assert "it is tried again" not in err
