from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.controller.job_secrets import (
    FILE,
    drop_where_over,
    keep_secrets,
    kept_secrets,
    require_secrets,
    secrets_missing,
)
from cloudtrain.provisioner.errors import CloudtrainError, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus
from tests.fake_store import FakeStore
from tests.records import job

NASTY = 'it\'s "quoted"\n$HOME `id` 中文 \udcff'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "local")


def with_secrets(*names: str) -> JobRecord:
    record = job()
    return replace(record, driver="", spec=replace(record.spec, secrets=names))


def test_values_are_kept_whole_and_private(home: Home) -> None:
    record = with_secrets("A", "B")
    folder = home.job_dir(record.job_id)
    assert secrets_missing(record, home) == ("A", "B")
    keep_secrets(record.spec, {"A": NASTY, "B": "x" * 65536, "OTHER": "stays"}, folder)
    assert kept_secrets(record, folder) == {"A": NASTY, "B": "x" * 65536}
    assert secrets_missing(record, home) == ()
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    assert b"stays" not in (folder / FILE).read_bytes()
    assert [path.name for path in folder.iterdir()] == [FILE]
    keep_secrets(record.spec, {"A": "new", "B": "newer"}, folder)
    assert kept_secrets(record, folder) == {"A": "new", "B": "newer"}


def test_a_job_without_secrets_leaves_no_file(home: Home) -> None:
    folder = home.job_dir("digits-abc123")
    keep_secrets(job().spec, {"A": "1"}, folder)
    assert list(folder.iterdir()) == []
    assert kept_secrets(job(), folder) == {}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, "A, B are not set"),
        ({"A": "1"}, "B is not set"),
        ({"A": "1", "B": ""}, "B is not set in this shell, or em"),
    ],
)
def test_one_that_is_not_set_is_named_with_what_to_do(home: Home, environ: dict[str, str], named: str) -> None:
    record = with_secrets("A", "B")
    with pytest.raises(UsageError, match=named) as error:
        require_secrets(record.spec, environ)
    assert "`export " in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UsageError):
        keep_secrets(record.spec, environ, home.job_dir(record.job_id))
    assert list(home.job_dir(record.job_id).iterdir()) == []


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"B": "1"}'])
def test_values_that_are_not_here_stop_a_launch(home: Home, text: str | None) -> None:
    record = with_secrets("A", "B")
    folder = home.job_dir(record.job_id)
    if text is not None:
        (folder / FILE).write_text(text)
    with pytest.raises(
        CloudtrainError, match=r"the value of A.* is not on this computer.*cloudtrain adopt digits-abc123"
    ):
        kept_secrets(record, folder)
    assert "A" in secrets_missing(record, home)


def test_values_go_when_their_job_is_over_and_not_before(home: Home) -> None:
    store, paths = FakeStore(), {}
    for status, driver in (
        *((status, home.id) for status in JobStatus),
        (JobStatus.RUNNING, "elsewhere"),
    ):
        record = replace(with_secrets("A"), job_id=f"{status.lower()}-{driver}", status=status, driver=driver)
        record = replace(record, spec=replace(record.spec, name=record.job_id))
        store.add(record)
        keep_secrets(record.spec, {"A": "1"}, home.job_dir(record.job_id))
        paths[record.job_id] = home.job_dir(record.job_id) / FILE
    launching = home.job_dir("not-stored-yet") / FILE
    launching.write_text("{}")
    drop_where_over(home, store)
    over = {name for name, path in paths.items() if not path.exists()}
    assert over == {
        *(f"{status.lower()}-{home.id}" for status in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)),
        "running-elsewhere",
    }
    assert launching.exists()
