"""The catalogue: instance types and their prices, read from two CSV files that people can review.

``instance_types.csv`` has a row for each type; ``prices.csv`` a row for each price: of a zone, or with an empty
``zone_id`` of a whole region (on-demand). An empty price means that the pool exists and nobody knows its
price. ``data/README.md`` names the sources.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import TypeVar

from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool

INSTANCE_COLUMNS = [
    "type",
    "gpu",
    "gpus",
    "gpu_gib",
    "vcpus",
    "ram_gib",
    "arch",
    "nvme_gb",
    "unusable",
    "as_of",
    "source",
]
DATA = Path(__file__).parent / "data"
PRICE_COLUMNS = ["type", "region", "zone_id", "market", "usd_per_hour", "as_of", "source"]

T = TypeVar("T")


class CatalogError(ValueError):
    """A catalogue file is damaged. The message is one line: file, line, what."""


@dataclass(frozen=True, slots=True)
class Price:
    """One row of ``prices.csv``: USD per machine and hour, None where it is not known."""

    instance_type: str
    region: str
    zone_id: str | None
    capacity_type: CapacityType
    usd_per_hour: Decimal | None
    source: str
    as_of: date


@dataclass(frozen=True, slots=True)
class Catalog:
    """What machines exist and what they cost, on AWS."""

    instances: tuple[InstanceType, ...]
    prices: tuple[Price, ...]

    @property
    def regions(self) -> frozenset[str]:
        """Every region that has a row."""
        return frozenset(price.region for price in self.prices)

    def instance(self, name: str) -> InstanceType | None:
        """The type of that name."""
        return next((instance for instance in self.instances if instance.name == name), None)

    def offerings(self, *capacity_types: CapacityType) -> tuple[Offering, ...]:
        """Every pool with a known price, in the files' order.

        A region's price holds in each zone where the type is known to be, else in those of the region that have a type
        of its family: whether a zone has it, EC2 alone knows (DescribeInstanceTypeOfferings), and it refuses if not.
        """
        instances = {instance.name: instance for instance in self.instances}
        zones: dict[tuple[str, str], dict[str, None]] = {}
        zonal: set[tuple[str, str, CapacityType]] = set()
        for price in self.prices:
            if price.zone_id is not None:
                for what in (price.instance_type, _family(price.instance_type)):
                    zones.setdefault((what, price.region), {})[price.zone_id] = None
                zonal.add((price.instance_type, price.zone_id, price.capacity_type))
        found = []
        for price in self.prices:
            if price.usd_per_hour is None or price.capacity_type not in capacity_types:
                continue
            name, capacity_type = price.instance_type, price.capacity_type
            known = zones.get((name, price.region)) or zones.get((_family(name), price.region), {})
            places = [price.zone_id] if price.zone_id is not None else list(known)
            for zone_id in places:
                if price.zone_id is None and (name, zone_id, capacity_type) in zonal:
                    continue  # the zone's own row decides
                pool = Pool("aws", price.region, zone_id, name, capacity_type)
                found.append(Offering(pool, instances[name], Money(price.usd_per_hour), price.source, price.as_of))
        return tuple(found)


def _family(instance_type: str) -> str:
    """ "g5" of "g5.xlarge"."""
    return instance_type.partition(".")[0]


def load(directory: Path | None = None) -> Catalog:
    """The catalogue in ``directory``, by default the one in the package; read once per process.

    Raises CatalogError for a damaged file, OSError for a missing one.
    """
    return _load(directory or DATA)


@cache
def _load(directory: Path) -> Catalog:
    instances = tuple(rows(directory / "instance_types.csv", INSTANCE_COLUMNS, _instance))
    names = {instance.name for instance in instances}
    if len(names) != len(instances):
        raise CatalogError(f"{directory / 'instance_types.csv'}: a type has two rows")

    def price(row: list[str]) -> Price:
        if row[0] not in names:
            raise ValueError(f"{row[0]!r} is not in instance_types.csv")
        return _price(row)

    return Catalog(instances, tuple(rows(directory / "prices.csv", PRICE_COLUMNS, price)))


def rows(path: Path, columns: list[str], build: Callable[[list[str]], T]) -> Iterator[T]:
    """What ``build`` makes of each row of a table. Raises CatalogError for a damaged one, OSError for a missing
    file."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            if next(reader, None) != columns:
                raise ValueError(f"the columns must be {','.join(columns)}")
            for row in reader:
                if len(row) != len(columns):
                    raise ValueError(f"{len(row)} fields where {len(columns)} belong")
                yield build(row)
        except (ValueError, InvalidOperation, csv.Error) as error:
            raise CatalogError(f"{path}:{reader.line_num}: {error}") from error


_date = cache(date.fromisoformat)


def _instance(row: list[str]) -> InstanceType:
    name, accelerator, count, gib, vcpus, memory, architecture, nvme, unusable, as_of, source = row
    if not (name and accelerator and source) or int(count) < 1 or float(gib) <= 0:
        raise ValueError("a type needs a name, an accelerator with count and memory, and a source")
    return InstanceType(
        name=name,
        accelerator=accelerator,
        accelerator_count=int(count),
        accelerator_memory_gib=float(gib),
        vcpus=int(vcpus),
        memory_gib=float(memory),
        architecture=architecture,
        local_nvme_gb=int(nvme),
        source=source,
        as_of=_date(as_of),
        unusable=unusable or None,
    )


def _price(row: list[str]) -> Price:
    name, region, zone_id, market, usd_per_hour, as_of, source = row
    amount = Decimal(usd_per_hour) if usd_per_hour else None
    if amount is not None and not (amount.is_finite() and amount > 0):
        raise ValueError(f"the price {usd_per_hour} is not above zero: leave it empty where it is not known")
    if not (region and source):
        raise ValueError("a price needs a region and a source")
    if region.startswith("cn-"):
        raise ValueError(f"prices of {region} are in CNY (amazonaws.cn), and this column is USD")
    return Price(name, region, zone_id or None, CapacityType(market), amount, source, _date(as_of))
