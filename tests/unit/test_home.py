"""The state folder."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import Home


def test_the_id_is_made_once(home: Path) -> None:
    first = Home.from_env().id
    assert first and Home.from_env().id == first


def test_job_folders_are_private(home: Path) -> None:
    folder = Home.from_env().job_dir("digits-abc123")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_homes_can_share_one_embedded_cloud(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Home.from_env().local_home == home / "local"
    monkeypatch.setenv("CLOUDTRAIN_LOCAL_HOME", str(tmp_path / "shared"))
    assert Home.from_env().local_home == tmp_path / "shared"
    monkeypatch.delenv("CLOUDTRAIN_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert Home.from_env().root == tmp_path / "state" / "cloudtrain"


@pytest.mark.parametrize("variable", ["CLOUDTRAIN_HOME", "CLOUDTRAIN_LOCAL_HOME"])
def test_a_home_that_nobody_has_is_refused_by_name(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~nobody-of-this-name/jobs")
    with pytest.raises(UsageError, match=f"{variable}: the folder '~nobody-of-this-name/jobs' is not known"):
        Home.from_env()
