"""What a region charges beside machines, as the catalogue knows it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cloudtrain.pricing import extras
from cloudtrain.pricing.extras import ADDRESS_HOUR, GIB_MONTH, IOPS_MONTH, MIB_S_MONTH, rates
from cloudtrain.pricing.model import Money
from cloudtrain.pricing.transfer import INTERNET
from tests.records import OFFERINGS


def test_a_region_has_its_own_rates_with_source_and_date() -> None:
    found = rates("us-east-1", ["us-east-2", "eu-west-1"])
    assert (found.gib_month_usd, found.address_hour_usd) == (Decimal("0.08"), Decimal("0.005"))
    assert (found.out_usd("us-east-2"), found.out_usd("eu-west-1")) == (Decimal("0.01"), Decimal("0.02"))
    assert found.out_usd(INTERNET) == Decimal("0.09")
    assert found.out_usd("us-east-1") == 0, "within a region nothing is paid"
    assert found.source and found.as_of.year >= 2021 and found.assumed == ()


def test_what_is_not_known_is_the_dearest_and_named_and_never_free() -> None:
    found = rates("nowhere-1", ["us-east-1"])
    known = [row[0] for (_, what), row in extras.load().items() if what == GIB_MONTH]
    assert found.gib_month_usd == max(known)
    assert found.assumed == (GIB_MONTH, IOPS_MONTH, MIB_S_MONTH)
    assert found.address_hour_usd == Decimal("0.005"), "an address costs the same everywhere"
    assert found.out_usd("us-east-1") is None and found.out_usd(INTERNET) is None


def test_prices_in_another_currency_are_never_pinned_beside_dollars() -> None:
    yuan = replace(OFFERINGS[0], price_per_hour=Money(Decimal("1.2"), "CNY"))
    with pytest.raises(ValueError, match=r"use1-az1.* is priced in CNY: USD alone is counted"):
        extras.pinned((OFFERINGS[1], yuan), "us-east-1", [])


def test_what_is_pinned_names_the_ways_that_data_can_take_and_no_others() -> None:
    west = replace(OFFERINGS[0], pool=replace(OFFERINGS[0].pool, region="us-west-2"))
    found = {
        rate.region: dict(rate.out_gb_usd) for rate in extras.pinned((*OFFERINGS, west), "us-east-2", ["eu-west-1"])
    }
    assert set(found) == {"us-east-1", "us-west-2", "us-east-2", "eu-west-1"}
    assert set(found["us-west-2"]) == {"us-east-2", INTERNET}, "a machine sends to its bucket"
    assert set(found["eu-west-1"]) == {"us-east-1", "us-west-2", INTERNET}, "data goes to machines"


def test_every_row_has_a_source_and_a_price_that_can_be() -> None:
    for (_, what), (usd, as_of, source) in extras.load().items():
        assert source and as_of.year >= 2021
        assert 0 < usd < 1 and what in (GIB_MONTH, IOPS_MONTH, MIB_S_MONTH, ADDRESS_HOUR)
