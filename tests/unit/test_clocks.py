"""Clocks that step, computers that sleep, and days of 23 and 25 hours: no duration, bill or decision follows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli.words import clock_time
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.journal import SLEPT_S, DrivenElsewhere
from cloudtrain.provisioner.decide.job import decide
from cloudtrain.provisioner.errors import CloudUnreachable
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobStatus, Observed, PricePoint
from cloudtrain.provisioner.names import record_key
from tests.bench import Bench
from tests.fake_agent import World
from tests.records import job, over


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(tmp_path: Path, world: World) -> Bench:
    return Bench(tmp_path, world)


@pytest.fixture(params=["America/New_York", "Asia/Shanghai", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("step_s", [-7200.0, -1.0, 3600.0, 10 * 365 * 86400.0])
def test_the_wall_clock_may_step_and_a_duration_does_not(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    clock, real = SystemClock(), time.time
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    assert 0 <= clock.now() - before < 5
    assert 0 <= SystemClock().now() - before < 5, "all clocks of a process agree"


def test_the_clock_is_utc_and_counts_a_computers_sleep() -> None:
    assert abs(SystemClock().now() - time.time()) < 5
    here, boot = time.clock_gettime(time.CLOCK_BOOTTIME), SystemClock().now()
    time.sleep(0.01)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - here
    assert SystemClock().now() - boot == pytest.approx(passed, abs=0.005)


def taken_over(world: World, bench: Bench, tmp_path: Path) -> None:
    found = takeover.look(world.objects, bench.record.job_id)
    takeover.take(found, "another-home", tmp_path / "there", world.objects)


@pytest.mark.parametrize("asleep_s", [2 * SLEPT_S + 10, 8 * 3600.0])
def test_who_slept_between_deciding_and_doing_does_nothing_to_what_another_drives(
    tmp_path: Path, bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch, asleep_s: float
) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    loop = bench.loop()
    loop.open()
    bench.store.want(bench.record.job_id, "cancel")
    for _ in range(3):  # the stop is asked for, and the machine is about to be ended
        loop.pass_once()
    real = world.cloud.machines

    def asleep(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        world.clock.advance(asleep_s)
        taken_over(world, bench, tmp_path)
        return found

    monkeypatch.setattr(world.cloud, "machines", asleep)
    ended = world.cloud.count("terminate")
    with pytest.raises(DrivenElsewhere):
        loop.pass_once()
    assert world.cloud.count("terminate") == ended and world.cloud.live()


def test_after_a_pause_nothing_is_done_before_the_bucket_has_said_whose_the_job_is(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(until=lambda: any(a.step >= 50 for a in world.agents.values()))
    loop = bench.loop()
    loop.open()
    bench.store.want(bench.record.job_id, "cancel")
    monkeypatch.setattr(world, "run", None, raising=False)  # no word may reach the machine either
    world.clock.advance(3600)
    get = world.objects.get

    def silent(key: str) -> tuple[bytes, str] | None:
        if key == record_key(bench.record.job_id):
            raise CloudUnreachable("the network is not back yet")
        return get(key)

    monkeypatch.setattr(world.objects, "get", silent)
    for _ in range(5):
        with pytest.raises(CloudUnreachable, match="not back yet"):
            loop.pass_once()
    assert world.cloud.count("terminate") == 0 and world.cloud.live()
    monkeypatch.undo()
    assert bench.run().status is JobStatus.CANCELLED and not world.cloud.live()


def test_a_machine_that_came_up_while_its_computer_slept_is_billed_from_its_launch(bench: Bench, world: World) -> None:
    bench.run(until=lambda: bool(world.cloud.live()))
    launched = world.clock.now()
    world.clock.advance(3 * 3600)
    record = bench.run(until=lambda: bench.store.get(bench.record.job_id).record.attempts[0].running_at is not None)
    assert (record.attempts[0].running_at or 0) <= launched
    assert bill(record, world.clock.now()).seconds >= 3 * 3600


AUTUMN = datetime(2026, 11, 1, 4, tzinfo=UTC).timestamp()  # New York sets its clocks back two hours later
SPRING = datetime(2027, 3, 14, 5, tzinfo=UTC).timestamp()  # and forward, two hours after this


@pytest.mark.parametrize("begin", [AUTUMN, SPRING])
def test_a_night_in_which_clocks_change_costs_what_any_four_hours_do(zone: str, begin: float) -> None:
    attempt = replace(over(1, 4 * 3600, EndReason.SUCCEEDED), prices=(PricePoint(begin, Decimal("0.36")),))
    attempt = replace(attempt, claimed_at=begin, running_at=begin, started_at=begin, ended_at=begin + 4 * 3600)
    record = replace(job(attempt, created_at=begin), finished_at=begin + 4 * 3600)
    spent = bill(record, begin + 86_400)
    assert (spent.seconds, spent.usd) == (4 * 3600, Decimal("1.44"))
    told = report.final(record, begin + 86_400)
    started, ended = (datetime.fromisoformat(str(told[key])) for key in ("started", "ended"))
    assert (ended - started).total_seconds() == 4 * 3600 and started.tzinfo is not None, zone


def test_events_are_told_in_the_hours_of_the_person_and_a_deadline_with_its_zone(zone: str) -> None:
    hours = {
        "America/New_York": ("01:30:00", "01:30:00", "03:00:00"),
        "Asia/Shanghai": ("13:30:00", "14:30:00", "15:00:00"),
        "UTC": ("05:30:00", "06:30:00", "07:00:00"),
    }
    assert tuple(clock_time(at) for at in (AUTUMN + 5400, AUTUMN + 9000, SPRING + 7200)) == hours[zone]
    record = job(created_at=AUTUMN)
    record = replace(record, spec=replace(record.spec, deadline_s=5400.0))
    told = decide(record, Observed(machines=()), AUTUMN + 5400.0 + 1)
    assert "2026-11-01 05:30 UTC" in " ".join(told.events), "01:30 is there twice in New York"


def test_a_clock_that_was_set_back_between_two_controllers_makes_no_negative_money() -> None:
    attempt = replace(over(1, 600, EndReason.SUCCEEDED), ended_at=1_800_000_000.0 - 7200, launched_at=1_800_000_500.0)
    spent = bill(job(attempt), 1_800_000_000.0)
    assert (spent.seconds, spent.usd) == (0, Decimal("0.006")), "a minute at least, and no less than nothing"
    live = replace(attempt, ended_at=None)
    assert bill(job(live), 1_800_000_000.0 - 86_400).usd == Decimal("0.006")
