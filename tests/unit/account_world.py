"""A sound account as facts, for the tests of its checks: change one fact, and see what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool
from cloudtrain.provisioner.account.account_checks import check
from cloudtrain.provisioner.account.facts import (
    AccountFacts,
    Ami,
    Bucket,
    EbsKey,
    Egress,
    Finding,
    Identity,
    ImageFacts,
    Level,
    MachineRole,
    Network,
    RegionFacts,
    SpotRole,
    Subnet,
    Unread,
    Wants,
    Why,
)

NOW = 1_800_000_000.0
ACCOUNT = "123456789012"
REGION = "us-east-1"
BUCKET = f"cloudtrain-{ACCOUNT}-{REGION}-an"
DENIED = Unread(Why.DENIED, "ec2:DescribeThings", "UnauthorizedOperation: You are not authorized")
RIGHTS = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:PutObject"],
                "Resource": f"arn:aws:s3:::{BUCKET}/jobs/*",
            },
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{BUCKET}"},
        ],
    }
)


def offering(zone: str = "use1-az4", *, kind: str = "g4dn.xlarge", vcpus: int = 4, spot: bool = True) -> Offering:
    market = CapacityType.SPOT if spot else CapacityType.ON_DEMAND
    region = {"use1": REGION, "use2": "us-east-2", "euw1": "eu-west-1", "usw2": "us-west-2"}[zone.partition("-")[0]]
    instance = InstanceType(kind, "T4", 1, 16, vcpus, 16, "x86_64", 125, "test", date(2026, 11, 1))
    price = Money(Decimal("0.2"))
    return Offering(Pool("aws", region, zone, kind, market), instance, price, "test", date(2026, 11, 1))


WANTS = Wants((offering("use1-az4"), offering("use1-az6")))


def subnet(zone: str, **changes: Any) -> Subnet:
    return replace(Subnet(f"subnet-{zone[-1]}", "vpc-1", zone, 250, "rtb-1"), **changes)


REGION_FACTS = RegionFacts(
    region=REGION,
    opt_in="opt-in-not-required",
    quotas=(("L-3819A6DF", 64.0), ("L-DB2E81BA", 64.0)),
    ebs_key=EbsKey("alias/aws/ebs"),
    network=Network("vpc-1", (subnet("use1-az4"), subnet("use1-az6"))),
    images=(
        ImageFacts("/aws/service/x/line/latest/ami-id", ("g4dn.xlarge",), "ami-1", Ami("x86_64", "/dev/sda1", 75)),
    ),
    offered=frozenset({("g4dn.xlarge", "use1-az4"), ("g4dn.xlarge", "use1-az6")}),
)

FACTS = AccountFacts(
    cloud="aws",
    read_at=NOW,
    caller=Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/alice", "AIDA1"),
    home_region=REGION,
    ahead_s=0.4,
    egress=Egress("ssh.example:22"),
    role=MachineRole("cloudtrain-machine", True, "cloudtrain-machine", (RIGHTS,)),
    spot_role=SpotRole(True),
    bucket=Bucket(BUCKET, (BUCKET,), REGION, region=REGION),
    regions=(REGION_FACTS,),
)


def findings(name: str, facts: AccountFacts = FACTS, wants: Wants = WANTS) -> list[Finding]:
    return [finding for finding in check(facts, wants) if finding.check == name]


def account(name: str, wants: Wants = WANTS, **changes: Any) -> Finding:
    """What one check says of an account with other facts: exactly one finding."""
    [finding] = findings(name, replace(FACTS, **changes), wants)
    return finding


def region(name: str, wants: Wants = WANTS, **changes: Any) -> Finding:
    """The same for other facts of its region."""
    return account(name, wants, regions=(replace(REGION_FACTS, **changes),))


def troubles(facts: AccountFacts = FACTS, wants: Wants = WANTS) -> list[Finding]:
    return [finding for finding in check(facts, wants) if finding.level is not Level.OK]
