"""What a refused launch means for the other pools: which are left alone, for how long, and which is next. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.account.quotas import quota_of
from cloudtrain.provisioner.decide.limits import Limits
from cloudtrain.provisioner.decide.outcomes import LaunchRefused
from cloudtrain.provisioner.errors import Scope
from cloudtrain.provisioner.model import Attempt, Avoid, EndReason, JobRecord

REFUSALS = (EndReason.NO_CAPACITY, EndReason.QUOTA, EndReason.DENIED)
"""The ends of attempts whose launch was refused, where another pool may say yes."""


def leave_alone(record: JobRecord, refused: Attempt, outcome: LaunchRefused, now: float, limits: Limits) -> JobRecord:
    """Leave alone every pool of the job that would say the same, for as long as it would."""
    until_at = now + _rest_s(record, refused, outcome, limits)
    same = _same(record, refused, outcome.scope)
    more = tuple(Avoid(o.pool, until_at, outcome.detail) for o in record.offerings if same(o))
    return replace(record, avoid=record.avoid + more)


def avoided(record: JobRecord, now: float) -> tuple[Avoid, ...]:
    """The pools that are left alone now, each with the last moment that somebody said so for."""
    longest: dict[object, Avoid] = {}
    for entry in record.avoid:
        if entry.until_at > now and (entry.pool not in longest or longest[entry.pool].until_at < entry.until_at):
            longest[entry.pool] = entry
    return tuple(longest.values())


def next_offering(record: JobRecord, now: float, *, may_wait: bool) -> Offering | None:
    """The pool to ask next: of those that are not left alone the first that refused the fewest times since the job last
    had a machine. So each is asked once before any is asked again, which happens only where the job may wait."""
    alone = {entry.pool for entry in avoided(record, now)}
    refusals = Counter(a.pool for a in _since_a_machine(record) if a.end_reason in REFUSALS)
    free = [o for o in record.offerings if o.pool not in alone and (may_wait or not refusals[o.pool])]
    return min(free, key=lambda o: refusals[o.pool], default=None)


def pause_s(attempt: Attempt, limits: Limits) -> float:
    """Until a launch without an answer is asked again: longer each time, and another time for each job and attempt, so
    that a thousand jobs that were throttled together do not come back together."""
    digest = hashlib.sha256(f"{attempt.client_token} {attempt.unknown_launches}".encode()).digest()
    jitter = 0.5 + digest[0] / 256  # 0.5 to 1.5
    return min(limits.retry_s * 2.0**attempt.unknown_launches, limits.retry_most_s) * jitter


def _since_a_machine(record: JobRecord) -> tuple[Attempt, ...]:
    began = [n for n, attempt in enumerate(record.attempts) if attempt.started_at is not None]
    return record.attempts[began[-1] + 1 :] if began else record.attempts


def _rest_s(record: JobRecord, refused: Attempt, outcome: LaunchRefused, limits: Limits) -> float:
    if outcome.lasting:
        return limits.lasting_s
    if outcome.reason is not EndReason.NO_CAPACITY or outcome.scope not in (Scope.POOL, Scope.PLACE):
        return limits.avoid_s
    before = sum(
        a.pool == refused.pool and a.end_reason is EndReason.NO_CAPACITY and a.generation != refused.generation
        for a in _since_a_machine(record)
    )
    return min(limits.capacity_s * 2.0**before, limits.avoid_s)


def _same(record: JobRecord, refused: Attempt, scope: Scope) -> Callable[[Offering], bool]:
    """Whether a pool of the job would be refused for the same reason."""
    pool = refused.pool
    quota = quota_of(pool.instance_type, pool.capacity_type)
    kinds = {o.instance.architecture for o in record.offerings if o.pool == pool}

    def same(offering: Offering) -> bool:
        other = offering.pool
        in_region = other.region == pool.region
        in_zone = in_region and other.zone_id == pool.zone_id
        match scope:
            case Scope.NONE | Scope.RESOURCE:
                return False
            case Scope.PLACE:
                return in_zone and other.instance_type == pool.instance_type
            case Scope.SUBNET:
                return in_zone
            case Scope.IMAGE:
                return in_region and offering.instance.architecture in kinds
            case Scope.QUOTA:
                market = in_region and other.capacity_type is pool.capacity_type
                if quota is None:  # which one counts it is not known: that type's own
                    return market and other.instance_type == pool.instance_type
                return market and quota_of(other.instance_type, other.capacity_type) == quota
            case Scope.REGION:
                return in_region
            case Scope.REQUEST | Scope.ACCOUNT:
                return True
        return other == pool

    return same
