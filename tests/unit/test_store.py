"""The SQLite store: compare-and-set, one live name, two processes."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.errors import CloudtrainError, Conflict, NotFound
from cloudtrain.provisioner.model import EndReason, JobStatus
from cloudtrain.provisioner.ports import Store
from tests.fake_store import FakeStore
from tests.records import job, over


@pytest.fixture(params=["sqlite", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Every test of the port runs on the adapter and on the fake that other tests use."""
    return SqliteStore(tmp_path / "jobs.db") if request.param == "sqlite" else FakeStore()


def test_a_record_comes_back_as_it_went_in(store: Store) -> None:
    record = job(over(1, 100, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True))
    store.add(record)
    found = store.get(record.job_id)
    assert found.record == record
    assert (found.version, found.etag, found.wanted) == (1, None, "run")


def test_saving_over_a_version_that_is_not_the_newest_is_refused(store: Store) -> None:
    store.add(job())
    assert store.save(replace(job(), failures=1), version=1, etag="a") == 2
    with pytest.raises(Conflict):
        store.save(replace(job(), failures=2), version=1, etag="b")
    assert (store.get(job().job_id).record.failures, store.get(job().job_id).etag) == (1, "a")


def test_two_processes_see_one_store(tmp_path: Path) -> None:
    one, two = SqliteStore(tmp_path / "jobs.db"), SqliteStore(tmp_path / "jobs.db")
    one.add(job())
    one.save(replace(job(), failures=1), version=1, etag=None)
    assert two.get(job().job_id).record.failures == 1
    with pytest.raises(Conflict):
        two.save(job(), version=1, etag=None)


def test_a_name_is_live_once_and_free_again_after_its_end(store: Store) -> None:
    store.add(job())
    with pytest.raises(Conflict, match="live job named 'digits'"):
        store.add(job(job_id="digits-second"))
    store.save(replace(job(), status=JobStatus.SUCCEEDED), version=1, etag=None)
    store.add(job(job_id="digits-second", created_at=1_800_000_001.0))
    assert [s.record.job_id for s in store.list()] == ["digits-abc123", "digits-second"]
    assert [s.record.job_id for s in store.list(live_only=True)] == ["digits-second"]


def test_wanting_live_views_and_events(store: Store) -> None:
    store.add(job())
    store.want(job().job_id, "cancel")
    store.save(replace(job(), failures=1), version=1, etag=None)
    assert store.get(job().job_id).wanted == "cancel", "a save does not undo what the person wants"
    assert store.live(job().job_id) is None
    store.set_live(job().job_id, '{"step": 1}')
    assert store.live(job().job_id) == '{"step": 1}'
    store.add_event(job().job_id, 1.0, "one")
    store.add_event("another", 2.0, "not mine")
    store.add_event(job().job_id, 3.0, "two")
    first, second = store.events(job().job_id)
    assert (first.text, second.text) == ("one", "two")
    assert store.events(job().job_id, after=first.number) == (second,)


def test_an_unknown_job_is_not_found(store: Store) -> None:
    for ask in (store.get, store.wanted):
        with pytest.raises(NotFound, match="no job 'nope'"):
            ask("nope")


def test_what_changed_is_told_without_reading_the_records(store: Store) -> None:
    store.add(job())
    store.add(job(job_id="digits-2", name="other"))
    assert store.heads() == {"digits-abc123": (1, "run"), "digits-2": (1, "run")}
    store.want("digits-2", "stop")
    store.save(replace(job(), failures=1), version=1, etag=None, durable=False)
    assert store.heads() == {"digits-abc123": (2, "run"), "digits-2": (1, "stop")}
    assert store.wanted("digits-2") == "stop"
    store.save(replace(job(), status=JobStatus.SUCCEEDED), version=2, etag=None)
    assert list(store.heads()) == ["digits-2"]


def test_many_threads_write_one_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")

    def life(number: int) -> None:
        record = job(job_id=f"digits-{number}", name=f"digits-{number}")
        store.add(record)
        for version in range(1, 6):
            store.save(replace(record, failures=version), version=version, etag=None, durable=version == 5)
            store.set_live(record.job_id, f'{{"step": {version}}}')
            store.add_event(record.job_id, float(version), f"event {version}")
        with pytest.raises(Conflict):
            store.save(record, version=1, etag=None)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(life, range(64)))
    assert {stored.record.failures for stored in store.list()} == {5}
    assert len(store.events("digits-63")) == 5


def test_a_store_that_was_replaced_is_the_new_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.add(job())
    for path in tmp_path.iterdir():
        path.unlink()
    SqliteStore(tmp_path / "jobs.db")
    assert store.list() == ()
    store.add(job())
    assert len(SqliteStore(tmp_path / "jobs.db").list()) == 1


def test_a_database_of_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "jobs.db")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(CloudtrainError, match="newer cloudtrain"):
        SqliteStore(tmp_path / "jobs.db")


def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"no database" * 1000)
    with pytest.raises(CloudtrainError, match=r"jobs.db is damaged .*`cloudtrain adopt` brings back"):
        SqliteStore(tmp_path / "jobs.db")


def test_a_stop_that_comes_after_a_cancel_does_not_keep_the_job(store: Store) -> None:
    store.add(job())
    for wanted in ("stop", "cancel", "stop"):
        store.want(job().job_id, wanted)
    assert store.get(job().job_id).wanted == "cancel"
    store.want(job().job_id, "run")
    assert store.get(job().job_id).wanted == "run"


def test_a_full_disk_changes_nothing_and_is_said_with_what_to_do(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.add(job())
    with store._write() as db:
        db.execute("PRAGMA max_page_count=10")  # SQLite's own word for it is the same
    with pytest.raises(CloudtrainError, match="is full: nothing was changed, and what runs goes on; make room there"):
        store.add_event(job().job_id, 1.0, "long" * 100_000)
    assert (store.events(job().job_id), store.get(job().job_id).wanted) == ((), "run")
    store.want(job().job_id, "cancel")
    assert store.wanted(job().job_id) == "cancel"
