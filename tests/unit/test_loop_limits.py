"""The loop under limits of money and time: saved, collected, gone, and never more than a poll over."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.provisioner import report
from cloudtrain.provisioner.controller.loop import PAUSE_S
from cloudtrain.provisioner.decide.limits import limits_of
from cloudtrain.provisioner.errors import EXIT_LIMIT
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from cloudtrain.provisioner.spec import Interval, Resources
from cloudtrain.trainer.contract import Keys, latest_from_json
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.records import OFFERINGS, offering

POLL_S = 5.0  # the bench's pause between two passes
OFTEN = Interval(seconds=60)
PRICE = Decimal("1.50")  # an hour costs more than it does elsewhere, for tests that take fewer passes


@pytest.mark.parametrize("cloud", ["aws", "local"])
def test_a_pass_is_no_longer_than_limits_are_looked_ahead(cloud: str) -> None:
    assert max(PAUSE_S[cloud]) == limits_of(cloud).poll_s


def long_world() -> World:
    """A job that would take a day."""
    world = World(total_steps=86_400)
    world.cloud.prices = {o.pool: PRICE for o in OFFERINGS}
    return world


def test_a_budget_ends_a_job_saved_collected_and_at_most_a_poll_over(tmp_path: Path) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, budget_usd=Decimal("0.50"), checkpoint_interval=OFTEN)
    record = bench.run()
    (attempt,) = record.attempts
    assert (record.status, record.outcome, attempt.end_reason) == (JobStatus.FAILED, EndReason.BUDGET, EndReason.BUDGET)
    assert report.exit_code(record) == EXIT_LIMIT == 5
    spent = bill(record, world.clock.now()).usd
    assert Decimal("0.45") < spent <= Decimal("0.50") + PRICE * int(POLL_S) / 3600
    assert attempt.durable_step == attempt.last_step > 900, "its last checkpoint was waited for"
    kept = f" of the budget of $0.50 is spent; its checkpoint of step {attempt.durable_step} is kept"
    assert record.detail is not None and record.detail.endswith(kept)
    assert record.collected and record.swept
    assert "of the budget of $0.50 is spent; it saves a last checkpoint and goes" in bench.events()
    nothing_left(world)


def test_an_agent_that_does_not_answer_is_ended_at_the_limit_itself(tmp_path: Path) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, budget_usd=Decimal("0.30"), checkpoint_interval=OFTEN)
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (agent,) = world.agents.values()
    agent.config = replace(agent.config, limit_s=None)  # nor does it keep the limit by itself
    world.cut = True
    record = bench.run()
    assert record.outcome is EndReason.BUDGET
    assert record.attempts[0].end_detail is not None and "ended without waiting" in record.attempts[0].end_detail
    assert bill(record, world.clock.now()).usd <= Decimal("0.30") + PRICE * int(POLL_S) / 3600
    nothing_left(world)


def test_max_run_is_the_sum_over_all_machines(tmp_path: Path) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, max_run_s=1800.0, checkpoint_interval=OFTEN)
    bench.run(until=lambda: any(a.step >= 500 for a in world.agents.values()))
    world.cloud.interrupt(world.cloud.live()[0].instance_id)
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.INTERRUPTED, EndReason.MAX_RUN]
    assert (record.outcome, report.exit_code(record)) == (EndReason.MAX_RUN, EXIT_LIMIT)
    assert 1800 - 120 <= bill(record, world.clock.now()).seconds <= 1800 + POLL_S
    assert record.attempts[-1].durable_step == record.attempts[-1].last_step
    nothing_left(world)


def test_nothing_is_launched_that_what_is_left_does_not_pay_for(tmp_path: Path) -> None:
    world = long_world()
    record = Bench(tmp_path, world, budget_usd=Decimal("0.01")).run()
    assert (record.outcome, record.status) == (EndReason.BUDGET, JobStatus.FAILED)
    assert world.cloud.count("launch") == 0
    assert record.detail is not None
    # 180 s to boot, 600 s to a checkpoint, 120 s to save and go, at $0.15 an hour
    assert record.detail.startswith("$0.0100 of the budget of $0.01 is left, a machine takes $0.0375")


def test_a_dearer_pool_is_passed_over_for_the_next_one_that_what_is_left_pays_for(tmp_path: Path) -> None:
    world = long_world()
    pools = (offering("use1-az1", "0.15"), offering("use1-az2", "0.16"), offering("use1-az4", "0.17"))
    world.cloud.prices = {pools[0].pool: Decimal("0.90"), pools[1].pool: Decimal("0.16")}
    bench = Bench(tmp_path, world, pools, budget_usd=Decimal("0.05"), checkpoint_interval=OFTEN)
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.TOO_DEAR, EndReason.BUDGET]
    assert "at $0.90/h: $0.0500 of the budget of $0.05 is left, a machine takes $0.09" in bench.events()
    assert world.cloud.count("launch") == 1


CAPPED = (Resources(accelerators="T4:1", use_spot=True, max_hourly_cost_usd=Decimal("0.30")),)


def test_a_pool_whose_price_now_is_too_high_is_not_launched(tmp_path: Path) -> None:
    world = World()
    pools = (offering("use1-az1", "0.15"), offering("use1-az2", "0.16"))
    world.cloud.prices = {pools[0].pool: Decimal("0.31")}
    bench = Bench(tmp_path, world, pools, resources=CAPPED)
    record = bench.run()
    assert [a.end_reason for a in record.attempts] == [EndReason.TOO_DEAR, EndReason.SUCCEEDED]
    assert world.cloud.count("launch") == 1
    assert "its spot price is $0.31/h now, max_hourly_cost is $0.30" in bench.events()


def test_a_machine_whose_price_rises_saves_and_makes_room_for_another(tmp_path: Path) -> None:
    world = World(total_steps=4300)
    pools = (offering("use1-az1", "0.15"), offering("use1-az2", "0.16"))
    bench = Bench(tmp_path, world, pools, resources=CAPPED)
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    world.cloud.prices = {pools[0].pool: Decimal("0.31")}
    world.clock.sleep(3600)  # the price is read anew each hour
    record = bench.run()
    one, two = record.attempts
    assert (one.end_reason, two.end_reason) == (EndReason.TOO_DEAR, EndReason.SUCCEEDED)
    assert (one.pool, two.pool) == (pools[0].pool, pools[1].pool)
    assert two.start_step == one.durable_step == one.last_step
    assert (record.failures, record.preemptions) == (0, 0)
    assert "its price has risen to $0.31/h, max_hourly_cost is $0.30" in bench.events()
    nothing_left(world)


def test_a_job_that_ends_by_itself_while_it_saves_has_succeeded(tmp_path: Path) -> None:
    world = World(total_steps=1200)
    bench = Bench(tmp_path, world, max_run_s=1350.0, checkpoint_interval=OFTEN)  # asked at 1230 s of machine time
    record = bench.run()
    assert record.attempts[0].leave is None or record.outcome is EndReason.SUCCEEDED
    assert record.status is JobStatus.SUCCEEDED


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=st.decimals("0.20", "1.00", places=2),
    prices=st.lists(st.decimals("0.50", "9.00", places=2), min_size=1, max_size=8),
    interrupts=st.sets(st.integers(100, 2000), max_size=3),
)
def test_no_series_of_prices_and_interruptions_passes_the_budget_by_more_than_a_poll(
    tmp_path_factory: pytest.TempPathFactory, budget: Decimal, prices: list[Decimal], interrupts: set[int]
) -> None:
    world = long_world()
    bench = Bench(tmp_path_factory.mktemp("job"), world, budget_usd=budget, checkpoint_interval=OFTEN)
    began, due = world.clock.now(), sorted(interrupts)

    def meddle() -> bool:
        passed = world.clock.now() - began
        for o in bench.record.offerings:
            world.cloud.prices[o.pool] = prices[int(passed // 600) % len(prices)]
        if due and passed > due[0] and world.cloud.live():
            due.pop(0)
            world.cloud.interrupt(world.cloud.live()[0].instance_id)
        return False

    record: JobRecord = bench.run(until=meddle, passes=20_000)
    burn = sum((a.prices[-1].usd_per_hour for a in record.attempts), Decimal(0)) * int(POLL_S) / 3600
    assert record.outcome in (EndReason.BUDGET, EndReason.NO_CAPACITY)
    assert bill(record, world.clock.now()).usd <= budget + burn
    nothing_left(world)
    latest = world.objects.objects.get(Keys(record.prefix).latest)
    if latest is not None and any(a.last_step for a in record.attempts):
        assert latest_from_json(latest).step is not None


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [({"budget_usd": Decimal("0.50")}, EndReason.BUDGET), ({"max_run_s": 1200.0}, EndReason.MAX_RUN)],
)
def test_a_machine_keeps_the_limits_while_nobody_watches(
    tmp_path: Path, limits: dict[str, Any], outcome: EndReason
) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, checkpoint_interval=OFTEN, **limits)
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    for _ in range(60):  # the laptop sleeps
        world.clock.sleep(30)
    assert world.cloud.live() == []
    record = bench.run()
    assert (record.outcome, record.attempts[0].end_reason) == (outcome, outcome)
    (agent,) = world.agents.values()
    assert agent.failure == ("budget" if outcome is EndReason.BUDGET else "max_run")
    assert record.collected and agent.durable == agent.step
    if "budget_usd" in limits:
        ran_s = (world.cloud.instances[agent.instance_id].shutting_down_at or 0) - agent.started_at
        assert 1200 - 180 < ran_s < 1200, "0.50 USD at 1.50 an hour, less what it takes to save and go"


def test_a_second_machine_is_told_what_is_left_not_the_whole(tmp_path: Path) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, max_run_s=3000.0, checkpoint_interval=OFTEN)
    bench.run(until=lambda: any(a.step >= 500 for a in world.agents.values()))
    world.cloud.interrupt(world.cloud.live()[0].instance_id)
    bench.run(until=lambda: len(world.agents) == 2)
    first, second = (a.config.limit_s or 0.0 for a in world.agents.values())
    assert first - second == pytest.approx(500 + 30, abs=90)
    ends = [i.request.user_data for i in world.cloud.instances.values()]
    assert all("hard=" in text for text in ends) and ends[0] != ends[1]


def test_a_machine_that_stopped_for_a_price_which_has_fallen_since_is_no_end(tmp_path: Path) -> None:
    world = long_world()
    bench = Bench(tmp_path, world, budget_usd=Decimal("3.00"), checkpoint_interval=OFTEN)  # two hours, it believes
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    world.cloud.prices = {o.pool: Decimal("0.15") for o in OFFERINGS}
    world.clock.sleep(3600)
    bench.run(until=lambda: any(a.phase == "failed" for a in world.agents.values()))
    record = bench.run(until=lambda: len(world.agents) == 2)
    assert record.attempts[0].end_reason is EndReason.BUDGET and record.outcome is None
    assert bill(record, world.clock.now()).usd < Decimal("2.00")
