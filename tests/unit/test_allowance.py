"""What limits leave: figures by hand, and what holds for any of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing.model import CapacityType, Rates
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import DEFAULT, LOCAL, limits_of
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint
from cloudtrain.provisioner.plan import price_limit
from cloudtrain.provisioner.spec import Interval, Resources
from tests.records import OFFERINGS, job, offering, over

BEGIN = 1_800_000_000.0


def running(price: str = "0.36", since: float = BEGIN, generation: int = 1) -> Attempt:
    """A machine that costs a ten-thousandth of a dollar a second, unless another price is given."""
    return Attempt(
        generation=generation,
        pool=OFFERINGS[0].pool,
        client_token="ct",
        phase=Phase.WORKING,
        claimed_at=since,
        prices=(PricePoint(since, Decimal(price)),),
        running_at=since,
        started_at=since + 60,
    )


def limited(*attempts: Attempt, **limits: Any) -> JobRecord:
    record = job(*attempts)
    return replace(record, spec=replace(record.spec, **limits))


@pytest.mark.parametrize(
    ("after_s", "ahead_s", "limits", "found"),
    [
        (1000, 0, {}, None),
        (999, 0, {"budget_usd": Decimal("0.10")}, None),
        (1000, 0, {"budget_usd": Decimal("0.10")}, EndReason.BUDGET),
        (880, 119, {"budget_usd": Decimal("0.10")}, None),
        (880, 120, {"budget_usd": Decimal("0.10")}, EndReason.BUDGET),
        (1, 0, {"budget_usd": Decimal("0.006")}, EndReason.BUDGET),  # the first minute is charged whole
        (1, 58, {"budget_usd": Decimal("0.0061")}, None),
        (999, 0, {"max_run_s": 1000.0}, None),
        (880, 120, {"max_run_s": 1000.0}, EndReason.MAX_RUN),
        (880, 120, {"max_run_s": 1000.0, "budget_usd": Decimal("0.10")}, EndReason.BUDGET),
    ],
)
def test_a_limit_is_seen_ahead(after_s: float, ahead_s: float, limits: dict[str, Any], found: EndReason | None) -> None:
    assert allowance.reached(limited(running(), **limits), BEGIN + after_s, ahead_s) is found


def test_a_checkpoint_that_goes_to_another_region_is_seen_ahead_with_its_price() -> None:
    """After an hour at a ten-thousandth of a dollar a second, six checkpoints of 10 GB at $0.01/GB: $0.36 + $0.60."""
    no, to = Decimal(0), (("eu-west-1", Decimal("0.01")),)
    rates = Rates(OFFERINGS[0].pool.region, no, no, no, no, to, date(2026, 11, 1), "")
    record = limited(
        replace(running(), started_at=BEGIN, sent_bytes=60 * 10**9),
        budget_usd=Decimal("1.05"),
        checkpoint_interval=Interval(seconds=600),
    )
    away = replace(record, region="eu-west-1", rates=(rates,))
    now = BEGIN + 3600
    assert bill(away, now).usd == Decimal("0.96")
    assert allowance.reached(away, now, DEFAULT.reserve_s) is None
    assert allowance.near(away, now, DEFAULT) is EndReason.BUDGET, "the last checkpoint costs $0.10 to send"
    assert allowance.near(replace(record, rates=(rates,)), now, DEFAULT) is None, "in its own region it costs nothing"
    assert allowance.seconds_per_gb(away, away.attempts[0]) == 100.0, "$0.01 of $0.36 an hour"
    assert allowance.seconds_per_gb(record, record.attempts[0]) == 0.0
    kept, left = (allowance.machine_limit(r, r.attempts[0], now, DEFAULT) for r in (record, away))
    assert kept is not None and left is not None and left[0] < kept[0]


def test_what_a_machine_takes_is_assumed_at_first_and_measured_then() -> None:
    fresh = limited(checkpoint_interval=Interval(seconds=600))
    assert allowance.need_s(fresh, DEFAULT) == 180 + 0 + 600 + 120
    assert allowance.need_s(replace(fresh, cloud="local"), limits_of("local")) == 10 + 0 + 600 + 15
    assert limits_of("local") is LOCAL
    before = replace(over(1, 1000, EndReason.INTERRUPTED, steps=(0, 100)), restore_s=90.0)
    before = replace(before, running_at=BEGIN - 40, stop_asked_at=BEGIN + 700, ending_at=BEGIN + 1000)
    again = limited(before, checkpoint_interval=Interval(steps=50))
    assert allowance.need_s(again, DEFAULT) == 40 + 90 + 500 + 300  # 50 of its steps took 500 s, saving 300 s


def test_a_machine_is_charged_a_minute_at_least_before_it_is_asked_for() -> None:
    short = limited(checkpoint_interval=Interval(steps=10))
    found = allowance.need(short, offering("use1-az1", "0.36"), BEGIN, LOCAL)
    assert (found.seconds, found.usd) == (25.0, Decimal("0.0060"))


def test_a_price_that_was_paid_lately_counts_more_than_the_plans() -> None:
    dear = replace(over(1, 100, EndReason.TOO_DEAR, price="3.60"), pool=OFFERINGS[0].pool)
    record = limited(dear, checkpoint_interval=Interval(seconds=600))
    assert allowance.need(record, OFFERINGS[0], BEGIN + 100, DEFAULT).usd == Decimal("0.7200")
    assert allowance.need(record, OFFERINGS[0], BEGIN + 7200, DEFAULT).usd == Decimal("0.0300")


def test_a_machine_in_another_region_takes_what_its_checkpoint_costs_to_fetch_and_to_send() -> None:
    no, here = Decimal(0), OFFERINGS[0].pool.region
    there = Rates("eu-west-1", no, no, no, no, ((here, Decimal("0.02")),), date(2026, 11, 1), "")
    back = Rates(here, no, no, no, no, (("eu-west-1", Decimal("0.01")),), date(2026, 11, 1), "")
    before = replace(over(1, 1000, EndReason.INTERRUPTED), received_bytes=10 * 10**9)
    record = replace(limited(before), region="eu-west-1", rates=(there, back))
    free = allowance.need(replace(record, region=here), OFFERINGS[0], BEGIN + 7200, DEFAULT)
    assert allowance.need(record, OFFERINGS[0], BEGIN + 7200, DEFAULT).usd == free.usd + Decimal("0.30")


def test_what_does_not_fit_says_what_is_left_and_what_it_would_take() -> None:
    record = limited(over(1, 1000, EndReason.INTERRUPTED), budget_usd=Decimal("0.11"))
    found = allowance.short(record, OFFERINGS[0], BEGIN + 1000, DEFAULT)
    assert found is not None and found[0] is EndReason.BUDGET
    assert found[1].startswith("$0.0100 of the budget of $0.11 is left, a machine takes $0.0720")
    free = replace(record, attempts=(replace(record.attempts[0], ended_by_cloud=True),))
    assert allowance.short(free, OFFERINGS[0], BEGIN + 1000, DEFAULT) is None, "EC2 took it in its first hour"


def test_a_machine_that_ec2_still_has_to_take_shortens_no_other_ones_time() -> None:
    leaving = replace(running(price="36"), handed_over=True)
    record = limited(leaving, running(since=BEGIN + 10, generation=2), budget_usd=Decimal("1.10"))
    found = allowance.machine_limit(record, record.attempts[1], BEGIN + 10, DEFAULT)
    assert found is not None
    # $0.60 went for the first one's minute, the rest is 5,000 s of the second one: less the reserve, two passes later
    assert found[0] == pytest.approx(5000 - 120 + 10, abs=15)


@given(
    budget=st.none() | st.decimals("0.01", "50", places=2),
    max_run=st.none() | st.floats(60, 1e6),
    price=st.decimals("0.05", "30", places=2),
    ran_s=st.floats(0, 1e5),
)
def test_the_seconds_that_are_left_end_where_the_limit_is_reached(
    budget: Decimal | None, max_run: float | None, price: Decimal, ran_s: float
) -> None:
    record, now = limited(running(str(price)), budget_usd=budget, max_run_s=max_run), BEGIN + ran_s
    found = allowance.seconds_left(record, now)
    if found is None:
        assert allowance.reached(record, now, 365 * 86400.0) is None
        return
    seconds, limit = found
    assert allowance.reached(record, now, seconds + 1.0) is not None
    assert seconds == 0.0 or allowance.reached(record, now, max(0.0, seconds)) is None
    assert limit is (EndReason.BUDGET if budget is not None and max_run is None else limit)


@given(
    budget=st.decimals("0.01", "5", places=2),
    price=st.decimals("0.05", "9", places=2),
    interval=st.floats(1, 3000),
    ran_s=st.floats(0, 5000),
)
def test_what_is_claimed_can_save_before_the_budget_is_passed(
    budget: Decimal, price: Decimal, interval: float, ran_s: float
) -> None:
    attempt = over(1, ran_s, EndReason.MACHINE_LOST)
    record = limited(attempt, budget_usd=budget, checkpoint_interval=Interval(seconds=interval))
    now, pool = BEGIN + ran_s, offering("use1-az2", str(price))
    if allowance.short(record, pool, now, DEFAULT) is None:
        machine = replace(running(str(price), since=now, generation=2), pool=pool.pool)
        after_s = allowance.need_s(record, DEFAULT)
        assert bill(replace(record, attempts=(attempt, machine)), now + after_s).usd <= budget


CASES = [
    ((Resources(accelerators="T4:1", use_spot=True),), None),
    ((Resources(accelerators="T4:1", use_spot=True, max_hourly_cost_usd=Decimal(1)),), Decimal(1)),
    ((Resources(accelerators="A100:8", use_spot=True, max_hourly_cost_usd=Decimal(9)),), None),
    (
        (
            Resources(accelerators="T4:1", use_spot=True, max_hourly_cost_usd=Decimal(1)),
            Resources(accelerators="T4:1", use_spot=False, max_hourly_cost_usd=Decimal(3)),
            Resources(instance_type="g4dn.xlarge", use_spot=True, max_hourly_cost_usd=Decimal(2)),
        ),
        Decimal(2),
    ),
]


@pytest.mark.parametrize(("resources", "most"), CASES)
def test_the_price_limit_of_a_pool_is_that_of_its_alternatives(
    resources: tuple[Resources, ...], most: Decimal | None
) -> None:
    spec = replace(job().spec, resources=resources)
    assert price_limit(spec, offering("use1-az1", "0.36", CapacityType.SPOT)) == most
