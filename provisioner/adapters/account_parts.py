"""The parts of an account that `setup` makes, each with how to look at it and how to make it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from cloudtrain.provisioner.account import policies, setup_plan
from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.account.region_checks import GRANT_OPERATIONS, SPOT_ROLE_ARN
from cloudtrain.provisioner.account.setup_plan import (
    READ_POLICY,
    ROLE,
    SPOT_ROLE,
    SPOT_SERVICE,
    SSM_POLICY,
    Document,
    Wanted,
)
from cloudtrain.provisioner.adapters.account_bucket import NOT_OURS, bucket_parts, key_there
from cloudtrain.provisioner.adapters.account_setup import Account, Part, Seen, State, eventually, find_bucket
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.region_facts import role_may_use
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.errors import AccessError

MACHINE_ROLE = "machine role"
PROFILE = "instance profile"
SPOT_PART = "EC2's spot role"

_GRANT = "cloudtrain-spot"  # the same grant asked for twice under one name is made once (KMS API, CreateGrant)
_NO_ENTITY = "NoSuchEntity"
_EXISTS = "EntityAlreadyExists"
_BY_HAND = "add it by hand as in `cloudtrain setup --print policies`: the role was not made by setup"


def account(clients: Clients, identity: Identity, wanted: Wanted) -> Account:
    """The account, with the name and the key of the bucket that is there. Raises CloudUnreachable."""
    asked = wanted.kms_key is not None
    try:
        found = find_bucket(clients, identity, wanted.region)
    except AccessError as error:
        return Account(clients, wanted, str(error), asked)
    it = Account(clients, replace(wanted, bucket=found or wanted.bucket), key_asked=asked)
    return it if asked or found is None else replace(it, wanted=replace(it.wanted, kms_key=key_there(it)))


def parts(it: Account) -> tuple[Part, ...]:
    """All parts, in the order in which they are made. Makes no call."""
    return (*bucket_parts(it), *_role_parts(it), _spot_part(it), *_key_parts(it))


def _role_parts(it: Account) -> Iterator[Part]:
    wanted = it.wanted
    yield Part(MACHINE_ROLE, ROLE, lambda: _see_role(it), lambda: _make_role(it), "iam:CreateRole", "iam:GetRole")
    yield _inline(it, "role's bucket rights", wanted.role_policy, policies.machine_policy(wanted))
    if wanted.reads:
        yield _inline(it, "role's data rights", READ_POLICY, policies.read_policy(wanted), adds=True)
    if wanted.ssm:
        yield _inline(it, "role's SSM rights", SSM_POLICY, policies.ssm_policy())
    rights = ("iam:CreateInstanceProfile", "iam:GetInstanceProfile")
    yield Part(PROFILE, ROLE, lambda: _see_profile(it), lambda: _make_profile(it), *rights)
    yield Part(
        "role in the profile",
        "",
        lambda: _see_profile_role(it),
        lambda: _put_role_in_profile(it),
        "iam:AddRoleToInstanceProfile and iam:PassRole",
        "iam:GetInstanceProfile",
        PROFILE,
        MACHINE_ROLE,
    )


def _see_role(it: Account) -> Seen:
    found = entity(lambda: it.iam.get_role(RoleName=ROLE)["Role"])
    return _marked(found)


def _make_role(it: Account) -> None:
    _unless_there(
        lambda: it.iam.create_role(
            RoleName=ROLE,
            AssumeRolePolicyDocument=json.dumps(policies.machine_trust(it.wanted)),
            Description="Machines of cloudtrain",
            Tags=_marks(it),
        )
    )


def _inline(it: Account, what: str, name: str, ours: Document, *, adds: bool = False) -> Part:
    def now() -> Document | None:
        found: Document | None = entity(
            lambda: it.iam.get_role_policy(RoleName=ROLE, PolicyName=name)["PolicyDocument"]
        )
        return found

    def see() -> Seen:
        found = now()
        if found is not None and setup_plan.covers(found, ours):
            return Seen(State.THERE)
        return Seen(State.MISSING, _BY_HAND) if found is None else Seen(State.DIFFERS, _BY_HAND)

    def make() -> None:
        document = setup_plan.added_reads(now(), ours) if adds else ours
        if document is not None:
            text = json.dumps(document)
            eventually(lambda: it.iam.put_role_policy(RoleName=ROLE, PolicyName=name, PolicyDocument=text), _NO_ENTITY)

    return Part(what, name, see, make, "iam:PutRolePolicy", "iam:GetRolePolicy", MACHINE_ROLE)


def _see_profile(it: Account) -> Seen:
    return _marked(_profile(it))


def _profile(it: Account) -> Any:
    return entity(lambda: it.iam.get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"])


def _make_profile(it: Account) -> None:
    _unless_there(lambda: it.iam.create_instance_profile(InstanceProfileName=ROLE, Tags=_marks(it)))


def _see_profile_role(it: Account) -> Seen:
    names = [role["RoleName"] for role in (_profile(it) or {}).get("Roles", ())]
    if ROLE in names:
        return Seen(State.THERE)
    return Seen(State.DIFFERS, f"it holds the role {names[0]}") if names else Seen(State.MISSING)


def _put_role_in_profile(it: Account) -> None:
    def put() -> None:
        try:
            it.iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
        except ClientError as error:
            # A profile holds one role: somebody else has put ours in, or another.
            if code_of(error) not in ("LimitExceeded", _EXISTS) or _see_profile_role(it).state is not State.THERE:
                raise

    eventually(put, _NO_ENTITY)


def _spot_part(it: Account) -> Part:
    return Part(
        SPOT_PART,
        SPOT_ROLE,
        lambda: Seen(State.MISSING if entity(lambda: it.iam.get_role(RoleName=SPOT_ROLE)) is None else State.THERE),
        lambda: _make_spot_role(it),
        "iam:CreateServiceLinkedRole",
        "iam:GetRole",
    )


def _make_spot_role(it: Account) -> None:
    try:
        it.iam.create_service_linked_role(AWSServiceName=SPOT_SERVICE)
    except ClientError as error:
        taken = code_of(error) == "InvalidInput" and "has been taken" in str(error)  # how IAM says that it exists
        if not taken and code_of(error) != _EXISTS:
            raise


def _key_parts(it: Account) -> Iterator[Part]:
    """What lets EC2 start spot machines whose volumes are under the key: in their case nobody's rights but a grant."""
    key = it.wanted.kms_key
    if key is None or not it.key_asked:
        return
    kms = it.clients.client("kms", it.wanted.region)
    spot = SPOT_ROLE_ARN.format(account=it.wanted.account).replace(":aws:", f":{it.wanted.partition}:", 1)
    request = {"KeyId": key, "GranteePrincipal": spot, "Operations": GRANT_OPERATIONS.split(), "Name": _GRANT}
    yield Part(
        "key for spot machines",
        key.rpartition("/")[2],
        lambda: Seen(State.THERE if role_may_use(kms, key, spot) else State.MISSING),
        # The spot role may be a moment old, and KMS not know it yet.
        lambda: eventually(lambda: kms.create_grant(**request), "InvalidArnException"),
        "kms:CreateGrant",
        "kms:ListGrants and kms:GetKeyPolicy",
        needs=SPOT_PART,
    )


def entity(read: Callable[[], Any]) -> Any:
    """What ``read`` reads of IAM's; None where there is no such thing."""
    try:
        return read()
    except ClientError as error:
        if code_of(error) == _NO_ENTITY:
            return None
        raise


def _unless_there(create: Callable[[], Any]) -> None:
    try:
        create()
    except ClientError as error:
        if code_of(error) != _EXISTS:  # by another setup, a moment ago
            raise


def _marked(found: Any) -> Seen:
    if found is None:
        return Seen(State.MISSING)
    return Seen(State.THERE) if setup_plan.is_ours(tags_of(found)) else NOT_OURS


def _marks(it: Account) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in it.wanted.tags.items()]
