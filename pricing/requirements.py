"""What a job needs of a machine, and the choice of the offerings that give it: pure, with every refusal explained."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cloudtrain.pricing.accelerators import Accelerator, canonical
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool

# A host with less than this much memory per byte of GPU memory starves its data loaders and can't hold a checkpoint
# beside the job. The default only; an explicit `memory` replaces it.
HOST_MEMORY_PER_GPU_MEMORY = 1.5

# Regions launched before 20 March 2019 are usable by every account; all later ones must be enabled first, and any call
# to a region that is not enabled is refused (AWS Account Management Reference, "Enable or disable AWS Regions in your
# account", read 2026-11; the table "AWS Regions" in Regions and Availability Zones). The list is closed.
DEFAULT_REGIONS = frozenset(
    [
        "us-east-1",
        "us-east-2",
        "us-west-1",
        "us-west-2",
        "ca-central-1",
        "sa-east-1",
        "eu-central-1",
        "eu-west-1",
        "eu-west-2",
        "eu-west-3",
        "eu-north-1",
        "ap-south-1",
        "ap-northeast-1",
        "ap-northeast-2",
        "ap-northeast-3",
        "ap-southeast-1",
        "ap-southeast-2",
    ]
)


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something: exactly (``8``) or at least (``8+``)."""

    value: float
    at_least: bool

    def __str__(self) -> str:
        return f"{self.value:g}{'+' if self.at_least else ''}"

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Reads ``8`` or ``8+``. Raises ValueError with one line."""
        match = re.fullmatch(r"((?:0|[1-9][0-9]{0,5})(?:\.[0-9]{1,3})?)(\+?)", text)
        if not match or float(match[1]) <= 0:
            raise ValueError(f"{text!r} is not an amount: write 8 for exactly 8, 8+ for at least 8")
        return cls(float(match[1]), match[2] == "+")

    def admits(self, value: float) -> bool:
        """Whether a machine with ``value`` will do."""
        return value >= self.value if self.at_least else value == self.value


@dataclass(frozen=True, slots=True)
class Requirements:
    """What one machine must be. Whatever is empty or None is not asked for.

    ``memory_gib`` None means at least 1.5x the machine's GPU memory, unless ``instance_type`` names the machine.
    ``infra`` lists where it may be: "aws" (each region that every account may use), "aws/REGION" or
    "aws/REGION/ZONE-ID"; empty means "aws".
    """

    capacity_type: CapacityType
    accelerators: tuple[Accelerator, ...] = ()
    cpus: Amount | None = None
    memory_gib: Amount | None = None
    infra: tuple[str, ...] = ()
    instance_type: str | None = None
    max_price_per_hour: Money | None = None

    def allows(self, pool: Pool) -> bool:
        """Whether a machine may come from the pool's place."""
        region = f"aws/{pool.region}"
        if region in self.infra or f"{region}/{pool.zone_id}" in self.infra:
            return True
        return pool.region in DEFAULT_REGIONS and (not self.infra or "aws" in self.infra)

    def rank(self, instance: InstanceType) -> int:
        """How welcome the type's accelerator is: 0 is wanted most."""
        return min((a.rank for a in self.accelerators if a.fits(instance)), default=0)


class Why(StrEnum):
    """The kinds of reasons, in the order in which they are checked."""

    OTHER_TYPE = "instance type"
    OTHER_ACCELERATOR = "accelerator"
    UNUSABLE = "no machine image"
    CPUS = "cpus"
    MEMORY = "memory"
    NO_PRICE = "price unknown"
    REGION = "region"
    TOO_DEAR = "price too high"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A type that was not taken, with the first reason that was found."""

    instance_type: str
    why: Why
    reason: str  # "A10G:1 is not T4:1"


@dataclass(frozen=True, slots=True)
class Selection:
    """The offerings that fit (most wanted accelerator first, then cheapest), and every type that gave none."""

    offerings: tuple[Offering, ...]
    dropped: tuple[Dropped, ...]


def select(catalog: Catalog, requirements: Requirements) -> Selection:
    """Choose. Every type of the catalogue either has offerings in the result or exactly one reason.

    Equal prices are ordered by type, region and zone, so that one catalogue always gives one order.
    Raises ValueError when the maximum price is in another currency than a price.
    """
    priced: dict[str, list[Offering]] = {}
    for offering in catalog.offerings(requirements.capacity_type):
        priced.setdefault(offering.instance.name, []).append(offering)
    offerings: list[Offering] = []
    dropped: list[Dropped] = []
    for instance in catalog.instances:
        refusal = _machine_refusal(instance, requirements)
        if refusal is None:
            kept, refusal = _affordable(catalog, instance, priced.get(instance.name, []), requirements)
            offerings += kept
        if refusal is not None:
            dropped.append(Dropped(instance.name, *refusal))
    offerings.sort(key=lambda o: (requirements.rank(o.instance), o.price_per_hour.amount, _place(o)))
    return Selection(tuple(offerings), tuple(dropped))


def _place(offering: Offering) -> tuple[str, str, str]:
    return offering.pool.instance_type, offering.pool.region, offering.pool.zone_id


def _machine_refusal(instance: InstanceType, requirements: Requirements) -> tuple[Why, str] | None:
    for check in _MACHINE_CHECKS:
        refusal = check(instance, requirements)
        if refusal is not None:
            return refusal
    return None


def _check_type(instance: InstanceType, requirements: Requirements) -> tuple[Why, str] | None:
    wanted = requirements.instance_type
    return None if wanted in (None, instance.name) else (Why.OTHER_TYPE, f"not {wanted}")


def _check_accelerator(instance: InstanceType, requirements: Requirements) -> tuple[Why, str] | None:
    wanted = requirements.accelerators
    if not wanted or any(accelerator.fits(instance) for accelerator in wanted):
        return None
    has = f"{instance.accelerator}:{instance.accelerator_count}"
    by_memory = any(accelerator.min_memory_gb is not None for accelerator in wanted)
    size = f" of {instance.accelerator_memory_gib:g} GB" if by_memory else ""
    return Why.OTHER_ACCELERATOR, f"{has}{size} is not {canonical(wanted)}"


def _check_usable(instance: InstanceType, _: Requirements) -> tuple[Why, str] | None:
    return None if instance.unusable is None else (Why.UNUSABLE, instance.unusable)


def _check_cpus(instance: InstanceType, requirements: Requirements) -> tuple[Why, str] | None:
    cpus = requirements.cpus
    if cpus is None or cpus.admits(instance.vcpus):
        return None
    return Why.CPUS, f"{instance.vcpus} vCPUs, {cpus} needed"


def _check_memory(instance: InstanceType, requirements: Requirements) -> tuple[Why, str] | None:
    memory = requirements.memory_gib
    if memory is not None:
        if memory.admits(instance.memory_gib):
            return None
        return Why.MEMORY, f"memory {instance.memory_gib:g} GiB, {memory} needed"
    needed = HOST_MEMORY_PER_GPU_MEMORY * instance.accelerator_memory_gib * instance.accelerator_count
    if requirements.instance_type is not None or instance.memory_gib >= needed:
        return None
    return Why.MEMORY, f"memory {instance.memory_gib:g} GiB < {needed:g} GiB needed (1.5x GPU memory)"


_MACHINE_CHECKS: tuple[Callable[[InstanceType, Requirements], tuple[Why, str] | None], ...] = (
    _check_type,
    _check_accelerator,
    _check_usable,
    _check_cpus,
    _check_memory,
)


_PLACES_SHOWN = 6


def _elsewhere(priced: list[Offering], infra: tuple[str, ...]) -> str:
    """Where it was asked for, and where it is: other zones of a region that was named, else other regions."""
    asked = {place.split("/")[1] for place in infra if place.count("/") == 2}
    zones = sorted({offering.pool.zone_id for offering in priced if offering.pool.region in asked})
    regions = sorted({offering.pool.region for offering in priced})
    where = ", ".join(infra) or "a region that every account may use"
    there = zones or regions
    more = f" and {len(there) - _PLACES_SHOWN} more" if len(there) > _PLACES_SHOWN else ""
    return f"{where}, only in {', '.join(there[:_PLACES_SHOWN])}{more}"


def _affordable(
    catalog: Catalog, instance: InstanceType, priced: list[Offering], requirements: Requirements
) -> tuple[list[Offering], tuple[Why, str] | None]:
    """The type's offerings where they are allowed and cheap enough; else the reason why there is none."""
    capacity_type = requirements.capacity_type
    if not priced:
        known = any(
            p.usd_per_hour
            for p in catalog.prices
            if (p.instance_type, p.capacity_type) == (instance.name, capacity_type)
        )
        return [], (Why.NO_PRICE, f"no {'zone' if known else f'{capacity_type} price'} known")
    allowed = [offering for offering in priced if requirements.allows(offering.pool)]
    if not allowed:
        return [], (Why.REGION, f"no {capacity_type} price known in {_elsewhere(priced, requirements.infra)}")
    limit = requirements.max_price_per_hour
    if limit is None:
        return allowed, None
    if any(offering.price_per_hour.currency != limit.currency for offering in allowed):
        raise ValueError(f"the maximum price is in {limit.currency}, the prices are not")
    cheap = [offering for offering in allowed if offering.price_per_hour.amount <= limit.amount]
    if cheap:
        return cheap, None
    lowest = min(offering.price_per_hour.amount for offering in allowed)
    return [], (Why.TOO_DEAR, f"from {lowest} {limit.currency}/h, at most {limit.amount} allowed")
