"""The choice of offerings, and the reason for every type that was not chosen."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.pricing import catalog
from cloudtrain.pricing.accelerators import KNOWN, parse
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.pricing.model import CapacityType, Money
from cloudtrain.pricing.requirements import DEFAULT_REGIONS, Amount, Requirements, Selection, Why, select

SHIPPED = catalog.load()
T4 = Requirements(CapacityType.SPOT, parse("T4:1"), memory_gib=Amount.parse("16+"))


def reason(selection: Selection, name: str) -> tuple[Why, str]:
    (found,) = [d for d in selection.dropped if d.instance_type == name]
    return found.why, found.reason


def test_the_cheapest_zone_comes_first() -> None:
    offerings = select(SHIPPED, T4).offerings
    assert str(offerings[0].pool) == "aws/us-east-2/use2-az2/g4dn.xlarge/spot"
    prices = [o.price_per_hour.amount for o in offerings]
    assert prices == sorted(prices)
    assert len(offerings) > 20


@pytest.mark.parametrize(
    ("requirements", "name", "why", "text"),
    [
        (T4, "g5.xlarge", Why.OTHER_ACCELERATOR, "A10G:1 is not T4:1"),
        (T4, "g4dn.12xlarge", Why.OTHER_ACCELERATOR, "T4:4 is not T4:1"),
        (T4, "p3.2xlarge", Why.OTHER_ACCELERATOR, "V100:1 is not T4:1"),
        (T4, "g4dn.2xlarge", Why.NO_PRICE, "no spot price known"),
        (
            replace(T4, memory_gib=None),
            "g4dn.xlarge",
            Why.MEMORY,
            "memory 16 GiB < 24 GiB needed (1.5x GPU memory)",
        ),
        (replace(T4, memory_gib=Amount.parse("32")), "g4dn.8xlarge", Why.MEMORY, "memory 128 GiB, 32 needed"),
        (replace(T4, cpus=Amount.parse("8+")), "g4dn.xlarge", Why.CPUS, "4 vCPUs, 8+ needed"),
        (replace(T4, instance_type="g4dn.xlarge"), "g4dn.2xlarge", Why.OTHER_TYPE, "not g4dn.xlarge"),
        (
            replace(T4, accelerators=parse("V100:1")),
            "p3.2xlarge",
            Why.UNUSABLE,
            "no current machine image supports the V100",
        ),
        (
            replace(T4, accelerators=parse("24GB+:1")),
            "g4dn.xlarge",
            Why.OTHER_ACCELERATOR,
            "T4:1 of 16 GB is not 24GB+:1",
        ),
        (
            replace(T4, max_price_per_hour=Money(Decimal("0.1"))),
            "g4dn.xlarge",
            Why.TOO_DEAR,
            "from 0.1425 USD/h, at most 0.1 allowed",
        ),
        (
            Requirements(CapacityType.ON_DEMAND, parse("RTX-PRO-4500:1"), memory_gib=Amount.parse("16+")),
            "g7.2xlarge",
            Why.NO_PRICE,
            "no zone known",
        ),
        (
            Requirements(CapacityType.ON_DEMAND, parse("H200:8")),
            "p5e.48xlarge",
            Why.NO_PRICE,
            "no on-demand price known",
        ),
    ],
)
def test_why_a_type_was_dropped(requirements: Requirements, name: str, why: Why, text: str) -> None:
    assert reason(select(SHIPPED, requirements), name) == (why, text)


def test_a_named_type_is_taken_whatever_its_memory() -> None:
    chosen = select(SHIPPED, Requirements(CapacityType.SPOT, instance_type="g4dn.xlarge"))
    assert {o.instance.name for o in chosen.offerings} == {"g4dn.xlarge"}


def test_regions_that_an_account_must_enable_are_used_only_when_named() -> None:
    assert {o.pool.region for o in select(SHIPPED, T4).offerings} <= DEFAULT_REGIONS
    assert {o.pool.region for o in select(SHIPPED, replace(T4, infra=("aws",))).offerings} <= DEFAULT_REGIONS
    named = select(SHIPPED, replace(T4, infra=("aws/eu-south-1",)))
    assert {o.pool.region for o in named.offerings} == {"eu-south-1"}
    both = select(SHIPPED, replace(T4, infra=("aws", "aws/eu-south-1")))
    assert {o.pool.region for o in both.offerings} > {"eu-south-1", "us-east-1"}


def test_a_region_without_the_type_says_where_it_is() -> None:
    why, text = reason(select(SHIPPED, replace(T4, infra=("aws/us-gone-1",))), "g4dn.xlarge")
    assert why is Why.REGION
    assert text.startswith("no spot price known in aws/us-gone-1, only in af-south-1, ")


def test_any_of_is_by_price_and_a_list_is_by_preference() -> None:
    any_of = select(SHIPPED, Requirements(CapacityType.SPOT, parse("{H100:8, A100:8}"))).offerings
    assert [o.price_per_hour.amount for o in any_of] == sorted(o.price_per_hour.amount for o in any_of)
    assert {o.instance.accelerator for o in any_of} == {"H100", "A100"}
    ordered = select(SHIPPED, Requirements(CapacityType.SPOT, parse("[H100:8, A100:8]"))).offerings
    names = [o.instance.accelerator for o in ordered]
    assert names == sorted(names, reverse=True)
    assert set(ordered) == set(any_of)


def test_amounts_in_other_currencies_never_compare() -> None:
    with pytest.raises(ValueError, match="CNY"):
        select(SHIPPED, replace(T4, max_price_per_hour=Money(Decimal(1), "CNY")))


@pytest.mark.parametrize("text", ["", "0", "0+", "-1", "1e3", "8 +", "16GB", "08", "+", "8++", "٣"])
def test_a_wrong_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount"):
        Amount.parse(text)


@pytest.mark.parametrize("text", ["8", "8+", "0.5", "61.5+"])
def test_amounts_read_back(text: str) -> None:
    assert str(Amount.parse(text)) == text


REQUIREMENTS = st.builds(
    Requirements,
    capacity_type=st.sampled_from(CapacityType),
    accelerators=st.one_of(
        st.just(()),
        st.builds(
            lambda names, count, ordered: parse(
                ("[{}]" if ordered else "{{{}}}").format(",".join(f"{n}:{count}" for n in names))
            ),
            st.lists(st.sampled_from(KNOWN), min_size=1, max_size=3, unique=True),
            st.sampled_from([1, 4, 8]),
            st.booleans(),
        ),
        st.sampled_from(["16GB+:1", "24GB+:1", "80GB+:8"]).map(parse),
    ),
    cpus=st.one_of(st.none(), st.builds(Amount, st.sampled_from([4.0, 32.0, 96.0]), st.booleans())),
    memory_gib=st.one_of(st.none(), st.builds(Amount, st.sampled_from([16.0, 128.0, 1152.0]), st.booleans())),
    infra=st.lists(st.sampled_from(["aws", "aws/us-east-1", "aws/eu-south-2"]), max_size=2).map(tuple),
    instance_type=st.one_of(st.none(), st.sampled_from([i.name for i in SHIPPED.instances])),
    max_price_per_hour=st.one_of(st.none(), st.decimals(0, 60, places=2).map(Money)),
)


@given(REQUIREMENTS)
def test_each_type_is_offered_or_dropped_for_one_reason(requirements: Requirements) -> None:
    selection = select(SHIPPED, requirements)
    offered = {o.instance.name for o in selection.offerings}
    dropped = [d.instance_type for d in selection.dropped]
    assert len(dropped) == len(set(dropped))
    assert offered.isdisjoint(dropped)
    assert offered | set(dropped) == {i.name for i in SHIPPED.instances}
    for offering in selection.offerings:
        assert offering.pool.capacity_type is requirements.capacity_type
        assert offering.instance.unusable is None
        assert requirements.allows(offering.pool)
        assert not requirements.accelerators or any(a.fits(offering.instance) for a in requirements.accelerators)
        limit = requirements.max_price_per_hour
        assert limit is None or offering.price_per_hour.amount <= limit.amount


@settings(max_examples=25)
@given(REQUIREMENTS, st.integers(0, 999))
def test_the_order_does_not_depend_on_the_files_order(requirements: Requirements, seed: int) -> None:
    random = Random(seed)
    prices, instances = list(SHIPPED.prices), list(SHIPPED.instances)
    random.shuffle(prices)
    random.shuffle(instances)
    mixed = select(Catalog(tuple(instances), tuple(prices)), requirements)
    assert mixed.offerings == select(SHIPPED, requirements).offerings


@given(REQUIREMENTS)
def test_dropping_the_price_limit_never_loses_an_offering(requirements: Requirements) -> None:
    limited = set(select(SHIPPED, requirements).offerings)
    assert limited <= set(select(SHIPPED, replace(requirements, max_price_per_hour=None)).offerings)
