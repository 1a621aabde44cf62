"""The bucket that `setup` makes, and its settings: how each is looked at and made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from cloudtrain.provisioner.account import policies, setup_plan
from cloudtrain.provisioner.account.setup_plan import Document
from cloudtrain.provisioner.adapters.account_setup import Account, Part, Seen, State, eventually
from cloudtrain.provisioner.adapters.aws_codes import NO_BUCKET
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.errors import AccessError

BUCKET = "bucket"
NOT_OURS = Seen(State.THERE, "not made by setup: left as it is", ours=False)


def key_there(it: Account) -> str | None:
    """The ARN of the customer's key that the bucket has; None where it has none, or may not be looked at."""
    try:
        key = _default_key(it)
    except ClientError:
        return None  # the part that looks at the bucket's encryption says so
    return key if key is not None and ":key/" in key else None


def bucket_tags(it: Account) -> dict[str, str] | None:
    """The bucket's tags; None where there is no bucket. Raises botocore's errors."""
    try:
        it.s3.head_bucket(**it.mine)
        return tags_of(it.s3.get_bucket_tagging(**it.mine))
    except ClientError as error:
        if code_of(error) == "NoSuchTagSet":
            return {}
        if code_of(error) in NO_BUCKET:
            return None
        raise


def bucket_parts(it: Account) -> Iterator[Part]:
    """The bucket and its settings, in the order in which they are made. Makes no call."""
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
    return Seen(State.DIFFERS, "there, without tags: it is set up as ours") if not tags else NOT_OURS


def _make_bucket(it: Account) -> None:
    """Made, or made already by us; then marked."""
    try:
        it.s3.head_bucket(**it.mine)
    except ClientError as error:
        if code_of(error) not in NO_BUCKET:
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


def _encryption(it: Account) -> Any:
    return _setting(lambda: it.s3.get_bucket_encryption(**it.mine)["ServerSideEncryptionConfiguration"]["Rules"])


def _default_key(it: Account) -> str | None:
    """The customer's key that the bucket encrypts with, as it is named there."""
    rules = (rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in _encryption(it) or ())
    return next((k for rule in rules if (k := rule.get("KMSMasterKeyID")) and "alias/aws/s3" not in k), None)


def _see_encryption(it: Account) -> Seen:
    """Any default will do where no key was named: a KMS key that somebody chose is not replaced."""
    found, key, wanted = _encryption(it), _default_key(it), it.wanted.kms_key
    if wanted is not None:
        stays = "objects that are there stay as they are encrypted"
        if key != wanted and found:
            return Seen(State.DIFFERS, f"under {key or 'keys of S3'} now: {stays}" if it.key_asked else "")
        return _compared(found, key == wanted)
    # S3 encrypts with a customer's key only for whom IAM or the key's policy lets use it (S3 guide, SSE-KMS, 2026-11).
    note = f"under {key}: name its ARN with --kms-key, or the machines' role may not use it" if key else ""
    return replace(_compared(found, bool(found)), note=note)


def _encrypt(it: Account) -> None:
    rules = {"Rules": [setup_plan.encryption_rule(it.wanted.kms_key)]}
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
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404 and code_of(error) not in NO_BUCKET:
            return None
        raise


def _compared(found: Any, same: bool) -> Seen:
    if same:
        return Seen(State.THERE)
    return Seen(State.MISSING) if found is None else Seen(State.DIFFERS)
