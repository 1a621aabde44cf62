"""The checks of an account: facts in, findings out. Pure.

A check is one function and one row of ``CHECKS``; those that look at one region at a time are in ``region_checks.py``.
Sources of the AWS facts: docs/doctor.md.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloudtrain.provisioner.account import region_checks
from cloudtrain.provisioner.account.facts import (
    AccountFacts,
    Bucket,
    Finding,
    Identity,
    Level,
    MachineRole,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.account.findings import LOGIN, POLICY, fail, not_read, ok, setup, warn
from cloudtrain.provisioner.proxy import INSTANCE_CONNECT, SSM
from cloudtrain.provisioner.shipping.mounts import is_s3, parse_s3

CLOCK_WARN_S = 30.0
CLOCK_FAIL_S = 300.0  # AWS refuses a signature that is more than five minutes off (SigV4, "Date handling", 2026-11)
EXPIRY_WARN_S = 3600.0

# What the agent does with its job's objects (trainer/storage.py).
ROLE_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:ListBucket")

ACCOUNT = "account"
_NO_SSH_OF_OURS = (SSM, INSTANCE_CONNECT)  # these go through HTTPS


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and what it looks at, in one line."""

    name: str
    about: str
    run: Callable[[AccountFacts, Wants], Iterable[Finding]]


def check(facts: AccountFacts, wants: Wants) -> tuple[Finding, ...]:
    """What every check says, in the order of the table. Without working credentials only the first ones speak."""
    found: list[Finding] = []
    for row in CHECKS:
        if row.name in _WITHOUT_CREDENTIALS or isinstance(facts.caller, Identity):
            found += row.run(facts, wants)
    return tuple(f for f in found if not _explained(f, found))


def _explained(finding: Finding, found: list[Finding]) -> bool:
    """Whether a refused dry run says only what another check has said, with its fix: no quota, no profile, no offer."""
    if finding.check != region_checks.DRY_RUN:
        return False
    others = [f for f in found if f.check != region_checks.DRY_RUN and f.level is not Level.OK]
    if finding.fix == region_checks.NEW_PROFILE:
        return any(f.check == "role" for f in others)
    return finding.fix == region_checks.NOT_EXPLAINED and any(set(finding.pools) <= set(f.pools) for f in others)


# ---- who we are


def _credentials(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    caller = facts.caller
    if isinstance(caller, Identity):
        yield ok("credentials", ACCOUNT, f"{caller.arn}, account {caller.account}")
        return
    fixes = {
        Why.NO_CREDENTIALS: "`aws configure sso` (or `aws configure`), or name a profile in AWS_PROFILE",
        Why.EXPIRED: LOGIN,
        Why.INVALID: "check AWS_PROFILE and the keys with `aws sts get-caller-identity`",
        Why.SKEWED: "set this computer's clock: `timedatectl set-ntp true`",
        Why.REGION_OFF: "one of the two",
        Why.DENIED: POLICY,
    }
    words = {
        Why.NO_CREDENTIALS: "there are no AWS credentials",
        Why.EXPIRED: "the AWS credentials have expired",
        Why.INVALID: "AWS does not know these credentials",
        Why.SKEWED: "AWS refuses this computer's time",
        Why.REGION_OFF: f"nobody can be asked in {facts.home_region}",
    }
    head = words.get(caller.why, f"{caller.action} failed")
    fix = fixes.get(caller.why, "check the network or a proxy, then `cloudtrain doctor`")
    yield fail("credentials", ACCOUNT, f"{head} ({caller.words})", fix)


def _expiry(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    caller = facts.caller
    if not isinstance(caller, Identity) or caller.expires_at is None:
        return
    left_s = caller.expires_at - facts.read_at
    at = datetime.fromtimestamp(caller.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if left_s <= 0:
        yield fail("expiry", ACCOUNT, f"the credentials ended at {at}", LOGIN)
    elif left_s < max(EXPIRY_WARN_S, wants.max_run_s or 0):
        what = f"the credentials end at {at}: from then on a job runs on, but is not recovered and not brought home"
        yield warn("expiry", ACCOUNT, what, f"{LOGIN}; a controller takes up renewed ones by itself")
    else:
        yield ok("expiry", ACCOUNT, f"the credentials last until {at}")


def _clock(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    if facts.ahead_s is None:
        return
    off = abs(facts.ahead_s)
    what = f"this computer's clock is {off:.0f} s {'ahead of' if facts.ahead_s > 0 else 'behind'} AWS's"
    fix = "`timedatectl set-ntp true` (macOS: `sudo sntp -sS time.apple.com`)"
    if off > CLOCK_FAIL_S:
        yield fail("clock", ACCOUNT, f"{what}; AWS refuses more than 5 minutes", fix)
    elif off > CLOCK_WARN_S:
        yield warn("clock", ACCOUNT, what, fix)
    else:
        yield ok("clock", ACCOUNT, "this computer's clock agrees with AWS's")


# ---- the way to the machines


def _egress(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    egress = facts.egress
    if egress is None or wants.options.ssh_proxy in _NO_SSH_OF_OURS:
        return
    if egress.error is None:
        yield ok("ssh-egress", "this network", "SSH gets out of this network")
        return
    what = f"no SSH connection gets out: {egress.address} {egress.error}"
    fix = "allow TCP port 22 outwards, use another network, or set resources.aws.ssh_proxy"
    yield (warn if wants.options.ssh_proxy else fail)("ssh-egress", "this network", what, fix)


def _address(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    if not isinstance(facts.address, Unread) or wants.options.ssh_proxy in _NO_SSH_OF_OURS:
        return
    what = f"this computer's IPv4 address is not known, and SSH is opened to it alone: {facts.address.words}"
    fix = "use a network with IPv4 and a way to https://checkip.amazonaws.com, or set resources.aws.ssh_proxy"
    yield (warn if wants.options.ssh_proxy else fail)("address", "this network", what, fix)


# ---- what `setup` makes


def _role(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    role = facts.role
    if role is None:
        return
    if isinstance(role, Unread):
        yield not_read("role", ACCOUNT, role, needed=False)
        return
    own = wants.options.iam_instance_profile is not None
    where = f"profile {role.profile}"
    fix = "name another resources.aws.iam_instance_profile, or leave it out" if own else _setup(facts)
    if not role.profile_exists:
        yield fail("role", where, f"there is no instance profile {role.profile}", fix)
    elif role.role is None:
        yield fail("role", where, f"the instance profile {role.profile} holds no role", fix)
    else:
        yield from _role_rights(role, facts, fix)
        yield from _data_rights(role, facts, wants, fix)


def _role_rights(role: MachineRole, facts: AccountFacts, fix: str) -> Iterator[Finding]:
    where = f"role {role.role}"
    if isinstance(role.policies, Unread):
        yield not_read("role", where, role.policies, needed=False)
        return
    bucket = facts.bucket
    if not isinstance(bucket, Bucket) or bucket.name is None:
        yield ok("role", where, f"the machines' role {role.role} is there")
        return
    lacking = [a for a in ROLE_ACTIONS if not allows(role.policies, a, _resource(a, bucket.name))]
    if lacking:
        what = f"machines may not {', '.join(lacking)} in {bucket.name}/jobs/"
        yield fail("role", where, what, fix)
    else:
        yield ok("role", where, f"machines may use {bucket.name}/jobs/")


def _data_rights(role: MachineRole, facts: AccountFacts, wants: Wants, fix: str) -> Iterator[Finding]:
    """Whether machines may read what ``file_mounts`` name. Another bucket's own policy may let them all the same."""
    where, bucket = f"role {role.role}", facts.bucket
    if isinstance(role.policies, Unread) or not wants.mounts:
        return
    if isinstance(bucket, Bucket) and bucket.name is not None:
        places = [f"{bucket.name}/{folder}/" for folder in ("files", "mounts")]
        lacking = [p for p in places if not allows(role.policies, "s3:GetObject", f"arn:aws:s3:::{p}key")]
        if lacking:
            yield fail("role", where, f"machines may not read {' and '.join(lacking)}, where file_mounts lie", fix)
    for source in (mount.source for mount in wants.mounts if is_s3(mount.source)):
        name, prefix = parse_s3(source)
        keys = (f"{name}/{prefix}/key".replace("//", "/"), f"{name}/{prefix}")  # all below it, or the one object
        if not any(allows(role.policies, "s3:GetObject", f"arn:aws:s3:::{key}") for key in keys):
            what = f"machines may not read {source}, unless its bucket's own policy lets them"
            local = " --cloud local" if facts.cloud == "local" else ""
            yield warn("data", where, what, f"`cloudtrain setup{local} --read {source}`")


def _resource(action: str, bucket: str) -> str:
    return f"arn:aws:s3:::{bucket}" if action == "s3:ListBucket" else f"arn:aws:s3:::{bucket}/jobs/probe-000000/key"


def allows(policies: Iterable[str], action: str, resource: str) -> bool:
    """Whether policy documents (JSON text) together allow an action on a resource, conditions taken as met."""
    allowed = False
    for statement in (s for text in policies for s in _list(json.loads(text).get("Statement"))):
        if _names(statement, "Action", action, fold=True) and _names(statement, "Resource", resource, fold=False):
            if statement.get("Effect") == "Allow":
                allowed = True
            elif not statement.get("Condition"):
                return False  # a condition on a Deny (TLS only) is one that does not hold
    return allowed


def _names(statement: dict[str, Any], key: str, value: str, *, fold: bool) -> bool:
    positive, negative = _list(statement.get(key)), _list(statement.get(f"Not{key}"))
    if negative:
        return not any(_match(value, pattern, fold) for pattern in negative)
    return any(_match(value, pattern, fold) for pattern in positive)


def _match(value: str, pattern: str, fold: bool) -> bool:
    pattern = pattern.replace("[", "[[]")  # IAM knows * and ? alone
    return fnmatch.fnmatchcase(value.lower(), pattern.lower()) if fold else fnmatch.fnmatchcase(value, pattern)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _setup(facts: AccountFacts) -> str:
    return setup(facts.cloud, facts.home_region)


def _bucket(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    bucket = facts.bucket
    if bucket is None:
        return
    if isinstance(bucket, Unread):
        yield not_read("bucket", ACCOUNT, bucket, needed=True)
        return
    if bucket.name is None:
        named = wants.bucket is not None
        fix = "`cloudtrain config unset bucket`, or name one that exists" if named else _setup(facts)
        yield fail("bucket", facts.home_region, f"there is no bucket {bucket.tried[0]}", fix)
        return
    where = f"bucket {bucket.name}"
    if bucket.denied is not None:
        what = f"it exists, and you may not use it, or another account owns it ({bucket.denied.action})"
        yield fail("bucket", where, what, POLICY)
        return
    if bucket.region not in (None, bucket.expected_region):
        what = f"it lies in {bucket.region}, not in {bucket.expected_region}: every checkpoint would pay for transfer"
        yield warn("bucket", where, what, f"`cloudtrain setup --region {bucket.expected_region}` makes one there")
    if bucket.probe is not None:
        what = f"{bucket.probe.action} of control/doctor/ failed: {bucket.probe.words}"
        yield fail("bucket", where, what, POLICY)
    else:
        yield ok("bucket", where, "writing, reading and deleting works")
    yield from _public(bucket, where)


def _public(bucket: Bucket, where: str) -> Iterator[Finding]:
    if isinstance(bucket.public_access_blocked, Unread):
        yield not_read("bucket", where, bucket.public_access_blocked, needed=False)
    elif not bucket.public_access_blocked:
        block = "BlockPublicAcls=true,IgnorePublicAcls=true,BlockPublicPolicy=true,RestrictPublicBuckets=true"
        fix = (
            f"`aws s3api put-public-access-block --region {bucket.region or bucket.expected_region} --bucket "
            f"{bucket.name} --public-access-block-configuration {block}`"
        )
        yield warn("bucket", where, "public access is not blocked", fix)


def _spot_role(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
    pools, role = wants.spot_pools, facts.spot_role
    if not pools or role is None:
        return
    if isinstance(role, Unread):
        yield not_read("spot-role", ACCOUNT, role, needed=False)
        return
    refused = any(tried.code == region_checks.NO_SPOT_ROLE for region in facts.regions for tried in region.dry_runs)
    name = "AWSServiceRoleForEC2Spot"
    command = "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`"
    fix = f"{command}, or {_setup(facts)}"
    if role.exists:
        yield ok("spot-role", ACCOUNT, f"the role {name} is there")
    elif refused or role.can_be_made is False:
        what = f"the role {name} is missing, spot machines need it, and you may not make it"
        yield fail("spot-role", ACCOUNT, what, fix, pools)
    else:
        may = "" if role.can_be_made else " if you may make it, which is not known"
        yield warn("spot-role", ACCOUNT, f"the role {name} is missing; EC2 makes it at the first spot launch{may}", fix)


def _regions(run: region_checks.RegionCheck) -> Callable[[AccountFacts, Wants], Iterator[Finding]]:
    def each(facts: AccountFacts, wants: Wants) -> Iterator[Finding]:
        for region in facts.regions:
            if run is region_checks.enabled or region.opt_in != region_checks.NOT_ENABLED:
                yield from run(region, wants)

    return each


CHECKS: tuple[Check, ...] = (
    Check("credentials", "AWS knows who is asking", _credentials),
    Check("expiry", "the credentials last as long as the job may run", _expiry),
    Check("clock", "this computer's clock agrees with AWS's", _clock),
    Check("ssh-egress", "SSH gets out of this network", _egress),
    Check("address", "this computer has an IPv4 address that SSH can be opened to", _address),
    Check("bucket", "the bucket is there, ours, private, and can be written", _bucket),
    Check("role", "the machines' role is there and may use the bucket", _role),
    Check("spot-role", "EC2's own role for spot machines is there", _spot_role),
    *(Check(row.name, row.about, _regions(row.run)) for row in region_checks.CHECKS),
)
_WITHOUT_CREDENTIALS = ("credentials", "clock", "ssh-egress", "address")
