"""Simulated spot prices: a seeded walk around the catalogue's price, per instance type and zone. Pure.

The price of a pool is constant within a tick and moves from tick to tick. It is a function of (seed, pool, tick), so a
history can be asked for any stretch of time, also before the cloud was started, and is the same every time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from cloudtrain.pricing.model import CapacityType, Offering

TICK_S = 60.0
SWING = 0.15
"""The walk stays within this share of the catalogue's price, either way."""
_WAVES = (1, 5, 30)  # in ticks: a jitter, a drift, a tide
_MICRO = Decimal("0.000001")  # EC2 quotes six decimals


@dataclass(frozen=True, slots=True)
class Quote:
    """What a pool costs from ``at`` (Unix seconds) on, in USD per hour."""

    instance_type: str
    zone_id: str
    at: float
    usd_per_hour: Decimal


class Market:
    """The spot market over a catalogue. A pool without a spot price in the catalogue has none here either."""

    def __init__(self, offerings: Iterable[Offering], *, seed: int = 0, tick_s: float = TICK_S) -> None:
        self.seed = seed
        self.tick_s = tick_s
        self._base = {
            (o.pool.instance_type, o.pool.zone_id): o.price_per_hour.amount
            for o in offerings
            if o.pool.capacity_type is CapacityType.SPOT
        }

    def price(self, instance_type: str, zone_id: str, at: float) -> Decimal | None:
        """USD per hour at a moment, or None where the pool has no spot price."""
        base = self._base.get((instance_type, zone_id))
        if base is None:
            return None
        tick = math.floor(at / self.tick_s)
        factor = 1 + SWING * _walk(f"{self.seed}/{instance_type}/{zone_id}", tick)
        return max((base * Decimal(repr(factor))).quantize(_MICRO), _MICRO)

    def history(self, instance_type: str, zone_id: str, start: float, end: float) -> Iterator[Quote]:
        """The quotes that held between two moments, newest first; the last one began at or before ``start``."""
        tick = math.floor(end / self.tick_s)
        while True:
            at = tick * self.tick_s
            price = self.price(instance_type, zone_id, at)
            if price is None:
                return
            yield Quote(instance_type, zone_id, at, price)
            if at <= start:
                return
            tick -= 1

    def pools(self) -> Iterator[tuple[str, str]]:
        """Every (instance type, zone id) that has a spot price, in order."""
        return iter(sorted(self._base))


def _walk(key: str, tick: int) -> float:
    """A number in [-1, 1]: noise of several wavelengths, each interpolated between its own random points."""
    total = 0.0
    for period in _WAVES:
        index, offset = divmod(tick, period)
        left, right = _noise(f"{key}/{period}/{index}"), _noise(f"{key}/{period}/{index + 1}")
        total += left + (right - left) * offset / period
    return total / len(_WAVES)


def _noise(key: str) -> float:
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 0xFFFFFFFF * 2 - 1
