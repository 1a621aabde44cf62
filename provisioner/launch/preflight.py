"""What is asked of an account before a job starts in it: the checks of ``doctor``, for the plan's own pools.

A failure of the account refuses the launch. One of a region or a pool takes these pools out of the plan. At first only
the regions of the cheapest pools are looked at: later ones meet the launch's own error table when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.account.account_checks import check
from cloudtrain.provisioner.account.facts import AccountFacts, Finding, Level, Wants
from cloudtrain.provisioner.adapters import account_facts
from cloudtrain.provisioner.adapters.clients import Clients

REGIONS = 2
"""So many regions are looked at before a launch: more only where none of their pools is left. A third one takes a
quarter longer (measured on the embedded cloud), and its pools come after those of the first two."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The account that is looked at. ``egress``: the SSH server that this network should let us reach."""

    clients: Clients
    region: str  # of the bucket, and of account-wide calls
    bucket: str | None = None  # the one that the configuration names; None: the account's own
    egress: tuple[str, int] = account_facts.AWS_SSH
    cloud_id: str | None = None  # the embedded cloud's; None on AWS


@dataclass(frozen=True, slots=True)
class Verdict:
    """``offerings``: those of the plan that are left, in its order. ``findings``: what is not well, in the order of
    the checks. ``facts``: what they were made of."""

    offerings: tuple[Offering, ...]
    findings: tuple[Finding, ...]
    facts: AccountFacts | None = None

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Failures of the account, or, where no pool is left, all that took one; empty where a launch may go on."""
        account = tuple(f for f in self.findings if f.level is Level.FAIL and not f.pools)
        return account or (() if self.offerings else tuple(f for f in self.findings if f.pools))


def sift(offerings: tuple[Offering, ...], findings: Iterable[Finding]) -> Verdict:
    """What is left of a plan. Pure."""
    troubles = tuple(f for f in findings if f.level is not Level.OK)
    out = {pool for finding in troubles for pool in finding.pools}
    return Verdict(tuple(o for o in offerings if o.pool not in out), troubles)


def examine(ground: Ground, wants: Wants) -> tuple[AccountFacts, tuple[Finding, ...]]:
    """Read the account and check it for these pools. Blocks some seconds on AWS, at most about 40."""
    wants = replace(wants, bucket=ground.bucket)
    facts = account_facts.read(ground.clients, wants, home_region=ground.region, egress=ground.egress)
    return facts, check(facts, wants)


def judge(ground: Ground, wants: Wants) -> Verdict:
    """The checks for a plan's pools: in its first regions, and in all others only where nothing is left of those."""
    first = set(wants.regions[:REGIONS])
    near = tuple(o for o in wants.offerings if o.pool.region in first)
    far = tuple(o for o in wants.offerings if o.pool.region not in first)
    facts, findings = examine(ground, replace(wants, offerings=near))
    verdict = replace(sift(near, findings), facts=facts)
    if verdict.offerings:
        out = {offering.pool for offering in near} - {offering.pool for offering in verdict.offerings}
        return replace(verdict, offerings=tuple(o for o in wants.offerings if o.pool not in out))
    if not far or any(not finding.pools for finding in verdict.refusals):
        return verdict
    others = sift(far, examine(ground, replace(wants, offerings=far))[1])
    return Verdict(others.offerings, (*verdict.findings, *(f for f in others.findings if f.pools)), facts)
