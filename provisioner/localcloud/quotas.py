"""EC2's vCPU quotas in the embedded cloud: what each allows, and how Service Quotas shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cloudtrain.provisioner.account.quotas import SERVICE, Quota

GENEROUS = 8192.0
"""What an account of the embedded cloud may run: twenty of the largest machines, at once. On AWS a GPU quota starts at
0."""


def value(quota: Quota, planted: Iterable[str]) -> float:
    """What a quota allows in a region, in vCPUs, with the faults that are planted there."""
    spot, gpu = "Spot" in quota.name, "Standard" not in quota.name
    zeroed = {
        "quota-spot-zero": gpu and spot,
        "quota-on-demand-zero": gpu and not spot,
        "quota-p5-spot-zero": quota.name == "All P5 Spot Instance Requests",
    }
    return 0.0 if any(zeroed.get(name, False) for name in planted) else GENEROUS


def aws_default(quota: Quota) -> float:
    """What a new account may run on AWS, in vCPUs (General Reference, "Amazon EC2 endpoints and quotas"; 2026-11)."""
    return 5.0 if "Standard" in quota.name else 0.0


def document(quota: Quota, amount: float, region: str, account: str) -> dict[str, Any]:
    """A quota as Service Quotas shows it."""
    return {
        "ServiceCode": SERVICE,
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{account}:{SERVICE}/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": amount,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
