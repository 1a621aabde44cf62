"""The bill: per second, a minute at least, nothing in EC2's own first hour, and the price of each hour."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, PricePoint
from tests.records import job, over

NOW = 1_800_100_000.0


def test_seconds_are_billed_with_one_minute_at_least() -> None:
    spent = bill(job(over(1, 1000, EndReason.SUCCEEDED), over(2, 10, EndReason.CANCELLED)), NOW)
    assert [line.usd for line in spent.lines] == [Decimal("0.1000"), Decimal("0.0060")]


def test_a_machine_that_ec2_takes_in_its_first_hour_is_free_and_later_is_not() -> None:
    early = over(1, 3599, EndReason.INTERRUPTED, by_cloud=True)
    late = over(2, 3600, EndReason.INTERRUPTED, by_cloud=True)
    ours = over(3, 600, EndReason.CANCELLED)
    on_demand = over(4, 600, EndReason.MACHINE_LOST, by_cloud=True, capacity_type=CapacityType.ON_DEMAND)
    spent = bill(job(early, late, ours, on_demand), NOW)
    assert [line.usd for line in spent.lines] == [Decimal(0), Decimal("0.3600"), Decimal("0.0600"), Decimal("0.0600")]
    assert [line.free for line in spent.lines] == [True, False, False, False]


def test_each_hour_is_billed_at_the_price_paid_then() -> None:
    attempt = over(1, 5400, EndReason.SUCCEEDED)
    begin = attempt.running_at or 0
    attempt = replace(
        attempt, prices=(PricePoint(begin - 5, Decimal("0.36")), PricePoint(begin + 3600, Decimal("0.72")))
    )
    assert bill(job(attempt), NOW).usd == Decimal("0.7200")


def test_a_refused_launch_costs_nothing() -> None:
    refused = replace(over(1, 0, EndReason.NO_CAPACITY), running_at=None, started_at=None, start_step=None)
    assert bill(job(refused), NOW).usd == 0


def test_lost_steps_are_those_that_were_trained_twice() -> None:
    one = over(1, 100, EndReason.INTERRUPTED, steps=(0, 140))
    two = over(2, 100, EndReason.SUCCEEDED, steps=(100, 300))
    spent = bill(job(one, two), NOW)
    assert (spent.lost_steps, spent.steps, spent.interruptions) == (40, 300, 1)
    assert not spent.lost_steps_exact, "it went without a word: what it trained after its last report, nobody saw"
    assert bill(job(replace(one, handed_over=True), two), NOW).lost_steps_exact


def test_no_step_is_called_lost_before_the_next_machine_has_resumed() -> None:
    one = over(1, 100, EndReason.INTERRUPTED, steps=(0, 140))
    two = replace(over(2, 10, EndReason.SUCCEEDED), start_step=None, last_step=0)
    assert bill(job(one, two), NOW).lost_steps == 0


def test_what_on_demand_would_have_cost_counts_productive_seconds_alone() -> None:
    one = over(1, 140, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True)
    two = over(2, 200, EndReason.SUCCEEDED, steps=(100, 300))
    spent = bill(job(one, two), NOW)
    assert spent.usd_on_demand == (Decimal(300) * Decimal("0.526") / 3600).quantize(Decimal("0.0001"))
    assert spent.usd == Decimal("0.0200")
    assert spent.savings_pct == Decimal("54.3")  # 1 - 0.0200 / 0.0438


def test_on_demand_would_have_cost_its_first_minute_too() -> None:
    short = replace(over(1, 20, EndReason.SUCCEEDED), run_seconds=20.0, last_step=10)
    spent = bill(replace(job(short), on_demand_usd_per_hour=Decimal("0.60")), NOW)
    assert spent.usd_on_demand == Decimal("0.0100")


def test_without_an_on_demand_price_no_saving_is_claimed() -> None:
    record = replace(job(over(1, 100, EndReason.SUCCEEDED)), on_demand_usd_per_hour=None)
    assert bill(record, NOW).savings_pct is None


@given(
    seconds=st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 100_000), max_size=5),
)
def test_the_total_is_the_sum_of_its_lines_and_cutting_the_price_line_changes_nothing(
    seconds: list[int], cuts: list[int]
) -> None:
    attempts = [over(i + 1, s, EndReason.SUCCEEDED) for i, s in enumerate(seconds)]
    begin = attempts[0].running_at or 0
    pieces = tuple(PricePoint(begin + cut, Decimal("0.36")) for cut in sorted(cuts))
    cut = [replace(a, prices=a.prices + pieces) for a in attempts]
    whole, same = bill(job(*attempts), NOW), bill(job(*cut), NOW)
    assert whole.usd == sum(line.usd for line in whole.lines)
    assert [line.usd for line in whole.lines] == [line.usd for line in same.lines]
