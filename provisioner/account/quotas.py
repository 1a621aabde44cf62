"""EC2's vCPU quotas: which one counts an instance type in a market. Pure.

Codes and names: AWS General Reference, "Amazon EC2 endpoints and quotas", and the Service Quotas console (read
2026-11). A quota counts vCPUs per account and region. A new account has 0 of every GPU quota.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.pricing.model import CapacityType, Pool

SERVICE = "ec2"


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota, under AWS's own name."""

    code: str
    name: str


_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
_P_ON_DEMAND = Quota("L-417A185B", "Running On-Demand P instances")
_P_SPOT = Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")
_P5_SPOT = Quota("L-C4BD4855", "All P5 Spot Instance Requests")

# By what a type's name begins with (letters and, for P, the generation).
_QUOTAS: dict[tuple[str, CapacityType], Quota] = {
    ("g", _ON_DEMAND): Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("g", _SPOT): Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    **{(f"p{generation}", _ON_DEMAND): _P_ON_DEMAND for generation in (2, 3, 4, 5, 6)},
    **{(f"p{generation}", _SPOT): _P_SPOT for generation in (2, 3, 4)},
    ("p5", _SPOT): _P5_SPOT,  # P6 on spot: public sources disagree on the quota, so none is named
    ("dl", _ON_DEMAND): Quota("L-6E869C2A", "Running On-Demand DL instances"),
    ("dl", _SPOT): Quota("L-85EED4F7", "All DL Spot Instance Requests"),
    ("trn", _ON_DEMAND): Quota("L-2C3B7624", "Running On-Demand Trn instances"),
    ("trn", _SPOT): Quota("L-6B0D517C", "All Trn Spot Instance Requests"),
    ("inf", _ON_DEMAND): Quota("L-1945791B", "Running On-Demand Inf instances"),
    ("inf", _SPOT): Quota("L-B5D1601B", "All Inf Spot Instance Requests"),
    ("standard", _ON_DEMAND): Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
    ("standard", _SPOT): Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
}
QUOTAS = tuple(dict.fromkeys(_QUOTAS.values()))
"""Every one, once."""
_GROUPS = {"g": "g", "gr": "g", "vt": "g", "dl": "dl", "trn": "trn", "inf": "inf"}
_STANDARD = frozenset("acdhimrtz")


def quota_of(instance_type: str, capacity_type: CapacityType) -> Quota | None:
    """The quota that counts the type's vCPUs in a market; None where it is not known which one does."""
    match = re.match(r"([a-z]+)(\d+)", instance_type)
    if match is None:
        return None
    letters, generation = match.groups()
    if letters == "p":
        return _QUOTAS.get((f"p{generation}", capacity_type))
    group = _GROUPS.get(letters) or ("standard" if letters[0] in _STANDARD else "")
    return _QUOTAS.get((group, capacity_type))


def increase_command(quota: Quota, vcpus: int, region: str) -> str:
    """The command that asks AWS for a quota of so many vCPUs. AWS answers within minutes to days."""
    return (
        f"aws service-quotas request-service-quota-increase --service-code {SERVICE} --quota-code {quota.code}"
        f" --desired-value {vcpus} --region {region}"
    )


def console_page(quota: Quota, region: str) -> str:
    """Where the console shows the quota, with its button to ask for more."""
    return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/{SERVICE}/quotas/{quota.code}"


def shortage(pool: Pool, vcpus: int | None, limit: float | None) -> str | None:
    """What a refusal by the pool's quota means: which one, what is needed, what there is, what to do. None where it is
    not known which quota that is. ``limit``: in vCPUs; with it and the need, what must be in use follows."""
    quota = quota_of(pool.instance_type, pool.capacity_type)
    if quota is None:
        return None
    needs = "" if vcpus is None else f": {pool.instance_type} needs {vcpus} vCPUs"
    have = ""
    if limit is not None:
        have = f"{', ' if needs else ': '}the quota is {limit:.0f}"
        if vcpus is not None and limit >= vcpus:
            have += f" and more than {limit - vcpus:.0f} of them are in use"
        elif vcpus is not None:
            have += f", {vcpus - limit:.0f} are missing"
    more = int(limit or 0) + vcpus if vcpus is not None else None
    ask = f"`{increase_command(quota, more, pool.region)}`" if more is not None else console_page(quota, pool.region)
    return f"quota {quota.name!r} ({quota.code}) in {pool.region}{needs}{have}; ask for more: {ask}"


UPGRADE = "the account is on AWS's free plan, which has no GPUs: upgrade the plan in the Billing console"


def on_free_plan(words: str) -> bool:
    """Whether EC2 refuses a launch for the account's plan. Accounts since 2025-07 may begin on a free one, which starts
    small types alone: "The specified instance type is not eligible for Free Tier", with InvalidParameterCombination
    (LinkedInLearning/learning-terraform-3087701#345, 2026-01; of images, bitnami/vms#1838, 2025-07)."""
    return "not eligible for free tier" in words.lower()
