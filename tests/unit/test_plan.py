"""The plan: a job's pools in order, and one clear line when there is none."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.pricing import catalog
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.errors import EXIT_NO_CAPACITY, EXIT_USAGE, NoCapacity, UsageError
from cloudtrain.provisioner.jobfile.reader import load
from cloudtrain.provisioner.plan import make_plan
from cloudtrain.provisioner.spec import JobSpec, Resources

SHIPPED = catalog.load()
T4 = Resources(accelerators="T4:1", memory="16+", use_spot=True)
JOB = JobSpec(name="job", run="python train.py", resources=(T4,))
ROOT = Path(__file__).parents[2]


def test_the_first_template_has_at_least_four_pools_in_three_regions() -> None:
    plan = make_plan(load(ROOT / "templates" / "digits.yaml"), SHIPPED, cloud="aws")
    assert len(plan.offerings) >= 4
    assert len({o.pool.region for o in plan.offerings}) >= 3
    assert plan.on_demand_usd_per_hour == Decimal("0.526")


def test_local_is_the_same_plan_under_another_name() -> None:
    aws, local = (make_plan(JOB, SHIPPED, cloud=cloud) for cloud in ("aws", "local"))
    assert {o.pool.cloud for o in local.offerings} == {"local"}
    assert [replace(o, pool=replace(o.pool, cloud="aws")) for o in local.offerings] == list(aws.offerings)
    assert (local.dropped, local.on_demand_usd_per_hour) == (aws.dropped, aws.on_demand_usd_per_hour)


def test_without_spot_each_zone_is_an_on_demand_pool() -> None:
    plan = make_plan(
        replace(JOB, resources=(replace(T4, use_spot=False, infra=("aws/us-east-1",)),)), SHIPPED, cloud="aws"
    )
    assert {o.pool.capacity_type for o in plan.offerings} == {CapacityType.ON_DEMAND}
    zones = [o.pool.zone_id for o in plan.offerings if o.instance.name == "g4dn.xlarge"]
    assert zones == sorted(zones)
    assert len(zones) >= 4
    assert {o.price_per_hour.amount for o in plan.offerings if o.instance.name == "g4dn.xlarge"} == {Decimal("0.526")}


def test_the_yardstick_ignores_the_price_limit_but_not_the_place() -> None:
    plan = make_plan(
        replace(JOB, resources=(replace(T4, max_hourly_cost_usd=Decimal("0.27"), infra=("aws/ap-northeast-1",)),)),
        SHIPPED,
        cloud="aws",
    )
    assert all(o.price_per_hour.amount <= Decimal("0.27") for o in plan.offerings)
    assert plan.on_demand_usd_per_hour == Decimal("0.71")


def test_no_on_demand_price_known_gives_none() -> None:
    plan = make_plan(
        replace(JOB, resources=(replace(T4, accelerators=None, instance_type="p5e.48xlarge"),)), SHIPPED, cloud="aws"
    )
    assert plan.on_demand_usd_per_hour is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"accelerators": "V100:8"},
            "job: nothing fits V100:8 spot: no current machine image supports the V100 (p3.16xlarge); "
            "63 types dropped (accelerator 62, no machine image 1); ask for another accelerator",
        ),
        ({"accelerators": "H100:4"}, "spot: a machine has 1 or 8 H100, not 4; 63 types dropped (accelerator 63); "),
        ({"accelerators": "999GB+:1"}, "no machine has 999GB+; "),
        (
            {"max_hourly_cost_usd": Decimal("0.01")},
            "from 0.1425 USD/h, at most 0.01 allowed (g4dn.xlarge); 63 types dropped "
            "(accelerator 58, price unknown 3, price too high 2); raise resources.max_hourly_cost",
        ),
        ({"accelerators": "B200:8", "memory": None}, "memory 2048 GiB < 2160 GiB needed (1.5x GPU memory)"),
        (
            {"accelerators": "A10G:1", "memory": None},
            "or set resources.memory (16+) to allow less than 1.5x GPU memory",
        ),
        ({"cpus": "5"}, "4 vCPUs, 5 needed (g4dn.xlarge)"),
        ({"infra": ("aws/eu-south-2",)}, "no spot price known in aws/eu-south-2, only in "),
        ({"instance_type": "g5.xlarge"}, "A10G:1 is not T4:1 (g5.xlarge); 63 types dropped (instance type 62, "),
    ],
)
def test_nothing_fits_is_one_line_with_the_reason(change: dict[str, Any], says: str) -> None:
    with pytest.raises(NoCapacity) as refusal:
        make_plan(replace(JOB, resources=(replace(T4, **change),)), SHIPPED, cloud="aws")
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == EXIT_NO_CAPACITY == 4


def test_an_empty_catalogue_fits_nothing() -> None:
    with pytest.raises(NoCapacity, match="the catalogue is empty"):
        make_plan(JOB, Catalog((), ()), cloud="aws")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accelerators": None}, "no GPU asked for"),
        ({"accelerators": "T5:1"}, "did you mean T4?"),
        ({"accelerators": None, "instance_type": "g4dn.xlage"}, "did you mean g4dn.xlarge?"),
        ({"infra": ("aws/us-eats-1",)}, "did you mean aws/us-east-1?"),
        ({"cpus": "many"}, "'many' is not an amount"),
    ],
)
def test_a_wrong_wish_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        make_plan(replace(JOB, resources=(replace(T4, **change),)), SHIPPED, cloud="aws")
    assert says in str(refusal.value)
    assert refusal.value.exit_code == EXIT_USAGE
