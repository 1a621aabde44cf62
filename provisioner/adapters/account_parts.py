"""The parts of an account that `setup` makes, each with how to look at it and how to make it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import ClientError

from cloudtrain.provisioner.account import policies, setup_plan
from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.account.setup_plan import (
    READ_POLICY,
    ROLE,
    SPOT_ROLE,
    SPOT_SERVICE,
    SSM_POLICY,
    Document,
    Wanted,
)
from cloudtrain.provisioner.adapters.account_setup import NOT_THERE, Part, Seen, State, eventually, find_bucket
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import AccessError

BUCKET = "bucket"
MACHINE_ROLE = "machine role"
PROFILE = "instance profile"
SPOT_PART = "EC2's spot role"

_NO_ENTITY = "NoSuchEntity"
_EXISTS = "EntityAlreadyExists"
_BY_HAND = "add it by hand as in `cloudtrain setup --print policies`: the role was not made by setup"
_NOT_OURS = Seen(State.THERE, "not made by setup: left as it is", ours=False)


@dataclass(frozen=True, slots=True)
class Account:
    """What is wanted, and the clients to ask with. ``hidden``: why a bucket of its name can't be looked at."""

    clients: Clients
    wanted: Wanted
    hidden: str | None = None

    @property
    def s3(self) -> Any:
        """S3 where the bucket is."""
        return self.clients.client("s3", self.wanted.region)

    @property
    def iam(self) -> Any:
        """IAM, which is one for all regions."""
        return self.clients.client("iam", self.wanted.region)

    @property
    def mine(self) -> dict[str, str]:
        """Which bucket, and that it must be this account's."""
        return {"Bucket": self.wanted.bucket, "ExpectedBucketOwner": self.wanted.account}


def account(clients: Clients, identity: Identity, wanted: Wanted) -> Account:
    """The account, with the name of the bucket that is there. Raises CloudUnreachable."""
    try:
        found = find_bucket(clients, identity, wanted.region)
    except AccessError as error:
        return Account(clients, wanted, str(error))
    return Account(clients, replace(wanted, bucket=found or wanted.bucket))


def parts(it: Account) -> tuple[Part, ...]:
    """All parts, in the order in which they are made. Makes no call."""
    return (*_bucket_parts(it), *_role_parts(it), _spot_part(it))


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """The tags in a description of IAM's, or in a reply of GetBucketTagging."""
    return {tag["Key"]: tag["Value"] for tag in (*described.get("Tags", ()), *described.get("TagSet", ()))}


def bucket_tags(it: Account) -> dict[str, str] | None:
    """The bucket's tags; None where there is no bucket. Raises botocore's errors."""
    try:
        it.s3.head_bucket(**it.mine)
        return tags_of(it.s3.get_bucket_tagging(**it.mine))
    except ClientError as error:
        if code_of(error) == "NoSuchTagSet":
            return {}
        if code_of(error) in NOT_THERE:
            return None
        raise


def _bucket_parts(it: Account) -> Iterator[Part]:
    yield Part(
        BUCKET, it.wanted.bucket, lambda: _see_bucket(it), lambda: _make_bucket(it), "s3:CreateBucket", "s3:ListBucket"
    )
    settings = [
        ("public access block", "BucketPublicAccessBlock", _see_public, _block_public),
        ("object ownership", "BucketOwnershipControls", _see_owner, _enforce_owner),
        ("encryption", "EncryptionConfiguration", _see_encryption, _encrypt),
        ("bucket policy", "BucketPolicy", _see_policy, _put_policy),
        ("upload clean-up", "LifecycleConfiguration", _see_lifecycle, _put_lifecycle),
    ]
    for what, right, see, make in settings:
        yield Part(
            what,
            "",
            lambda see=see: see(it),  # type: ignore[misc]
            lambda make=make: eventually(lambda: make(it), "NoSuchBucket", "OperationAborted"),  # type: ignore[misc]
            f"s3:Put{right}",
            f"s3:Get{right}",
            BUCKET,
        )


def _see_bucket(it: Account) -> Seen:
    if it.hidden is not None:
        return Seen(State.UNSEEN, it.hidden)
    tags = bucket_tags(it)
    if tags is None:
        return Seen(State.MISSING)
    if setup_plan.is_ours(tags):
        return Seen(State.THERE)
    # A run that ended between making and marking leaves none; somebody's own bucket of this name has some.
    return Seen(State.DIFFERS, "there, without tags: it is set up as ours") if not tags else _NOT_OURS


def _make_bucket(it: Account) -> None:
    """Made, or made already by us; then marked."""
    try:
        it.s3.head_bucket(**it.mine)
    except ClientError as error:
        if code_of(error) not in NOT_THERE:
            raise
        eventually(lambda: _create_bucket(it), "OperationAborted")
    marks = [{"Key": key, "Value": value} for key, value in it.wanted.tags.items()]
    eventually(lambda: it.s3.put_bucket_tagging(**it.mine, Tagging={"TagSet": marks}), "NoSuchBucket")


def _create_bucket(it: Account) -> None:
    wanted = it.wanted
    request: dict[str, Any] = {"Bucket": wanted.bucket}
    if wanted.region != "us-east-1":  # the one region that S3 refuses to be named
        request["CreateBucketConfiguration"] = {"LocationConstraint": wanted.region}
    if wanted.account_regional:
        request["BucketNamespace"] = "account-regional"
    try:
        it.s3.create_bucket(**request)
    except ClientError as error:
        if code_of(error) == "BucketAlreadyExists":
            text = f"the name {wanted.bucket} is taken by another account: use another --region"
            raise AccessError(text) from error
        if code_of(error) != "BucketAlreadyOwnedByYou":
            raise


def _see_public(it: Account) -> Seen:
    found = _setting(lambda: it.s3.get_public_access_block(**it.mine)["PublicAccessBlockConfiguration"])
    return _compared(found, found == setup_plan.PUBLIC_ACCESS)


def _block_public(it: Account) -> None:
    it.s3.put_public_access_block(**it.mine, PublicAccessBlockConfiguration=setup_plan.PUBLIC_ACCESS)


def _see_owner(it: Account) -> Seen:
    found = _setting(lambda: it.s3.get_bucket_ownership_controls(**it.mine)["OwnershipControls"]["Rules"])
    return _compared(found, found == [{"ObjectOwnership": "BucketOwnerEnforced"}])


def _enforce_owner(it: Account) -> None:
    rules = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    it.s3.put_bucket_ownership_controls(**it.mine, OwnershipControls=rules)


def _see_encryption(it: Account) -> Seen:
    """Any default will do: a KMS key that somebody chose is not replaced."""
    found = _setting(lambda: it.s3.get_bucket_encryption(**it.mine)["ServerSideEncryptionConfiguration"]["Rules"])
    rules = (rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in found or ())
    key = next((k for rule in rules if (k := rule.get("KMSMasterKeyID")) and "alias/aws/s3" not in k), None)
    # S3 encrypts with a customer's key only for whom IAM or the key's policy lets use it (S3 guide, SSE-KMS, 2026-11).
    note = f"under {key}: the machines' role needs kms:GenerateDataKey and kms:Decrypt on it" if key else ""
    return replace(_compared(found, bool(found)), note=note)


def _encrypt(it: Account) -> None:
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    it.s3.put_bucket_encryption(**it.mine, ServerSideEncryptionConfiguration=rules)


def _policy(it: Account) -> Document | None:
    found = _setting(lambda: it.s3.get_bucket_policy(**it.mine)["Policy"])
    return dict(json.loads(found)) if found is not None else None


def _see_policy(it: Account) -> Seen:
    now = _policy(it)
    return _compared(now, setup_plan.joined_policy(now, policies.bucket_policy(it.wanted)) is None)


def _put_policy(it: Account) -> None:
    wanted = setup_plan.joined_policy(_policy(it), policies.bucket_policy(it.wanted))
    if wanted is not None:
        it.s3.put_bucket_policy(**it.mine, Policy=json.dumps(wanted))


def _rules(it: Account) -> list[Document] | None:
    found: list[Document] | None = _setting(lambda: it.s3.get_bucket_lifecycle_configuration(**it.mine)["Rules"])
    return found


def _see_lifecycle(it: Account) -> Seen:
    now = _rules(it)
    return _compared(now, setup_plan.joined_rules(now or ()) is None)


def _put_lifecycle(it: Account) -> None:
    wanted = setup_plan.joined_rules(_rules(it) or ())
    if wanted is not None:
        it.s3.put_bucket_lifecycle_configuration(**it.mine, LifecycleConfiguration={"Rules": wanted})


def _setting(read: Callable[[], Any]) -> Any:
    """A setting of the bucket; None where it has none."""
    try:
        return read()
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404 and code_of(error) not in NOT_THERE:
            return None
        raise


def _compared(found: Any, same: bool) -> Seen:
    if same:
        return Seen(State.THERE)
    return Seen(State.MISSING) if found is None else Seen(State.DIFFERS)


# ---- IAM


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
    return Seen(State.THERE) if setup_plan.is_ours(tags_of(found)) else _NOT_OURS


def _marks(it: Account) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in it.wanted.tags.items()]
