from __future__ import annotations

from datetime import date
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool
from cloudtrain.provisioner.localcloud.market import SWING, Market

AT = 1_800_000_000.0
TYPE = InstanceType("g4dn.xlarge", "T4", 1, 16, 4, 16, "x86_64", 125, "a test", date(2026, 11, 1))


def offering(zone: str, usd: str, capacity: CapacityType = CapacityType.SPOT) -> Offering:
    pool = Pool("aws", "us-east-1", zone, TYPE.name, capacity)
    return Offering(pool, TYPE, Money(Decimal(usd)), "a test", date(2026, 11, 1))


def market(seed: int = 0) -> Market:
    return Market([offering("use1-az1", "0.20"), offering("use1-az2", "0.20")], seed=seed)


@given(st.integers(0, 2**31), st.floats(0, 4e9))
def test_a_price_stays_near_the_catalogue(seed: int, at: float) -> None:
    price = market(seed).price("g4dn.xlarge", "use1-az1", at)
    assert price is not None
    assert Decimal("0.20") * Decimal(str(1 - SWING)) <= price <= Decimal("0.20") * Decimal(str(1 + SWING))


def test_prices_move_with_time_differ_by_zone_and_repeat_by_seed() -> None:
    ticks = [AT + 60 * n for n in range(30)]
    here = [market().price("g4dn.xlarge", "use1-az1", at) for at in ticks]
    there = [market().price("g4dn.xlarge", "use1-az2", at) for at in ticks]
    assert len(set(here)) > 20
    assert here != there
    assert here == [market().price("g4dn.xlarge", "use1-az1", at) for at in ticks]
    assert here != [market(1).price("g4dn.xlarge", "use1-az1", at) for at in ticks]


def test_no_price_where_the_catalogue_has_none() -> None:
    only_on_demand = Market([offering("use1-az1", "0.526", CapacityType.ON_DEMAND)])
    assert only_on_demand.price("g4dn.xlarge", "use1-az1", AT) is None
    assert list(only_on_demand.history("g4dn.xlarge", "use1-az1", AT - 600, AT)) == []


def test_history_is_newest_first_and_reaches_back_to_the_price_at_its_start() -> None:
    quotes = list(market().history("g4dn.xlarge", "use1-az1", AT - 150, AT + 1))
    times = [quote.at for quote in quotes]
    assert times == sorted(times, reverse=True)
    assert times[-1] <= AT - 150 < times[-2]
    assert all(q.usd_per_hour == market().price(q.instance_type, q.zone_id, q.at + 59) for q in quotes)


def test_history_of_now_is_the_current_price_alone() -> None:
    [quote] = market().history("g4dn.xlarge", "use1-az1", AT + 30, AT + 30)
    assert quote.usd_per_hour == market().price("g4dn.xlarge", "use1-az1", AT + 30)
