"""The story as a user without rights, which is what most people are: no link of it needs root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import COMMAND, Person, digits_job
from tests.plain_user import PROJECT, plain_user
from tests.ssh.hostkit import KINDS, require

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-plain-user")]

EPOCHS = 4


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loss and accuracy of the same training in one piece."""
    folder = tmp_path_factory.mktemp("unbroken")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")}
    env |= {"CLOUDTRAIN_OUTPUT_DIR": str(folder), "CLOUDTRAIN_PROGRESS": str(folder / "progress.json")}
    command = [sys.executable, "-m", "cloudtrain.trainer", "--epochs", str(EPOCHS), "--seed", "7"]
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=120)
    return json.loads((folder / "progress.json").read_text())["metrics"]


@contextmanager
def plain_person() -> Iterator[tuple[Person, int]]:
    """Somebody who is not root, in a home of their own, and their user id."""
    with plain_user() as user:
        extra = {"HOME": str(user.folder), "PYTHONPATH": str(PROJECT)}
        someone = Person(user.folder / "home", (*user.words, *COMMAND), user.folder, extra)
        try:
            yield someone, user.uid
        finally:
            someone.leave()


def owners(folder: Path) -> set[int]:
    """The user ids of all that lies below a folder."""
    return {path.lstat().st_uid for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_story_with_an_interruption(kind: str, unbroken: Any) -> None:
    require(kind)
    with plain_person() as (person, uid):
        assert uid != 0
        assert person.cwd is not None
        person.ok("local", "up", "--hosts", kind)
        assert client.interrupt(person.cloud(), "digits", at_step=60, notice_s=4) is False
        run = f'[ "$(id -u)" = {uid} ] || exit 1\npython -m cloudtrain.trainer --epochs {EPOCHS} --seed 7'
        job = digits_job(person.cwd / "job.yaml", run=run)
        report = person.launch(job)
        assert report["status"] == "SUCCEEDED"
        assert (report["steps"], report["lost_steps"], report["interruptions"]) == (EPOCHS * 43, 0, 1)
        assert [a["end_reason"] for a in report["attempts"]] == ["interrupted", "succeeded"]
        assert report["attempts"][1]["start_step"] >= 60
        assert report["metrics"] == unbroken
        assert json.loads((Path(report["results"]) / "metrics.json").read_text())
        assert person.machines() == []
        job.unlink()
        assert owners(person.cwd) == {uid}
