"""What leftovers cost as long as they stay."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from cloudtrain.pricing import catalog, extras
from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.launch.leftover_prices import total_usd_per_hour, usd_per_hour
from cloudtrain.provisioner.things import Kind, Thing

REGION = "us-east-1"
OFFERING = next(o for o in catalog.load().offerings(CapacityType.SPOT) if o.pool.region == REGION)
PRICE, RATES = OFFERING.price_per_hour.amount, extras.rates(REGION, ())
MACHINE = Thing(Kind.MACHINE, "i-1", REGION, state="running", pool=OFFERING.pool, has_address=True)
VOLUME = Thing(Kind.VOLUME, "vol-1", REGION, size_gib=100)


def test_a_machine_costs_its_pools_price_and_its_address_while_it_runs() -> None:
    assert usd_per_hour(MACHINE) == PRICE + RATES.address_hour_usd
    assert usd_per_hour(replace(MACHINE, has_address=False)) == PRICE
    assert [usd_per_hour(replace(MACHINE, state=state)) for state in ("stopped", "shutting-down")] == [0, 0]


def test_a_volume_costs_by_its_size_and_what_is_free_costs_nothing() -> None:
    assert usd_per_hour(VOLUME) == 100 * RATES.gib_month_usd / 730
    assert usd_per_hour(Thing(Kind.GROUP, "sg-1", REGION)) == 0


def test_an_unknown_zone_costs_as_the_dearest_known_one_and_an_unknown_type_is_left_out() -> None:
    elsewhere = replace(OFFERING.pool, zone_id="use1-az99")
    known = [
        o.price_per_hour.amount
        for o in catalog.load().offerings(CapacityType.SPOT)
        if (o.pool.region, o.pool.instance_type) == (REGION, elsewhere.instance_type)
    ]
    assert usd_per_hour(replace(MACHINE, pool=elsewhere, has_address=False)) == max(known)
    nobodys = replace(MACHINE, pool=Pool("aws", REGION, "use1-az1", "x9.none", CapacityType.SPOT))
    assert usd_per_hour(nobodys) is None
    assert total_usd_per_hour([nobodys, MACHINE, VOLUME]) == (usd_per_hour(MACHINE) or Decimal(0)) + (
        usd_per_hour(VOLUME) or Decimal(0)
    )
