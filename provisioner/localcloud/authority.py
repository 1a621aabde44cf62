"""What a call may do: a machine what its role's policies allow, everybody what the bucket's policy does not deny."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from cloudtrain.provisioner.localcloud.account_semantics import role_policies
from cloudtrain.provisioner.localcloud.calls import Environ
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.faults import Call
from cloudtrain.provisioner.localcloud.plants import CALLER, Refused, denied
from cloudtrain.provisioner.localcloud.resources import Resources
from cloudtrain.provisioner.localcloud.rights import Asked, Document, verdict
from cloudtrain.provisioner.localcloud.state import LocalState

_S3_RIGHTS = {
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListParts": "ListMultipartUploadParts",
    "ListObjectsV2": "ListBucket",
    "HeadBucket": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListBuckets": "ListAllMyBuckets",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}
"""The right that an S3 operation needs, where it has another name (Service Authorization Reference, 2026-11)."""


class Authority:
    """Judges calls. Thread-safe."""

    def __init__(self, state: LocalState, resources: Resources) -> None:
        self.state = state
        self._resources = resources

    def refused(self, call: Call, environ: Environ) -> Refused | None:
        """Why the caller may not make a call; None where it may."""
        machine = call.fields["machine"]
        if not machine and call.service != "s3":
            return None
        if call.service == "s3" and environ.get("HTTP_X_AMZ_EXPECTED_BUCKET_OWNER", ACCOUNT) != ACCOUNT:
            return Refused("AccessDenied", 403, "Access Denied")
        if (call.service, call.action) == ("sts", "GetCallerIdentity"):
            return None  # needs no right (STS API reference)
        role = self._role(machine) if machine else None
        policies = role_policies(role) if role is not None else ()
        policy: tuple[Document, ...] = _bucket_policy(call.fields.get("bucket", "")) if call.service == "s3" else ()
        who = f"arn:aws:iam::{ACCOUNT}:role/{role.name}" if role is not None else f"arn:aws:iam::{ACCOUNT}:root"
        for asked in _asked(call, environ, who):
            of_bucket = verdict(policy, asked, who)
            of_role = verdict(policies, asked)
            allowed = not machine or "allow" in (of_bucket, of_role)
            if "deny" in (of_bucket, of_role) or not allowed:
                user = f"arn:aws:sts::{ACCOUNT}:assumed-role/{role.name if role else '-'}/{machine}"
                return denied(call, asked.action, asked.resource, user if machine else CALLER)
        return None

    def _role(self, instance_id: str) -> Any:
        """moto's role behind a machine's keys, as it is now; None where it is gone."""
        self._resources.before("iam", "")
        with self.state.lock:
            life = self.state.lives.get(instance_id)
            if life is None:
                return None
            profile = life.machine.ec2_backend.iam_instance_profile_associations.get(instance_id)
        if profile is None:
            return None
        from moto.iam.models import iam_backends  # noqa: PLC0415 - the call above has loaded it

        names = [role.name for role in profile.iam_instance_profile.roles]
        roles = iam_backends[ACCOUNT]["aws"].roles.values()
        return next((role for role in roles if role.name in names), None)


def _bucket_policy(name: str) -> tuple[Document, ...]:
    from moto.s3.models import s3_backends  # noqa: PLC0415 - an S3 call is here

    bucket = s3_backends[ACCOUNT]["aws"].buckets.get(name)
    return () if bucket is None or not bucket.policy else (_parsed(bucket.policy.decode()),)


def _asked(call: Call, environ: Environ, who: str) -> list[Asked]:
    """Every right that a call needs. ``who``: the caller's ARN; a role's, where it is one of its sessions."""
    if call.service != "s3":
        return [Asked(f"{call.service}:{call.action}", "*")]
    bucket, key = call.fields["bucket"], call.fields["key"]
    # Loopback stands for TLS: nothing of it leaves the computer.
    context = {"aws:securetransport": "true", "s3:tlsversion": "1.3", "aws:sourceaccount": ACCOUNT}
    context |= {"aws:principalaccount": ACCOUNT, "aws:resourceaccount": ACCOUNT}
    context |= {"aws:principalarn": who, "aws:principalisawsservice": "false"}
    if call.action in ("ListObjectsV2", "ListObjectVersions"):
        context["s3:prefix"] = call.fields["prefix"]
    resource = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    right = f"s3:{_S3_RIGHTS.get(call.action, call.action)}"
    if call.action == "DeleteObjects":
        return [Asked("s3:DeleteObject", f"{resource}/{name}", context) for name in _deleted(environ)]
    found = [Asked(right, resource if bucket else "*", context)]
    if environ.get("HTTP_IF_MATCH") and right == "s3:PutObject":
        found.append(Asked("s3:GetObject", resource, context))  # S3 User Guide, "Conditional writes" (2026-11)
    source = unquote(str(environ.get("HTTP_X_AMZ_COPY_SOURCE", ""))).lstrip("/")
    if source:
        found.append(Asked("s3:GetObject", f"arn:aws:s3:::{source.partition('?')[0]}", context))
    return found


def _deleted(environ: Environ) -> list[str]:
    from xml.etree import ElementTree  # noqa: PLC0415 - only for this call

    body = environ["wsgi.input"].read()
    environ["wsgi.input"].seek(0)
    root = ElementTree.fromstring(body)  # noqa: S314 - from a process of the same user
    return [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]


@lru_cache(maxsize=64)
def _parsed(text: str) -> Document:
    document: Document = json.loads(text)
    return document
