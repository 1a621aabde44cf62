"""What `setup` makes in an account, as data: names, marks, the bucket's settings, how they join what is there. Pure.

Sources, read 2026-11: the S3 user guide ("Namespaces for general purpose buckets", "Managing the lifecycle of
objects") and the S3 and IAM API references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.values import is_region
from cloudtrain.provisioner.names import INSTANCE_PROFILE, TAG_OWNER

Document = dict[str, Any]

TAG_MADE_BY = "cloudtrain:made-by"
"""On all that `setup` makes. What lacks it, or names another maker, is never changed and never deleted."""
MADE_BY = "setup"

ROLE = INSTANCE_PROFILE  # the role and its profile have one name, as in the console
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
SPOT_SERVICE = "spot.amazonaws.com"
READ_POLICY = "cloudtrain-read"
SSM_POLICY = "cloudtrain-ssm"

LIFECYCLE_ID = "cloudtrain-incomplete-uploads"
INCOMPLETE_DAYS = 7  # an upload that no machine goes on with; S3 bills its parts until then
PUBLIC_ACCESS = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}

# AWS's announcement (2026-03-16: 37 regions, China too) and the S3 user guide: everywhere but Bahrain and the UAE.
_NO_ACCOUNT_NAMESPACE = frozenset({"me-south-1", "me-central-1"})
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("eusc-", "aws-eusc"))
_NOT_IN_A_TAG = re.compile(r"[^\w .:/=+@-]", re.ASCII)  # S3's and IAM's alphabet for values; EC2 takes anything
_ACCOUNT = re.compile(r"\d{12}")
_KEY = re.compile(r"arn:(?P<partition>aws[a-z-]*):kms:(?P<region>[a-z0-9-]+):\d{12}:key/[A-Za-z0-9-]+")
_PLACE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>.*))?")


@dataclass(frozen=True, slots=True)
class Place:
    """Data of the user's that machines may read: a bucket, or what lies under a prefix of it ("" is all of it)."""

    bucket: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".removesuffix("/")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an account is to have. ``bucket``: the one that is there, or the first of ``bucket_names``.

    ``reads``: data that machines may read as well. ``ssm``: they may also be reached through Session Manager.
    ``kms_key``: the ARN of the key that encrypts the bucket, and that volumes may be encrypted with.
    """

    account: str
    region: str
    owner: str
    bucket: str
    reads: tuple[Place, ...] = ()
    ssm: bool = False
    kms_key: str | None = None

    @property
    def partition(self) -> str:
        """aws, aws-cn, aws-us-gov, aws-eusc."""
        return partition_of(self.region)

    def arn(self, service: str, resource: str, *, region: str = "") -> str:
        """The ARN of something of this account; S3 names neither account nor region in it."""
        account = "" if service == "s3" else self.account
        return f"arn:{self.partition}:{service}:{region}:{account}:{resource}"

    @property
    def tags(self) -> dict[str, str]:
        """The marks of what `setup` makes."""
        return {TAG_MADE_BY: MADE_BY, TAG_OWNER: _NOT_IN_A_TAG.sub("_", self.owner)}

    @property
    def role_policy(self) -> str:
        """The name of the role's policy for this region's bucket: another region's stands beside it."""
        return f"cloudtrain-{self.region}"

    @property
    def account_regional(self) -> bool:
        """Whether the bucket's name is one that nobody else can take."""
        return self.bucket.endswith("-an")


def wanted(
    account: str, region: str, owner: str, *, reads: Iterable[str] = (), ssm: bool = False, kms_key: str | None = None
) -> Wanted:
    """What `setup` would make. Raises UsageError where an account, a region, a place or a key is none."""
    if not _ACCOUNT.fullmatch(account):
        raise UsageError(
            f"--account {account}: an account has twelve digits; `aws sts get-caller-identity` shows yours"
        )
    if not is_region(region):
        raise UsageError(f"--region {region}: a region looks like us-east-1")
    places = tuple(dict.fromkeys(place(text) for text in reads))
    if kms_key is not None:
        _require_key(kms_key, region)
    return Wanted(account, region, owner, bucket_names(account, region)[0], places, ssm, kms_key)


def _require_key(arn: str, region: str) -> None:
    """Policies name keys by their ARN alone: an alias may come to mean another key (KMS developer guide)."""
    match = _KEY.fullmatch(arn)
    if match is None:
        raise UsageError(
            f"--kms-key {arn}: write the key's ARN, arn:aws:kms:REGION:ACCOUNT:key/ID; for an alias, "
            f"`aws kms describe-key --region {region} --key-id alias/NAME` shows it"
        )
    if (match["partition"], match["region"]) != (partition_of(region), region):
        raise UsageError(f"--kms-key {arn}: a key of {match['region']} encrypts no bucket in {region}: name one there")


def bucket_names(account: str, region: str) -> tuple[str, ...]:
    """The names that the bucket may have, the one to make first: nobody else can take an account-regional name."""
    name = f"cloudtrain-{account}-{region}"
    return (name,) if region in _NO_ACCOUNT_NAMESPACE else (f"{name}-an", name)


def partition_of(region: str) -> str:
    """The partition that a region belongs to."""
    return next((partition for start, partition in _PARTITIONS if region.startswith(start)), "aws")


def place(text: str) -> Place:
    """What "s3://bucket/prefix" names. Raises UsageError."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise UsageError(f"--read {text}: write it like s3://bucket or s3://bucket/prefix")
    prefix = (match["prefix"] or "").removesuffix("*")
    if any(sign in prefix for sign in "*?$"):
        raise UsageError(f"--read {text}: a prefix holds no *, ? or $, which mean something else in a policy")
    return Place(match["bucket"], prefix)


def region_of(policy_name: str) -> str | None:
    """The region whose bucket a policy of the machines' role opens; None for another policy."""
    region = policy_name.removeprefix("cloudtrain-")
    return region if region != policy_name and is_region(region) else None


def is_ours(tags: Mapping[str, str]) -> bool:
    """Whether something carries the mark."""
    return tags.get(TAG_MADE_BY) == MADE_BY


def encryption_rule(kms_key: str | None) -> Document:
    """The bucket's default: a KMS key, asked for once in a while by S3 itself and not for each object; or S3's own."""
    if kms_key is None:
        return {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": kms_key}
    return {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}


def lifecycle_rule() -> Document:
    """The rule that ends uploads which nobody will finish."""
    return {
        "ID": LIFECYCLE_ID,
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": INCOMPLETE_DAYS},
    }


def joined_rules(rules: Iterable[Mapping[str, Any]]) -> list[Document] | None:
    """A bucket's lifecycle rules with ours among them, others kept; None where nothing is to be changed.

    S3 replaces the whole configuration, so the others must be sent along.
    """
    now = [dict(rule) for rule in rules]
    if any(_ends_uploads(rule) for rule in now):
        return None
    return [*(rule for rule in now if rule.get("ID") != LIFECYCLE_ID), lifecycle_rule()]


def _ends_uploads(rule: Mapping[str, Any]) -> bool:
    """Whether a rule, ours or not, ends incomplete uploads everywhere in the bucket."""
    everywhere = not rule.get("Prefix") and rule.get("Filter") in (None, {}, {"Prefix": ""})
    return rule.get("Status") == "Enabled" and everywhere and "AbortIncompleteMultipartUpload" in rule


def joined_policy(now: Document | None, ours: Document) -> Document | None:
    """A policy with our statements in their present form and all others kept; None where nothing is to be changed.

    A statement is ours when it has the Sid of one of ours.
    """
    theirs = _statements(now)
    mine = {statement["Sid"]: statement for statement in _statements(ours)}
    if _alike({s["Sid"]: s for s in theirs if s.get("Sid") in mine}, mine):
        return None
    kept = [s for s in theirs if s.get("Sid") not in mine]
    return {**(now or {}), "Version": ours["Version"], "Statement": [*kept, *mine.values()]}


def covers(now: Document | None, ours: Document) -> bool:
    """Whether a policy says all that ours says, whatever else it says."""
    there = _statements(now)
    return all(any(_alike(statement, s) for s in there) for statement in _statements(ours))


def added_reads(now: Document | None, ours: Document) -> Document | None:
    """The data policy with what `--read` added to it; None where it is all there. Nothing is ever taken away."""
    there = _statements(now)
    new = [statement for statement in _statements(ours) if not covers(now, {"Statement": [statement]})]
    return {"Version": ours["Version"], "Statement": [*there, *new]} if new else None


def _statements(policy: Document | None) -> list[Document]:
    found = (policy or {}).get("Statement", [])
    return [found] if isinstance(found, dict) else list(found)


def _alike(one: Any, other: Any) -> bool:
    """Whether two pieces of policies mean the same: AWS may hand back a list in another order, or one value bare."""
    return bool(_normal(one) == _normal(other))


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = sorted((_normal(item) for item in value), key=repr)
        return items[0] if len(items) == 1 else items
    return value if isinstance(value, str) else str(value).lower()
