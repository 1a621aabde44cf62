"""What it costs to move data out of a region, and to keep it in S3: ``data/transfer.csv``, a row for each known price.

``what`` is another region, "other-regions" for all that have no row of their own, "internet" (the first 10 TB a month,
beyond the 100 GB that are free), or "month": keeping a GB in S3 Standard for a month.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache

from cloudtrain.pricing.catalog import DATA, rows

COLUMNS = ["region", "what", "usd_per_gb", "as_of", "source"]
GB = 10**9
INTERNET = "internet"


@dataclass(frozen=True, slots=True)
class Rate:
    """USD per GB (10^9 bytes), and where the figure is from."""

    usd_per_gb: Decimal
    as_of: date | None
    source: str


FREE = Rate(Decimal(0), None, "within one region S3 and EC2 exchange data free of charge (S3 pricing page)")


def between(region: str, other: str) -> Rate | None:
    """The rate of data that leaves a region's S3 for a machine in another; FREE in the same one; None: not known."""
    if region == other:
        return FREE
    rates = load()
    return rates.get((region, other)) or rates.get((region, "other-regions"))


def internet(region: str) -> Rate | None:
    """The rate of data that leaves a region for the internet, the free 100 GB a month not counted away; None: not
    known."""
    return load().get((region, INTERNET))


def storage(region: str) -> Rate | None:
    """The rate of keeping data in S3 Standard for a month; None: not known."""
    return load().get((region, "month"))


def usd_per_month(region: str, stored_bytes: int) -> Decimal | None:
    """What keeping bytes in S3 Standard costs in a month; None: not known."""
    rate = storage(region)
    return None if rate is None else rate.usd_per_gb * stored_bytes / GB


@cache
def load() -> dict[tuple[str, str], Rate]:
    """Every row of the table. Raises CatalogError for a damaged one, OSError for a missing file."""
    return dict(rows(DATA / "transfer.csv", COLUMNS, _rate))


def _rate(row: list[str]) -> tuple[tuple[str, str], Rate]:
    region, what, usd_per_gb, as_of, source = row
    return (region, what), Rate(Decimal(usd_per_gb), date.fromisoformat(as_of), source)
