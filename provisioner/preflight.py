"""What is asked of an account before a job starts in it: the checks of ``doctor``, for the plan's own pools.

A failure of the account refuses the launch. One of a region or a pool takes these pools out of the plan. At first only
the regions of the cheapest pools are looked at: later ones meet the launch's own error table when they are used.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.account import Finding, Level, Wants
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobSpec
from cloudtrain.provisioner.plan import Plan

REGIONS = 3
"""So many regions are looked at before a launch: more only where none of their pools is left."""
LOCAL_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``offerings``: those of the plan that are left, in its order. ``findings``: what is not well, in the order of
    the checks."""

    offerings: tuple[Offering, ...]
    findings: tuple[Finding, ...]

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Failures of the account, or, where no pool is left, all failures; empty where a launch may go on."""
        failed = tuple(f for f in self.findings if f.level is Level.FAIL)
        return tuple(f for f in failed if not f.pools) or (() if self.offerings else failed or self.findings)


def sift(offerings: tuple[Offering, ...], findings: Iterable[Finding]) -> Verdict:
    """What is left of a plan. Pure."""
    troubles = tuple(f for f in findings if f.level is not Level.OK)
    out = {pool for finding in troubles for pool in finding.pools}
    return Verdict(tuple(o for o in offerings if o.pool not in out), troubles)


def line(finding: Finding) -> str:
    """A finding in one line: where, what, and what to do."""
    where = "" if finding.where == "account" else f"{finding.where}: "
    return f"{where}{finding.what}; {finding.fix}"


def examine(home: Home, cloud: str, wants: Wants, *, home_region: str | None = None) -> tuple[Finding, ...]:
    """Read the account and check it for these pools. Blocks some seconds on AWS, at most about 40.

    Raises AccessError where the AWS profile does not exist, and as ``ensure_up`` does.
    """
    from cloudtrain.provisioner.account_checks import check  # noqa: PLC0415
    from cloudtrain.provisioner.adapters import account_facts  # noqa: PLC0415 - boto3, in `begin`'s thread
    from cloudtrain.provisioner.adapters.clients import Clients  # noqa: PLC0415
    from cloudtrain.provisioner.adapters.identity import default_region  # noqa: PLC0415

    if cloud == "local":
        from cloudtrain.provisioner.localcloud.client import ensure_up  # noqa: PLC0415

        local = ensure_up(home.local_home)
        clients = Clients("local", local_endpoint=local.endpoint_url)
        region, egress = LOCAL_REGION, ("127.0.0.1", local.port)
    else:
        clients = Clients("aws")
        region, egress = home_region or default_region(clients), account_facts.AWS_SSH
    return check(account_facts.read(clients, wants, home_region=region, egress=egress), wants)


def judge(home: Home, cloud: str, spec: JobSpec, plan: Plan) -> Verdict:
    """The checks for a plan: of its first regions, and of all others only where nothing is left of those."""
    wants = Wants(plan.offerings, spec.disk_size_gib, spec.aws, spec.max_run_s)
    first = set(wants.regions[:REGIONS])
    tried = tuple(o for o in plan.offerings if o.pool.region in first)
    rest = tuple(o for o in plan.offerings if o.pool.region not in first)
    verdict = sift(tried, examine(home, cloud, replace(wants, offerings=tried)))
    if verdict.offerings or (verdict.refusals and any(not f.pools for f in verdict.refusals)) or not rest:
        return replace(verdict, offerings=verdict.offerings and (*verdict.offerings, *rest))
    others = sift(rest, examine(home, cloud, replace(wants, offerings=rest)))
    return Verdict(others.offerings, (*verdict.findings, *(f for f in others.findings if f.pools)))


class Preflight:
    """The checks for a plan, begun at once in a thread of their own."""

    def __init__(self, home: Home, cloud: str, spec: JobSpec, plan: Plan) -> None:
        self._verdict: Future[Verdict] = Future()
        threading.Thread(target=self._judge, args=(home, cloud, spec, plan), name="preflight", daemon=True).start()

    def _judge(self, home: Home, cloud: str, spec: JobSpec, plan: Plan) -> None:
        try:
            self._verdict.set_result(judge(home, cloud, spec, plan))
        except BaseException as error:  # noqa: BLE001 - whoever takes the verdict gets it
            self._verdict.set_exception(error)

    def verdict(self) -> Verdict:
        """Wait for it. Raises as ``examine`` does."""
        return self._verdict.result()


def refusal(verdict: Verdict) -> AccessError | None:
    """Why nothing may start, in one line; None where it may."""
    refusals = verdict.refusals
    if not refusals:
        return None
    return AccessError(f"nothing was started: {len(refusals)} of the account's checks failed")
