"""The record in the bucket and its working copy: whoever writes second, loses, and knows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.controller.journal import DrivenElsewhere, Journal
from cloudtrain.provisioner.errors import CloudUnreachable, Conflict
from cloudtrain.provisioner.model import EndReason
from cloudtrain.provisioner.names import record_key
from tests.fakes import FakeObjectStore
from tests.records import job, over

KEY = record_key(job().job_id)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = SqliteStore(tmp_path / "jobs.db")
    store.add(job())
    return store


def journal(store: SqliteStore, objects: FakeObjectStore) -> Journal:
    made = Journal(store, objects, job().job_id)
    made.open()
    return made


def test_the_bucket_is_written_before_the_working_copy(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    objects.faults.add("put", CloudUnreachable("no network"))
    with pytest.raises(CloudUnreachable):
        mine.save(replace(mine.record, failures=1))
    assert store.get(job().job_id).record.failures == 0
    mine.save(replace(mine.record, failures=1))
    assert decode(objects.objects[KEY]).failures == store.get(job().job_id).record.failures == 1


def test_after_dying_between_the_two_the_buckets_newer_copy_is_taken_up(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    newer = replace(mine.record, failures=2, revision=mine.record.revision + 1)
    objects.objects[KEY] = encode(newer)
    again = journal(store, objects)
    assert again.record.failures == 2
    again.save(replace(again.record, failures=3))
    assert decode(objects.objects[KEY]).failures == 3


def test_a_lost_reply_is_told_from_a_lost_race(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    wanted = replace(mine.record, failures=1, revision=mine.record.revision + 1)
    objects.objects[KEY] = encode(wanted)  # our own write, whose reply never came
    assert mine.save(replace(mine.record, failures=1)) == wanted
    objects.objects[KEY] = encode(replace(wanted, failures=9))
    with pytest.raises(Conflict):
        mine.save(replace(mine.record, failures=4))


def test_an_earlier_write_whose_reply_was_lost_stands_in_nobodys_way(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    objects.faults.add("put", CloudUnreachable("time-out"), when="after")
    with pytest.raises(CloudUnreachable):
        mine.save(replace(mine.record, failures=1))
    mine.save_locally(replace(mine.record, failures=1))
    over = mine.save(replace(mine.record, failures=2))
    assert decode(objects.objects[KEY]) == over
    assert not mine.owing


def test_a_job_that_another_home_has_taken_over_is_let_go(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    objects.objects[KEY] = encode(replace(mine.record, driver="another"))
    with pytest.raises(DrivenElsewhere, match="driven from another computer"):
        mine.save(replace(mine.record, failures=1))
    with pytest.raises(DrivenElsewhere):
        journal(store, objects)


def test_progress_alone_costs_no_request(store: SqliteStore) -> None:
    objects = FakeObjectStore()
    mine = journal(store, objects)
    mine.save(replace(mine.record, attempts=(over(1, 10, EndReason.SUCCEEDED, steps=(0, 5)),)))
    before = objects.objects[KEY]
    mine.save(replace(mine.record, attempts=(over(1, 10, EndReason.SUCCEEDED, steps=(0, 6)),)))
    assert objects.objects[KEY] == before
    assert store.get(job().job_id).record.attempts[0].last_step == 6
