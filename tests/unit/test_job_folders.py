from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cloudtrain.provisioner.controller.folders import MARK, drop_ownerless, hold, let_go
from cloudtrain.provisioner.home import Home
from tests.fake_store import FakeStore
from tests.records import job

HOLD = """
import sys, pathlib
from cloudtrain.provisioner.controller.folders import hold
hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_once_its_launch_has_died_without_a_job(tmp_path: Path) -> None:
    home, store = Home(tmp_path, tmp_path / "local"), FakeStore()
    folder = home.job_dir("digits-abc123")
    (folder / "secrets.json").write_text("{}")
    launch = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=-1, stdout=-1, text=True)
    assert launch.stdout is not None
    assert launch.stdout.readline() == "held\n"
    drop_ownerless(home, store)
    assert (folder / "secrets.json").exists()
    launch.kill()
    launch.communicate()
    drop_ownerless(home, store)
    assert not folder.exists()


def test_the_folder_of_a_job_stays_whatever_became_of_its_launch(tmp_path: Path) -> None:
    home, store, record = Home(tmp_path, tmp_path / "local"), FakeStore(), job()
    store.add(record)
    folder = home.job_dir(record.job_id)
    (folder / MARK).touch()  # killed between the store and letting go
    unknown = home.job_dir("kept-0a1b2c")
    hold(unknown)
    let_go(unknown)  # a job once; its store was lost since, and its keys may be the last ones
    drop_ownerless(home, store)
    assert folder.exists()
    assert unknown.exists()
