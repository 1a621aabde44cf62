"""What a machine costs beside its hours: its gp3 volume, its public address, and what leaves its region.

``data/extras.csv`` has a row for each known price, ``data/transfer.csv`` those of transfer. ``region`` is "every" for
what costs the same everywhere; ``what`` names the unit: a GiB, a provisioned IOPS or a MiB/s of gp3 for a month, an
hour of a public IPv4 address.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from functools import cache

from cloudtrain.pricing import transfer
from cloudtrain.pricing.catalog import DATA, rows
from cloudtrain.pricing.model import USD, Offering, Rates
from cloudtrain.pricing.transfer import INTERNET

COLUMNS = ["region", "what", "usd", "as_of", "source"]
EVERY = "every"
GIB_MONTH, IOPS_MONTH, MIB_S_MONTH = "gp3-gib-month", "gp3-iops-month", "gp3-mib-s-month"
ADDRESS_HOUR = "public-ipv4-hour"

Row = tuple[Decimal, date, str]


def rates(region: str, others: Iterable[str]) -> Rates:
    """What the region charges now, and for data that leaves it for each of ``others`` and for the internet.

    A region without a row of its own gets the dearest known rate, and ``assumed`` names what that was done for: a bill
    that is too high by cents misleads less than one that leaves something out.
    """
    rows = {what: _row(region, what) for what in (GIB_MONTH, IOPS_MONTH, MIB_S_MONTH, ADDRESS_HOUR)}
    ways = {to: transfer.between(region, to) for to in sorted({*others} - {region})}
    ways[INTERNET] = transfer.internet(region)
    moved = {to: rate for to, rate in ways.items() if rate is not None}
    known = [row for row, _ in rows.values()] + [
        (rate.usd_per_gb, rate.as_of, rate.source) for rate in moved.values() if rate.as_of is not None
    ]
    return Rates(
        region=region,
        gib_month_usd=rows[GIB_MONTH][0][0],
        iops_month_usd=rows[IOPS_MONTH][0][0],
        mib_s_month_usd=rows[MIB_S_MONTH][0][0],
        address_hour_usd=rows[ADDRESS_HOUR][0][0],
        out_gb_usd=tuple((to, rate.usd_per_gb) for to, rate in sorted(moved.items())),
        as_of=min(row[1] for row in known if row[1] is not None),
        source="; ".join(sorted({row[2] for row in known})),
        assumed=tuple(what for what, (_, assumed) in rows.items() if assumed),
    )


def pinned(offerings: Iterable[Offering], bucket: str, data: Iterable[str]) -> tuple[Rates, ...]:
    """The rates of every region of a plan, of its bucket and of its data, as they are now.

    Raises ValueError where an offering is not priced in USD: the bill counts no other money.
    """
    machines = set()
    for offering in offerings:
        if offering.price_per_hour.currency != USD:
            raise ValueError(f"{offering.pool} is priced in {offering.price_per_hour.currency}: {USD} alone is counted")
        machines.add(offering.pool.region)
    sources = {bucket, *data}
    return tuple(rates(region, machines if region in sources else {bucket}) for region in sorted(machines | sources))


def _row(region: str, what: str) -> tuple[Row, bool]:
    """The price, and whether it is another region's."""
    found = load()
    own = found.get((region, what)) or found.get((EVERY, what))
    if own is not None:
        return own, False
    return max(row for (_, other), row in found.items() if other == what), True


@cache
def load() -> dict[tuple[str, str], Row]:
    """Every row of ``extras.csv``. Raises CatalogError for a damaged one, OSError for a missing file."""
    return dict(rows(DATA / "extras.csv", COLUMNS, _priced))


def _priced(row: list[str]) -> tuple[tuple[str, str], Row]:
    region, what, usd, as_of, source = row
    return (region, what), (Decimal(usd), date.fromisoformat(as_of), source)
