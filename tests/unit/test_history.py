"""The history for machines: written with the record, once, and enough to add the bill up again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from cloudtrain.pricing import extras
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller.journal import Journal
from cloudtrain.provisioner.errors import Conflict
from cloudtrain.provisioner.history import facts
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from cloudtrain.provisioner.ports import Store
from tests.bench import Bench
from tests.fake_agent import World
from tests.fake_store import FakeStore
from tests.fakes import FakeObjectStore
from tests.records import OFFERINGS, job, over
from tests.recount import recount

CENT = Fraction(1, 100)


@pytest.mark.parametrize("notice_s", [None, 120.0])
def test_a_job_that_lost_a_machine_costs_what_its_history_says(tmp_path: Path, notice_s: float | None) -> None:
    world = World(total_steps=3000)
    bench = Bench(tmp_path, world)
    rated = replace(bench.record, region="us-west-2", rates=extras.pinned(OFFERINGS, "us-west-2", []))
    bench.store.save(rated, version=1, etag=None)
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    (machine,) = world.cloud.live()
    if notice_s is None:
        world.cloud.kill(machine.instance_id, "Server.SpotInstanceTermination")
    else:
        world.cloud.interrupt(machine.instance_id, notice_s=notice_s)
    record = bench.run()
    now = world.clock.now()
    history = bench.store.facts(record.job_id)
    assert record.status is JobStatus.SUCCEEDED and len(record.attempts) == 2
    kinds = [(fact.generation, fact.kind) for fact in history]
    assert {(1, "taken"), (1, "gone"), (2, "launched"), (2, "running"), (2, "ended"), (0, "rates")} <= set(kinds)
    assert bill(record, now).usd > 0 and bill(record, now).lines[0].free
    assert abs(recount(history, now) - Fraction(bill(record, now).usd)) < CENT / 10
    assert set(facts(record)) <= set(history)


@pytest.fixture(params=["sqlite", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return SqliteStore(tmp_path / "jobs.db") if request.param == "sqlite" else FakeStore()


def test_facts_are_kept_with_the_record_once_and_in_the_order_in_which_they_became_known(store: Store) -> None:
    first, record = job(), job(over(1, 600, EndReason.SUCCEEDED))
    store.add(first)
    store.save(first, version=1, etag=None, facts=facts(first))
    store.save(record, version=2, etag=None, facts=facts(record))
    assert store.facts(record.job_id) == facts(record)
    with pytest.raises(Conflict):
        store.save(record, version=1, etag=None, facts=facts(job(over(1, 700, EndReason.SUCCEEDED))))
    assert store.facts(record.job_id) == facts(record), "what was not saved did not happen"
    store.add(job(job_id="another", name="another"))
    assert store.facts("another") == ()


def test_progress_alone_writes_no_fact(store: Store) -> None:
    record = job(replace(over(1, 600, EndReason.SUCCEEDED)))
    store.add(record)
    journal = Journal(store, FakeObjectStore(), record.job_id)
    journal.open()
    before = store.facts(record.job_id)
    journal.save(replace(record, attempts=(replace(record.attempts[0], last_step=9, sent_bytes=5),)))
    assert store.facts(record.job_id) == before != ()


def test_a_store_of_the_version_before_learns_to_keep_facts(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "jobs.db").add(job())
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        db.execute("DROP TABLE facts")
        db.execute("PRAGMA user_version=1")
    again = SqliteStore(tmp_path / "jobs.db")
    assert again.facts(job().job_id) == () and again.get(job().job_id).record == job()


def test_an_end_that_is_found_to_have_been_earlier_contradicts_nothing() -> None:
    final = over(1, 600, EndReason.MACHINE_LOST)
    early = replace(final, phase=Phase.ENDING, ended_at=(final.ended_at or 0) + 3600)
    history = (*facts(job(early)), *facts(job(final)))
    now = (final.ended_at or 0) + 86_400
    assert abs(recount(history, now) - Fraction(bill(job(final), now).usd)) < CENT / 100
    assert abs(recount(facts(job(early)), now) - Fraction(bill(job(early), now).usd)) < CENT / 100
