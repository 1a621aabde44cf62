"""The plan of a job with several alternatives: any of them by price, or each in its turn."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.pricing import catalog
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.pricing.model import CapacityType, Offering
from cloudtrain.pricing.requirements import Why
from cloudtrain.provisioner.errors import NoCapacity, UsageError
from cloudtrain.provisioner.plan import Plan, make_plan
from cloudtrain.provisioner.spec import JobSpec, Resources

SHIPPED = catalog.load()
REGIONS = ("us-east-1", "eu-west-1", "ap-northeast-1")
SMALL = Catalog(  # to be quick
    SHIPPED.instances,
    tuple(p for p in SHIPPED.prices if p.region in REGIONS and p.instance_type.startswith(("g", "p5"))),
)
ALTERNATIVES = st.lists(
    st.builds(
        Resources,
        accelerators=st.sampled_from(["T4:1", "[L4:1, T4:1]", "{A10G:1, L4:1}", "H100:8", "24GB+:1", "H100:4"]),
        use_spot=st.booleans(),
        infra=st.sampled_from([(), ("aws/us-east-1",), ("aws/us-east-1/use1-az4", "aws/eu-west-1")]),
        memory=st.sampled_from([None, "16+"]),
        max_hourly_cost_usd=st.sampled_from([None, Decimal(1)]),
    ),
    min_size=2,
    max_size=4,
    unique=True,
)


def plan(*resources: Resources, ordered: bool = False, among: Catalog = SHIPPED) -> Plan:
    return make_plan(JobSpec("job", "x", resources, resources_ordered=ordered), among, cloud="aws")


def alone(resources: Resources, among: Catalog = SHIPPED) -> tuple[Offering, ...]:
    try:
        return plan(resources, among=among).offerings
    except NoCapacity:
        return ()


@settings(max_examples=15, deadline=None)
@given(ALTERNATIVES)
def test_any_of_is_the_union_by_price(alternatives: list[Resources]) -> None:
    union = {offering for resources in alternatives for offering in alone(resources, SMALL)}
    if not union:
        with pytest.raises(NoCapacity):
            plan(*alternatives, among=SMALL)
        return
    made = plan(*alternatives, among=SMALL)
    assert len(made.offerings) == len(set(made.offerings))
    assert set(made.offerings) == union
    prices = [offering.price_per_hour.amount for offering in made.offerings]
    assert prices == sorted(prices)
    other = plan(*reversed(alternatives), among=SMALL)  # the order of the list is nothing
    assert (other.offerings, other.on_demand_usd_per_hour) == (made.offerings, made.on_demand_usd_per_hour)


@settings(max_examples=15, deadline=None)
@given(ALTERNATIVES)
def test_ordered_is_one_after_the_other(alternatives: list[Resources]) -> None:
    each = [alone(resources, SMALL) for resources in alternatives]
    if any(each):
        offerings = plan(*alternatives, ordered=True, among=SMALL).offerings
        assert offerings == tuple(dict.fromkeys(o for one in each for o in one))


@settings(max_examples=15, deadline=None)
@given(ALTERNATIVES, st.booleans())
def test_each_type_is_offered_or_dropped_once(alternatives: list[Resources], ordered: bool) -> None:
    try:
        made = plan(*alternatives, ordered=ordered, among=SMALL)
    except NoCapacity:
        return
    offered = {offering.instance.name for offering in made.offerings}
    dropped = [d.instance_type for d in made.dropped]
    assert len(dropped) == len(set(dropped))
    assert offered.isdisjoint(dropped)
    assert offered | set(dropped) == {instance.name for instance in SMALL.instances}


def test_a_type_is_dropped_for_the_reason_of_the_alternative_that_it_came_closest_to() -> None:
    t4, l4 = Resources(accelerators="T4:1", cpus="8+", use_spot=True), Resources(accelerators="L4:1", use_spot=True)
    for alternatives in ((t4, l4), (l4, t4)):
        reasons = {d.instance_type: (d.why, d.reason) for d in plan(*alternatives).dropped}
        assert reasons["g4dn.xlarge"] == (Why.CPUS, "4 vCPUs, 8+ needed")
        assert reasons["g6.xlarge"] == (Why.MEMORY, "memory 16 GiB < 36 GiB needed (1.5x GPU memory)")
        assert reasons["p5.48xlarge"][0] is Why.OTHER_ACCELERATOR


def test_spot_and_on_demand_beside_each_other() -> None:
    t4 = Resources(accelerators="T4:1", memory="16+", infra=("aws/us-east-1",))
    made = plan(replace(t4, use_spot=True), t4, ordered=True)
    kinds = [offering.pool.capacity_type for offering in made.offerings]
    assert kinds == sorted(kinds, key=[CapacityType.SPOT, CapacityType.ON_DEMAND].index)
    assert set(kinds) == set(CapacityType)
    assert made.on_demand_usd_per_hour == Decimal("0.526")


def test_one_zone() -> None:
    made = plan(Resources(accelerators="T4:1", memory="16+", infra=("aws/us-east-1/use1-az4",)))
    assert {(o.pool.region, o.pool.zone_id) for o in made.offerings} == {("us-east-1", "use1-az4")}


def test_an_alternative_that_gives_no_machine_is_named_though_another_does() -> None:
    t4 = Resources(accelerators="T4:1", memory="16+", use_spot=True)
    made = plan(t4, Resources(accelerators="A100:8", instance_type="p5.48xlarge"))
    assert made.offerings == alone(t4)
    assert made.unmet == (
        "(2) A100:8 on-demand: H100:8 is not A100:8 (p5.48xlarge); take accelerators or instance_type out",
    )
    assert plan(t4).unmet == ()


def test_nothing_fits_names_each_alternative_with_its_reason_and_what_to_do() -> None:
    with pytest.raises(NoCapacity) as refusal:
        plan(
            Resources(accelerators="H100:4"),
            Resources(accelerators="T4:1", memory="16+", use_spot=True, max_hourly_cost_usd=Decimal("0.01")),
            Resources(instance_type="g4dn.xlarge", use_spot=True, infra=("aws/eu-south-2",)),
        )
    assert str(refusal.value).startswith(
        "job: nothing fits any of 3 alternatives: "
        "(1) H100:4 on-demand: a machine has 1 or 8 H100, not 4; ask for another count or accelerator, or several: "
        "{A100:8, H100:8}; "
        "(2) T4:1 spot: from 0.1425 USD/h, at most 0.01 allowed (g4dn.xlarge); raise resources.max_hourly_cost; "
        "(3) g4dn.xlarge spot: no spot price known in aws/eu-south-2, only in "
    )
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        (Resources(accelerators="T4", infra=("aws/us-east-1/use1-az44",)), "did you mean aws/us-east-1/use1-az4?"),
        (Resources(accelerators="T4", infra=("aws/us-east-9/use1-az4",)), "did you mean aws/us-east-1?"),
        (Resources(instance_type="g4dn.xlrage"), "did you mean g4dn.xlarge?"),
    ],
)
def test_a_wrong_alternative_is_refused_though_another_fits(resources: Resources, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(Resources(accelerators="T4:1", memory="16+", use_spot=True), resources)
    assert says in str(refusal.value)
