"""EC2's vCPU quotas: which one an instance type counts against, what it allows, who refuses. Pure.

Codes and families: the AWS General Reference, "Amazon EC2 endpoints and quotas" (2026-11). Sources disagree on whether
a P6 spot machine counts as P or as P5; here it counts as P.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ON_DEMAND, SPOT = "on-demand", "spot"
GENEROUS = 8192.0
"""What an account of the embedded cloud may run: twenty of the largest machines, at once. On AWS a GPU quota starts at
0."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota of EC2, in vCPUs and per region."""

    code: str
    name: str
    market: str
    aws_default: float


_GPU = ("DL", "G", "Inf", "P", "P5", "Trn")


def _pair(family: str, on_demand: str | None, spot: str | None, what: str, default: float) -> dict[Any, Quota]:
    found = {}
    if on_demand is not None:
        name = f"Running On-Demand {what} instances"
        found[family, ON_DEMAND] = Quota(on_demand, name, ON_DEMAND, default)
    if spot is not None:
        found[family, SPOT] = Quota(spot, f"All {what} Spot Instance Requests", SPOT, default)
    return found


QUOTAS: Mapping[tuple[str, str], Quota] = {
    **_pair("G", "L-DB2E81BA", "L-3819A6DF", "G and VT", 0),
    **_pair("P", "L-417A185B", None, "P", 0),
    **_pair("P", None, "L-7212CCBC", "P4, P3 and P2", 0),
    **_pair("P5", None, "L-C4BD4855", "P5", 0),
    **_pair("DL", "L-6E869C2A", "L-85EED4F7", "DL", 0),
    **_pair("Trn", "L-2C3B7624", "L-6B0D517C", "Trn", 0),
    **_pair("Inf", "L-1945791B", "L-B5D1601B", "Inf", 0),
    **_pair("Standard", "L-1216C47A", "L-34B43A08", "Standard (A, C, D, H, I, M, R, T, Z)", 5),
    **_pair("F", "L-74FC7D96", None, "F", 0),
}
"""By family and market."""


def quota_of(instance_type: str, market: str) -> Quota | None:
    """The quota that a machine counts against; None for a family that none is known of."""
    family = re.match(r"[a-z]+", instance_type)
    letters = family[0] if family else ""
    if letters == "p":
        name = "P5" if market == SPOT and instance_type.startswith("p5") else "P"
    elif letters in ("g", "gr", "vt"):
        name = "G"
    elif letters in ("dl", "trn", "inf", "f"):
        name = letters.capitalize() if letters != "dl" else "DL"
    else:
        name = "Standard"
    return QUOTAS.get((name, market))


def value(quota: Quota, planted: Iterable[str]) -> float:
    """What a quota allows in a region, in vCPUs, with the faults that are planted there."""
    family = next(name for (name, _), known in QUOTAS.items() if known is quota)
    zeroed = {
        "quota-spot-zero": quota.market == SPOT and family in _GPU,
        "quota-on-demand-zero": quota.market == ON_DEMAND and family in _GPU,
        "quota-p5-spot-zero": family == "P5",
    }
    return 0.0 if any(zeroed.get(name, False) for name in planted) else GENEROUS


def document(quota: Quota, amount: float, region: str, account: str) -> dict[str, Any]:
    """A quota as Service Quotas shows it."""
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{account}:ec2/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": amount,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
