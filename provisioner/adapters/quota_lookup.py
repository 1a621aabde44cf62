"""What a launch that a quota refused is told: the quota by its name, what is needed, what it allows."""

from __future__ import annotations

import re

from botocore.exceptions import BotoCoreError, ClientError

from cloudtrain.pricing import catalog
from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.account.quotas import SERVICE, quota_of, shortage
from cloudtrain.provisioner.adapters.aws_codes import ASK_QUOTA
from cloudtrain.provisioner.adapters.aws_errors import message_of
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import QuotaExceeded, Scope

# "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that …"
# (scrapoxy/scrapoxy#202, 2020-11). MaxSpotInstanceCountExceeded tells no number.
_LIMIT = re.compile(r"vCPU limit of (\d+)")


def named(clients: Clients, error: QuotaExceeded, pool: Pool) -> QuotaExceeded:
    """The refusal of a launch in a pool, with its quota named. One more call where EC2 did not tell the limit."""
    if error.scope is not Scope.QUOTA:
        return error
    cause = error.__cause__
    said = _LIMIT.search(message_of(cause)) if isinstance(cause, ClientError) else None
    limit = float(said[1]) if said is not None else _limit(clients, pool)
    kind = catalog.load().instance(pool.instance_type)
    words = shortage(pool, kind.vcpus if kind is not None else None, limit)
    if words is None:
        return error
    head, _, _ = str(error).partition(f"; {ASK_QUOTA}")
    return QuotaExceeded(f"{head}; {words}", code=error.code, scope=error.scope)


def _limit(clients: Clients, pool: Pool) -> float | None:
    """What the pool's quota allows, in vCPUs; None where that can't be asked."""
    quota = quota_of(pool.instance_type, pool.capacity_type)
    if quota is None:
        return None
    try:
        shown = clients.client("service-quotas", pool.region).get_service_quota(
            ServiceCode=SERVICE, QuotaCode=quota.code
        )
        return float(shown["Quota"]["Value"])
    except (ClientError, BotoCoreError, KeyError):
        return None
