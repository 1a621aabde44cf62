"""Reads what the checks of an account look at: few calls, all at once, nothing changed but a probe object.

``region_facts.py`` reads what belongs to one region. A call that is refused or has no answer is a fact as well.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cloudtrain.provisioner.account.facts import (
    AccountFacts,
    Bucket,
    Egress,
    Identity,
    MachineRole,
    SpotRole,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.account.region_checks import NOT_ENABLED
from cloudtrain.provisioner.account.setup_plan import bucket_names
from cloudtrain.provisioner.adapters.aws_codes import NO_BUCKET
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.caller_address import caller_address
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.identity import identify
from cloudtrain.provisioner.adapters.reading import Readers, unread
from cloudtrain.provisioner.adapters.region_facts import RegionReader, opt_in

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
PROBE_PREFIX = "control/doctor/"  # below the controllers' own prefix, where machines have no right
# An SSH server of AWS's own in its largest region (CodeCommit user guide, "SSH connections"; read 2026-11): that a
# connection opens shows that the network lets SSH out. That it does not is said only where a second one is silent too.
AWS_SSH = ("git-codecommit.us-east-1.amazonaws.com", 22)
AWS_SSH_TOO = ("git-codecommit.eu-west-1.amazonaws.com", 22)
_EGRESS_S = 3.0
_ANSWERED = "after-call.sts"  # botocore's event, with the answer's headers
_MISSING = ("NoSuchEntity",)


def read(
    clients: Clients, wants: Wants, *, home_region: str, egress: tuple[str, int] | None = AWS_SSH, limit_s: float = 20.0
) -> AccountFacts:
    """What the account is like for these pools. Blocks at most about ``limit_s``, and as long again without an answer
    to the first question, who we are. Raises nothing that the cloud says.

    ``egress``: the SSH server to try; None leaves it out. Starts no machine: RunInstances is asked with DryRun.
    """
    readers = Readers(limit_s)
    way_out = readers.start("ssh", lambda: _egress(egress))
    address = readers.start("https://checkip.amazonaws.com", caller_address(clients.cloud))
    clock = _AwsClock(clients, home_region)
    identity = readers.start("sts:GetCallerIdentity", lambda: identify(clients, home_region)).get()
    facts = AccountFacts(
        cloud=clients.cloud,
        read_at=time.time(),
        caller=identity,
        home_region=home_region,
    )
    found: dict[str, Any] = {}
    if isinstance(identity, Identity):
        found = _with_credentials(clients, wants, identity, home_region, readers)
    told = way_out.get()
    found["egress"] = None if isinstance(told, Unread) else told
    found["address"] = address.get()
    found["ahead_s"] = clock.ahead_s()
    return replace(facts, **found)


def _with_credentials(
    clients: Clients, wants: Wants, identity: Identity, home_region: str, readers: Readers
) -> dict[str, Any]:
    enabled = readers.start("ec2:DescribeRegions", lambda: opt_in(clients, home_region, wants.regions))
    role = readers.start("iam:GetInstanceProfile", lambda: machine_role(clients, home_region, wants.profile))
    spot = readers.start("iam:GetRole", lambda: spot_role(clients, home_region, identity) if wants.spot_pools else None)
    kept = readers.start("s3:ListBucket", lambda: bucket(clients, identity, home_region, wants.bucket))
    regions = [RegionReader(clients, region, wants, identity, readers) for region in wants.regions]
    known = enabled.get()
    return {
        "role": role.get(),
        "spot_role": spot.get(),
        "bucket": kept.get(),
        "regions": tuple(
            reader.facts(known if isinstance(known, Unread) else known.get(reader.region, NOT_ENABLED))
            for reader in regions
        ),
    }


class _AwsClock:
    """How far this computer's clock is ahead of AWS's, by the Date header of STS's answers, refusals included."""

    def __init__(self, clients: Clients, region: str) -> None:
        self._ahead: float | None = None
        self._events: Any = None
        with contextlib.suppress(BotoCoreError):  # a broken profile: asking who we are says so
            self._events = clients.client("sts", region).meta.events
            self._events.register(_ANSWERED, self._see)

    def _see(self, http_response: Any, **_: Any) -> None:
        with contextlib.suppress(TypeError, ValueError):  # no date, or not one
            date = email.utils.parsedate_to_datetime(http_response.headers.get("Date", ""))
            self._ahead = time.time() - date.timestamp()

    def ahead_s(self) -> float | None:
        """Seconds, to about one; None where no answer came. Stops looking."""
        if self._events is not None:
            self._events.unregister(_ANSWERED, self._see)
        return self._ahead


def _egress(address: tuple[str, int] | None) -> Egress | None:
    if address is None:
        return None
    found = _tried(address)
    if found.error is not None and address == AWS_SSH:
        other = _tried(AWS_SSH_TOO)
        return found if other.error is not None else other
    return found


def _tried(address: tuple[str, int]) -> Egress:
    name = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=_EGRESS_S):
            return Egress(name)
    except TimeoutError:
        return Egress(name, f"did not answer within {_EGRESS_S:g} s")
    except OSError as error:
        return Egress(name, f"could not be reached ({error.strerror or error})")


# ---- the roles


def machine_role(clients: Clients, region: str, profile: str) -> MachineRole:
    """The machines' role by its instance profile, with every policy that it has. Raises botocore's errors."""
    iam = clients.client("iam", region)
    try:
        roles = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
    except ClientError as error:
        if code_of(error) not in _MISSING:
            raise
        return MachineRole(profile, profile_exists=False)
    if not roles:
        return MachineRole(profile, profile_exists=True)
    name = roles[0]["RoleName"]
    try:
        policies: tuple[str, ...] | Unread = tuple(json.dumps(document) for document in _policies(iam, name))
    except ClientError as error:
        policies = unread(error, "iam:GetRolePolicy")
    return MachineRole(profile, profile_exists=True, role=name, policies=policies)


def _policies(iam: Any, role: str) -> Iterator[Any]:
    for page in iam.get_paginator("list_role_policies").paginate(RoleName=role):
        for name in page["PolicyNames"]:
            yield iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    for page in iam.get_paginator("list_attached_role_policies").paginate(RoleName=role):
        for attached in page["AttachedPolicies"]:
            arn = attached["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            yield iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]


def spot_role(clients: Clients, region: str, identity: Identity) -> SpotRole:
    """Whether EC2's role for spot machines exists, and if not, whether this caller may make it."""
    iam = clients.client("iam", region)
    try:
        iam.get_role(RoleName=SPOT_ROLE)
    except ClientError as error:
        if code_of(error) not in _MISSING:
            raise
        return SpotRole(exists=False, can_be_made=_may_make_it(iam, identity))
    return SpotRole(exists=True)


def _may_make_it(iam: Any, identity: Identity) -> bool | None:
    assumed = re.fullmatch(r"arn:[^:]+:sts::\d+:assumed-role/([^/]+)/.*", identity.arn)
    try:
        # A role's ARN has its path, which the session's lacks: those of the Identity Center lie below /aws-reserved/.
        who = iam.get_role(RoleName=assumed[1])["Role"]["Arn"] if assumed else identity.arn
        answer = iam.simulate_principal_policy(
            PolicySourceArn=who,
            ActionNames=["iam:CreateServiceLinkedRole"],
            ResourceArns=[
                f"arn:{identity.partition}:iam::{identity.account}:role/aws-service-role/spot.amazonaws.com/{SPOT_ROLE}"
            ],
            ContextEntries=[
                {
                    "ContextKeyName": "iam:AWSServiceName",
                    "ContextKeyValues": ["spot.amazonaws.com"],
                    "ContextKeyType": "string",
                }
            ],
        )
    except ClientError:
        return None
    return bool(answer["EvaluationResults"][0]["EvalDecision"] == "allowed")


# ---- the bucket


def bucket(clients: Clients, identity: Identity, region: str, named: str | None = None) -> Bucket:
    """Our bucket of a region, or the one that is named, tried with a small object.

    Raises botocore's errors where S3 does not answer.
    """
    s3 = clients.client("s3", region)
    names = (named,) if named is not None else bucket_names(identity.account, region)
    refused: tuple[str, Unread] | None = None
    for name in names:
        try:
            shown = s3.head_bucket(Bucket=name, ExpectedBucketOwner=identity.account)
        except ClientError as error:
            if code_of(error) in NO_BUCKET:
                continue
            why = unread(error, "s3:ListBucket")
            if why.why is not Why.DENIED:
                raise
            if name == names[0]:  # the second name is one that anybody can take
                refused = (name, why)
        else:
            return Bucket(
                name,
                names,
                region,
                region=shown.get("BucketRegion"),
                public_access_blocked=_public_access_blocked(s3, name),
                probe=_probe(s3, name),
            )
    if refused is not None:
        return Bucket(refused[0], names, region, denied=refused[1])
    return Bucket(None, names, region)


def _public_access_blocked(s3: Any, name: str) -> bool | Unread:
    try:
        found = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    except ClientError as error:
        if code_of(error) == "NoSuchPublicAccessBlockConfiguration":
            return False
        return unread(error, "s3:GetBucketPublicAccessBlock")
    return all(found.values())


def _probe(s3: Any, name: str) -> Unread | None:
    key = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    steps: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("s3:PutObject", lambda: s3.put_object(Bucket=name, Key=key, Body=b"cloudtrain doctor")),
        ("s3:GetObject", lambda: s3.get_object(Bucket=name, Key=key)["Body"].read()),
        ("s3:DeleteObject", lambda: s3.delete_object(Bucket=name, Key=key)),
    )
    for action, step in steps:
        try:
            step()
        except ClientError as error:
            return unread(error, action)
    return None
