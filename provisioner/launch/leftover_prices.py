"""What leftovers cost as long as they stay, at the catalogue's prices: an estimate. A bill is ``ledger``'s."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import cache

from cloudtrain.pricing import catalog, extras
from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.things import Kind, Thing

HOURS_PER_MONTH = 730  # as AWS's own calculator counts


def usd_per_hour(thing: Thing) -> Decimal | None:
    """What a thing costs in an hour; None where the price of its pool is not known."""
    rates = extras.rates(thing.region, ())
    if thing.kind is Kind.VOLUME:
        return thing.size_gib * rates.gib_month_usd / HOURS_PER_MONTH
    if thing.kind is not Kind.MACHINE or thing.state in ("stopped", "shutting-down"):
        return Decimal(0)
    machine_usd = _price(thing.pool) if thing.pool is not None else None
    if machine_usd is None:
        return None
    return machine_usd + (rates.address_hour_usd if thing.has_address else 0)


def total_usd_per_hour(things: Iterable[Thing]) -> Decimal:
    """All of them together, without those whose price is not known."""
    return sum((usd_per_hour(thing) or Decimal(0) for thing in things), Decimal(0))


@cache
def _price(pool: Pool) -> Decimal | None:
    """The catalogue's price; another zone's, the highest, where it does not know this one."""
    prices = _prices(pool.capacity_type)
    if pool in prices:
        return prices[pool]
    same = [
        usd for other, usd in prices.items() if (other.region, other.instance_type) == (pool.region, pool.instance_type)
    ]
    return max(same, default=None)


@cache
def _prices(market: CapacityType) -> dict[Pool, Decimal]:
    return {o.pool: o.price_per_hour.amount for o in catalog.load().offerings(market)}
