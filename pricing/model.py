"""The words of pricing: money, instance types, pools and offerings. Frozen values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum

USD = "USD"


class CapacityType(StrEnum):
    """How the machine is rented."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in one currency. Amounts of two currencies never compare or add."""

    amount: Decimal
    currency: str = USD

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One row of ``data/instance_types.csv``.

    ``accelerator`` is the catalogue's short name ("T4", "A100-80GB"); ``accelerator_memory_gib`` is the
    memory of one accelerator as it is marketed (an A10G counts as 24, not the 22.35 its driver reports).
    ``unusable`` says why no job can run on the type, where none can.
    """

    name: str
    accelerator: str
    accelerator_count: int
    accelerator_memory_gib: float
    vcpus: int
    memory_gib: float
    architecture: str  # "x86_64" | "arm64"
    local_nvme_gb: int
    source: str
    as_of: date
    unusable: str | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Where a machine can come from: an offering's identity without its price.

    ``zone_id`` is the AZ id ("use1-az4"), never the per-account letter.
    """

    cloud: str  # "aws" | "local"
    region: str
    zone_id: str
    instance_type: str
    capacity_type: CapacityType

    def __str__(self) -> str:
        return f"{self.cloud}/{self.region}/{self.zone_id}/{self.instance_type}/{self.capacity_type}"

    @classmethod
    def parse(cls, text: str) -> Pool:
        """The pool that ``str(pool)`` names. Raises ValueError for any other text."""
        parts = text.split("/")
        if len(parts) != 5 or not all(parts):
            raise ValueError(f"not a pool: {text!r} (want cloud/region/zone-id/type/capacity-type)")
        return cls(parts[0], parts[1], parts[2], parts[3], CapacityType(parts[4]))


@dataclass(frozen=True, slots=True)
class Offering:
    """A pool with its price per machine and hour, and where and when that price was seen."""

    pool: Pool
    instance: InstanceType
    price_per_hour: Money
    source: str
    as_of: date


@dataclass(frozen=True, slots=True)
class Rates:
    """What a region charges beside its machines' hours, in USD, as it was known at one moment: see ``extras.py``.

    ``out_gb_usd``: per GB (10^9 bytes) that leaves the region, by where it goes: a region, or "internet"; what is not
    named has no known price. ``assumed``: which rates are another region's, for want of its own. ``as_of``: the oldest.
    """

    region: str
    gib_month_usd: Decimal  # a GiB of gp3
    iops_month_usd: Decimal  # each provisioned beyond what gp3 brings
    mib_s_month_usd: Decimal
    address_hour_usd: Decimal  # a public IPv4 address
    out_gb_usd: tuple[tuple[str, Decimal], ...]
    as_of: date
    source: str
    assumed: tuple[str, ...] = ()

    def out_usd(self, to: str) -> Decimal | None:
        """USD per GB that leaves the region for ``to``; None: not known."""
        return Decimal(0) if to == self.region else dict(self.out_gb_usd).get(to)
