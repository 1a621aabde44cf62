"""Completion: the scripts are click's own, the answers come from disk, and nothing is made, imported or raised."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
import pytest

from cloudtrain.provisioner.cli import complete, reference
from cloudtrain.provisioner.model import JobStatus
from tests.records import job

from .world import World, succeeded

HEAVY = {"boto3", "botocore", "paramiko", "torch", "numpy", "rich", "moto", "flask"}
WATCHED = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))))
from cloudtrain.provisioner.cli.main import main
sys.exit(main([]))
"""


def ask(*words: str) -> tuple[list[str], set[str]]:
    """What bash is offered for the last word, and what was imported to answer."""
    line = ["cloudtrain", *words]
    env = {
        **os.environ,
        "_CLOUDTRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(line),
        "COMP_CWORD": str(len(line) - 1),
    }
    done = subprocess.run([sys.executable, "-c", WATCHED], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *offered, modules = done.stdout.strip().splitlines()
    return [word.partition(",")[2] for word in offered if word], set(json.loads(modules))


def test_commands_and_flags(home: Path) -> None:
    offered, modules = ask("l")
    assert offered == ["launch", "ls", "logs", "local"]
    assert not HEAVY & modules
    assert "controller" not in ask("")[0]
    assert "--max-price" in ask("launch", "--m")[0]
    assert ask("logs", "--ta")[0] == ["--tail"]  # of a command that JOB stands for
    assert ask("ls", "-o", "")[0] == ["table", "wide", "json", "csv"]
    assert ask("show", "-o", "")[0] == ["table", "json"]
    assert ask("config", "se")[0] == ["set"]
    assert list(home.iterdir()) == []  # no state was made


@pytest.mark.parametrize("command", ["show", "cost"])
def test_any_job(world: World, command: str) -> None:
    jobs(world)
    offered, modules = ask(command, "d")
    assert offered == ["digits", "digits-live11", "digits-old222"]
    assert not HEAVY & modules


@pytest.mark.parametrize("command", ["down", "ssh"])
def test_live_jobs_where_only_those_make_sense(world: World, command: str) -> None:
    jobs(world)
    assert ask(command, "d")[0] == ["digits", "digits-live11"]
    assert ask(command, "digits-o")[0] == []


def test_what_stands_for_a_command_completes_what_the_command_does() -> None:
    """So that TAB need not import the command."""
    for name, command in reference.commands():
        own = [p._custom_shell_complete for p in command.params if isinstance(p, click.Argument)]
        if " " not in name and any(own):
            assert complete.JOB_COMMANDS.get(name, own[0]) is own[0]
        else:
            assert name not in complete.JOB_COMMANDS


def test_a_job_that_is_given_already_is_not_offered_again(world: World) -> None:
    jobs(world)
    assert ask("down", "digits-live11", "d")[0] == ["digits"]


def jobs(world: World) -> None:
    world.add(replace(succeeded(job(job_id="digits-old222"), 1.0), created_at=1.0))
    world.add(replace(job(job_id="digits-live11"), status=JobStatus.RUNNING))


def test_a_damaged_store_offers_nothing(home: Path) -> None:
    (home / "jobs.db").write_bytes(b"this is no database" * 100)
    assert ask("show", "")[0] == []
    (home / "jobs.db").unlink()
    (home / "jobs.db").mkdir()
    assert ask("show", "")[0] == []
    assert [path.name for path in home.iterdir()] == ["jobs.db"]


def test_reading_leaves_no_trace(world: World) -> None:
    jobs(world)
    with closing(sqlite3.connect(world.home.root / "jobs.db")) as db:  # as the last process that leaves it does
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (world.home.root / name).unlink(missing_ok=True)
    before = {path.name: path.read_bytes() for path in world.home.root.iterdir() if path.is_file()}
    assert ask("show", "digits-o")[0] == ["digits-old222"]
    assert {path.name: path.read_bytes() for path in world.home.root.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_takes(world: World, shell: str) -> None:
    code, out, err = world.run("completion", shell)
    assert code == 0
    assert "_CLOUDTRAIN_COMPLETE" in out
    assert "cloudtrain completion" in err
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True)


def test_another_shell_is_refused(world: World) -> None:
    code, _, err = world.run("completion", "csh")
    assert (code, "'bash', 'zsh', 'fish'" in err) == (2, True)
