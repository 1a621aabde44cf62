"""The plan: which pools to try for a job, in which order, and why every other type is out. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal

from cloudtrain.pricing.accelerators import Accelerator, AcceleratorError, canonical, parse
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.pricing.model import CapacityType, Money, Offering
from cloudtrain.pricing.requirements import Amount, Dropped, Requirements, Selection, Why, select
from cloudtrain.provisioner.errors import NoCapacity, UsageError
from cloudtrain.provisioner.jobfile.values import nearest
from cloudtrain.provisioner.spec import JobSpec, Resources


@dataclass(frozen=True, slots=True)
class Plan:
    """``offerings``: at least one, in the order in which to try them. ``dropped``: every type that has none of them,
    with the reason of the alternative that it came closest to.

    ``on_demand_usd_per_hour``: the cheapest on-demand price of any machine that fits, whatever
    ``max_hourly_cost`` says; None where none is known. It is what savings are counted against. ``unmet``: a line for
    each alternative that gives no machine though another does: which, why, and what to do.
    """

    offerings: tuple[Offering, ...]
    dropped: tuple[Dropped, ...]
    on_demand_usd_per_hour: Decimal | None
    unmet: tuple[str, ...] = ()


def make_plan(spec: JobSpec, catalog: Catalog, *, cloud: str) -> Plan:
    """Rank the pools that fit the job: of all its alternatives by price, or, where they are ordered, each in its turn.

    ``cloud`` is "aws", or "local" for the same pools in the embedded cloud. Raises UsageError for a spec that names
    no machine or one that the catalogue doesn't know, NoCapacity when nothing fits.
    """
    found = [(wanted, select(catalog, wanted)) for wanted in (requirements(spec, r, catalog) for r in spec.resources)]
    if not any(selection.offerings for _, selection in found):
        raise NoCapacity(_nothing_fits(spec.name, catalog, found))
    prices = [price for wanted, _ in found if (price := _on_demand(catalog, wanted)) is not None]
    ranked = [offering for _, selection in found for offering in selection.offerings]
    if len(found) > 1 and not spec.resources_ordered:
        ranked.sort(key=lambda o: (o.price_per_hour.amount, str(o.pool)))
    offerings = tuple(replace(o, pool=replace(o.pool, cloud=cloud)) for o in dict.fromkeys(ranked))
    taken = {o.pool.instance_type for o in offerings}
    refused = [d for _, selection in found for d in selection.dropped if d.instance_type not in taken]
    closest = {d.instance_type: d for d in sorted(refused, key=lambda d: _CHECKED.index(d.why))}  # the last one stays
    dropped = tuple(closest[name] for name in dict.fromkeys(d.instance_type for d in refused))
    unmet = tuple(_unmet(catalog, n, w, s) for n, (w, s) in enumerate(found, 1) if not s.offerings)
    return Plan(offerings, dropped, min(prices, default=None), unmet)


def price_limit(spec: JobSpec, offering: Offering) -> Decimal | None:
    """``max_hourly_cost`` of the alternatives that the pool may stand for: the most that one of them allows; None where
    one has no limit."""
    machine = offering.instance
    if all(wanted.max_hourly_cost_usd is None for wanted in spec.resources):
        return None
    limits = [
        wanted.max_hourly_cost_usd
        for wanted in spec.resources
        if wanted.use_spot == (offering.pool.capacity_type is CapacityType.SPOT)
        and wanted.instance_type in (None, machine.name)
        and (wanted.accelerators is None or any(each.fits(machine) for each in parse(wanted.accelerators)))
    ]
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


_CHECKED = list(Why)


def _on_demand(catalog: Catalog, wanted: Requirements) -> Decimal | None:
    fitting = select(catalog, replace(wanted, capacity_type=CapacityType.ON_DEMAND, max_price_per_hour=None))
    return min((offering.price_per_hour.amount for offering in fitting.offerings), default=None)


def requirements(spec: JobSpec, resources: Resources, catalog: Catalog) -> Requirements:
    """What one of the job's alternatives asks of a machine. Raises UsageError as ``make_plan`` does."""
    if resources.accelerators is None and resources.instance_type is None:
        raise UsageError(
            f"{spec.name}: no GPU asked for: set resources.accelerators, such as T4:1, or resources.instance_type"
        )
    if resources.instance_type is not None and catalog.instance(resources.instance_type) is None:
        names = [instance.name for instance in catalog.instances]
        raise UsageError(
            f"{spec.name}: unknown instance type {resources.instance_type!r}{_nearest(resources.instance_type, names)}"
        )
    for place in resources.infra:
        _check_place(spec.name, place, catalog)
    limit = resources.max_hourly_cost_usd
    try:
        return Requirements(
            capacity_type=CapacityType.SPOT if resources.use_spot else CapacityType.ON_DEMAND,
            accelerators=parse(resources.accelerators) if resources.accelerators is not None else (),
            cpus=Amount.parse(resources.cpus) if resources.cpus is not None else None,
            memory_gib=Amount.parse(resources.memory) if resources.memory is not None else None,
            infra=resources.infra,
            instance_type=resources.instance_type,
            max_price_per_hour=Money(limit) if limit is not None else None,
        )
    except AcceleratorError as error:
        raise UsageError(f"{spec.name}: accelerators: {error}") from error
    except ValueError as error:
        raise UsageError(f"{spec.name}: cpus or memory: {error}") from error


def _check_place(job: str, place: str, catalog: Catalog) -> None:
    _, _, inside = place.partition("/")
    region, _, zone = inside.partition("/")
    if region and region not in catalog.regions:
        near = _nearest(region, sorted(catalog.regions), "aws/")
        raise UsageError(f"{job}: no prices are known for {place!r}{near}")
    zones = sorted({price.zone_id for price in catalog.prices if price.region == region and price.zone_id})
    if zone and zone not in zones:
        raise UsageError(f"{job}: no prices are known for {place!r}{_nearest(zone, zones, f'aws/{region}/')}")


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    near = nearest(name, known)
    return f": did you mean {prefix}{near}?" if near else f": known are {', '.join(prefix + n for n in known)}"


_ADVICE = {
    Why.OTHER_TYPE: "leave resources.instance_type out, or change accelerators",
    Why.OTHER_ACCELERATOR: "ask for another count or accelerator, or several: {A100:8, H100:8}",
    Why.UNUSABLE: "ask for another accelerator",
    Why.CPUS: "change resources.cpus",
    Why.MEMORY: "change resources.memory",
    Why.NO_PRICE: "ask for another accelerator, or change use_spot",
    Why.REGION: "change resources.infra",
    Why.TOO_DEAR: "raise resources.max_hourly_cost",
}


def _nothing_fits(job: str, catalog: Catalog, found: list[tuple[Requirements, Selection]]) -> str:
    """One line: for each alternative the reason of the type that came closest, and what to do."""
    if not catalog.instances:
        return f"{job}: nothing fits: the catalogue is empty"
    if len(found) > 1:
        each = (_unmet(catalog, n, w, s) for n, (w, s) in enumerate(found, 1))
        return f"{job}: nothing fits any of {len(found)} alternatives: {'; '.join(each)}"
    ((wanted, selection),) = found
    problem, advice = _why_not(catalog, wanted, selection)
    counts = Counter(d.why for d in selection.dropped)
    tally = ", ".join(f"{why} {counts[why]}" for why in Why if counts[why])
    dropped = f"{len(selection.dropped)} types dropped ({tally})"
    return f"{job}: nothing fits {_asked(wanted)}: {problem}; {dropped}; {advice}"


def _unmet(catalog: Catalog, number: int, wanted: Requirements, selection: Selection) -> str:
    return f"({number}) {_asked(wanted)}: {'; '.join(_why_not(catalog, wanted, selection))}"


def _asked(wanted: Requirements) -> str:
    what = canonical(wanted.accelerators) if wanted.accelerators else wanted.instance_type
    return f"{what} {wanted.capacity_type}"


def _why_not(catalog: Catalog, wanted: Requirements, selection: Selection) -> tuple[str, str]:
    """The reason of the type that came closest, and what to do."""
    closest = max(selection.dropped, key=lambda d: _CHECKED.index(d.why))
    problem, advice = f"{closest.reason} ({closest.instance_type})", _ADVICE[closest.why]
    small = any(d.why is Why.MEMORY for d in selection.dropped)
    if wanted.memory_gib is None and small and closest.why is not Why.MEMORY:
        advice += ", or set resources.memory (16+) to allow less than 1.5x GPU memory"
    if closest.why is Why.OTHER_ACCELERATOR and wanted.instance_type is not None:
        advice = "take accelerators or instance_type out"
    elif closest.why is Why.OTHER_ACCELERATOR:
        problem = "; ".join(_counts(accelerator, catalog) for accelerator in wanted.accelerators)
    return problem, advice


def _counts(wanted: Accelerator, catalog: Catalog) -> str:
    """In which numbers one machine has the accelerator."""
    fitting = {i.accelerator_count for i in catalog.instances if replace(wanted, count=i.accelerator_count).fits(i)}
    name = str(wanted).partition(":")[0]
    if not fitting:
        return f"no machine has {name}"
    return f"a machine has {' or '.join(str(count) for count in sorted(fitting))} {name}, not {wanted.count}"
