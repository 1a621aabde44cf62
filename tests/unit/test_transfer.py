"""The table of what moving and keeping data costs."""

from __future__ import annotations

from decimal import Decimal

from cloudtrain.pricing import transfer
from cloudtrain.pricing.transfer import FREE, between, storage


def test_within_a_region_nothing_is_paid_and_beyond_it_the_nearest_row_counts() -> None:
    assert between("eu-west-1", "eu-west-1") is FREE
    assert between("nowhere-1", "nowhere-1") is FREE
    prices = [between("us-east-1", to) for to in ("us-east-2", "us-west-2")]
    assert [rate.usd_per_gb for rate in prices if rate is not None] == [Decimal("0.01"), Decimal("0.02")]
    assert between("nowhere-1", "us-east-1") is None, "what is not known is not free"
    assert storage("nowhere-1") is None


def test_every_row_has_a_source_and_a_price_that_can_be() -> None:
    rates = transfer.load()
    assert all(rate.source and rate.as_of is not None and 0 < rate.usd_per_gb < 1 for rate in rates.values())
    assert {"internet", "month", "other-regions"} <= {what for _, what in rates}
