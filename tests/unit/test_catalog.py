"""The catalogue's files and their reader."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from cloudtrain.pricing import catalog
from cloudtrain.pricing.catalog import INSTANCE_COLUMNS, PRICE_COLUMNS, Catalog, CatalogError
from cloudtrain.pricing.model import CapacityType, Pool

SHIPPED = catalog.load()
INSTANCE = "g9.large,T4,1,16,4,16,x86_64,125,,2026-07-01,somewhere"
PRICE = "g9.large,us-east-1,use1-az1,spot,0.5,2026-07-01,somewhere"


def write(directory: Path, instances: list[str], prices: list[str]) -> Path:
    (directory / "instance_types.csv").write_text("\n".join([",".join(INSTANCE_COLUMNS), *instances]) + "\n")
    (directory / "prices.csv").write_text("\n".join([",".join(PRICE_COLUMNS), *prices]) + "\n")
    return directory


def made(directory: Path, *prices: str) -> Catalog:
    return catalog.load(write(directory, [INSTANCE], list(prices)))


def test_every_row_names_its_source_and_a_price_is_above_zero() -> None:
    assert all(i.source and i.as_of.year >= 2026 for i in SHIPPED.instances)
    assert all(p.source and p.as_of.year >= 2026 for p in SHIPPED.prices)
    assert all(p.usd_per_hour is None or p.usd_per_hour > 0 for p in SHIPPED.prices)
    assert any(p.usd_per_hour is None for p in SHIPPED.prices)


def test_zones_are_az_ids_of_real_zones() -> None:
    zones = {p.zone_id for p in SHIPPED.prices if p.zone_id is not None}
    assert zones
    assert all(re.fullmatch(r"[a-z]+[0-9]-az[0-9]", zone) for zone in zones), "local zones have prices of their own"
    assert not any("gov" in region for region in SHIPPED.regions)


def test_no_price_has_two_rows() -> None:
    keys = Counter((p.instance_type, p.region, p.zone_id, p.capacity_type) for p in SHIPPED.prices)
    assert max(keys.values()) == 1


def test_unusable_types_have_no_price() -> None:
    unusable = {i.name for i in SHIPPED.instances if i.unusable}
    assert {"p3.2xlarge", "p3dn.24xlarge", "g5g.xlarge"} <= unusable
    assert not unusable & {p.instance_type for p in SHIPPED.prices}


def test_the_two_a100_are_told_apart() -> None:
    names = {i.name: i.accelerator for i in SHIPPED.instances}
    assert (names["p4d.24xlarge"], names["p4de.24xlarge"]) == ("A100", "A100-80GB")


def test_offerings_are_pools_with_a_price() -> None:
    spot = SHIPPED.offerings(CapacityType.SPOT)
    both = SHIPPED.offerings(CapacityType.SPOT, CapacityType.ON_DEMAND)
    assert {o.pool.capacity_type for o in spot} == {CapacityType.SPOT}
    assert len(both) > len(spot) > 300
    assert len({o.pool for o in both}) == len(both)
    assert all(o.pool.cloud == "aws" and o.pool.instance_type == o.instance.name for o in both)


def test_a_regions_price_holds_in_each_known_zone(tmp_path: Path) -> None:
    regional = "g9.large,us-east-1,,on-demand,2,2026-07-01,x"
    second = "g9.large,us-east-1,use1-az2,spot,,2026-07-01,x"
    elsewhere = "g9.large,us-east-2,use2-az1,spot,0.4,2026-07-01,x"
    offerings = made(tmp_path, PRICE, regional, second, elsewhere).offerings(CapacityType.ON_DEMAND)
    assert [(o.pool.zone_id, o.price_per_hour.amount) for o in offerings] == [
        ("use1-az1", Decimal(2)),
        ("use1-az2", Decimal(2)),
    ]


def test_a_zones_own_price_wins_over_the_regions(tmp_path: Path) -> None:
    regional = "g9.large,us-east-1,,on-demand,2,2026-07-01,x"
    own = "g9.large,us-east-1,use1-az1,on-demand,3,2026-07-01,x"
    offerings = made(tmp_path, PRICE, regional, own).offerings(CapacityType.ON_DEMAND)
    assert [(o.pool.zone_id, o.price_per_hour.amount) for o in offerings] == [("use1-az1", Decimal(3))]


def test_a_missing_price_excludes(tmp_path: Path) -> None:
    assert made(tmp_path, PRICE.replace("0.5", "")).offerings(CapacityType.SPOT, CapacityType.ON_DEMAND) == ()


@pytest.mark.parametrize(
    ("instances", "prices", "says"),
    [
        ([INSTANCE], [PRICE.replace("0.5", "0")], "prices.csv:2: the price 0 is not above zero"),
        ([INSTANCE], [PRICE, PRICE.replace("0.5", "-1")], "prices.csv:3: the price -1 is not above zero"),
        ([INSTANCE], [PRICE.replace("0.5", "NaN")], "prices.csv:2: the price NaN is not above zero"),
        ([INSTANCE], [PRICE.replace("0.5", "cheap")], "prices.csv:2:"),
        ([INSTANCE], [PRICE.replace("spot", "sport")], "prices.csv:2: 'sport' is not a valid CapacityType"),
        ([INSTANCE], [PRICE.replace("2026-07-01", "2026-07")], "prices.csv:2: Invalid isoformat"),
        ([INSTANCE], [PRICE.replace("g9.large", "g8.large")], "prices.csv:2: 'g8.large' is not in"),
        ([INSTANCE], [PRICE.replace(",somewhere", ",")], "prices.csv:2: a price needs"),
        ([INSTANCE], [PRICE.replace("us-east-1", "cn-north-1")], "prices.csv:2: prices of cn-north-1 are in CNY"),
        ([INSTANCE], [PRICE + ",more"], "prices.csv:2: 8 fields where 7 belong"),
        ([INSTANCE, INSTANCE], [PRICE], "instance_types.csv: a type has two rows"),
        ([INSTANCE.replace("T4,1", "T4,0")], [], "instance_types.csv:2: a type needs"),
        ([INSTANCE.replace("T4,1", "T4,one")], [], "instance_types.csv:2: invalid literal"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(
    tmp_path: Path, instances: list[str], prices: list[str], says: str
) -> None:
    with pytest.raises(CatalogError) as refusal:
        catalog.load(write(tmp_path, instances, prices))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [INSTANCE], [])
    (tmp_path / "prices.csv").write_text("a,b\n")
    with pytest.raises(CatalogError, match=r"prices\.csv:1: the columns must be type,region"):
        catalog.load(tmp_path)


def test_loading_happens_once_and_pulls_in_nothing_heavy() -> None:
    assert catalog.load() is SHIPPED
    code = (
        "import sys; from cloudtrain.pricing import catalog, requirements; catalog.load();"
        "print([m for m in ('boto3', 'yaml', 'pandas', 'click', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_pools_read_back() -> None:
    for offering in SHIPPED.offerings(CapacityType.SPOT):
        assert Pool.parse(str(offering.pool)) == offering.pool


def test_a_regions_price_holds_where_the_type_or_else_its_family_is() -> None:
    known = {p.zone_id for p in SHIPPED.prices if p.instance_type == "g6.8xlarge" and p.region == "us-east-1"} - {None}
    family = {p.zone_id for p in SHIPPED.prices if p.instance_type.startswith("g6.") and p.region == "us-east-1"} - {
        None
    }

    def zones(name: str) -> set[str]:
        offerings = SHIPPED.offerings(CapacityType.ON_DEMAND)
        return {o.pool.zone_id for o in offerings if o.instance.name == name and o.pool.region == "us-east-1"}

    assert zones("g6.8xlarge") == known
    assert zones("g6.12xlarge") == family  # no zone of its own is known
    assert zones("gr6.4xlarge") == zones("g7.2xlarge") == set()  # nor of its family
