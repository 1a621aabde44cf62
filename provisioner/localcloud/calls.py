"""Names a request of the AWS API: service, region, action as the service spells it, fields, the machine that signed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote

from cloudtrain.provisioner.localcloud.faults import Call

Environ = dict[str, Any]

_SUBRESOURCES = {
    "accelerate": "BucketAccelerateConfiguration",
    "acl": "BucketAcl",
    "cors": "BucketCors",
    "encryption": "BucketEncryption",
    "lifecycle": "BucketLifecycleConfiguration",
    "location": "BucketLocation",
    "logging": "BucketLogging",
    "notification": "BucketNotificationConfiguration",
    "object-lock": "ObjectLockConfiguration",
    "ownershipControls": "BucketOwnershipControls",
    "policy": "BucketPolicy",
    "policyStatus": "BucketPolicyStatus",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "BucketReplication",
    "requestPayment": "BucketRequestPayment",
    "tagging": "BucketTagging",
    "versioning": "BucketVersioning",
    "website": "BucketWebsite",
}
"""What a bucket's query asks about, and the end of the operation's name (botocore's S3 model, 1.44)."""
_MACHINE_TOKEN = re.compile(r"local-[0-9a-z]+-(i-[0-9a-f]+)")


def machine_token(cloud_id: str, instance_id: str) -> str:
    """The session token of a machine's role: who signs with it is that machine."""
    return f"local-{cloud_id}-{instance_id}"


def read_call(environ: Environ, zone_of: Callable[[str, str, str], str | None]) -> Call:
    """Name a request. ``zone_of`` tells a launch's zone id from its subnet, region and zone name."""
    query = dict(parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True))
    scope = str(environ.get("HTTP_AUTHORIZATION", "")).partition("Credential=")[2].partition(",")[0]
    parts = (scope or query.get("X-Amz-Credential", "")).split("/")
    region, service = (parts[2], parts[3]) if len(parts) >= 5 else ("us-east-1", "s3")
    token = str(environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "") or query.get("X-Amz-Security-Token", ""))
    signed_by = _MACHINE_TOKEN.fullmatch(token)
    fields = {"region": region, "service": service, "machine": signed_by[1] if signed_by else ""}
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    if service == "s3":
        bucket, _, key = unquote(str(environ.get("PATH_INFO", ""))).lstrip("/").partition("/")
        fields |= {"bucket": bucket, "key": key, "prefix": query.get("prefix", "")}
        return Call(service, _s3_action(environ["REQUEST_METHOD"], bucket, key, query), fields)
    if target:
        return Call(service, target.rpartition(".")[2], fields)
    form = query | _form(environ)
    action = form.get("Action", "")
    if service == "ec2" and action == "RunInstances":
        fields["instance_type"] = form.get("InstanceType", "")
        fields["capacity_type"] = "spot" if form.get("InstanceMarketOptions.MarketType") == "spot" else "on-demand"
        subnet = form.get("SubnetId") or form.get("NetworkInterface.1.SubnetId", "")
        zone_id = form.get("Placement.AvailabilityZoneId")
        fields["zone_id"] = zone_id or zone_of(subnet, region, form.get("Placement.AvailabilityZone", "")) or ""
    return Call(service, action, form | fields)


def _form(environ: Environ) -> dict[str, str]:
    if not str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded"):
        return {}
    body = environ["wsgi.input"].read()
    environ["wsgi.input"].seek(0)
    return {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}


def _s3_action(method: str, bucket: str, key: str, query: dict[str, str]) -> str:
    if key == "":
        return _bucket_action(method, bucket, query)
    if "uploadId" in query:
        return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "GET": "ListParts"}.get(
            method, "AbortMultipartUpload"
        )
    if "uploads" in query:
        return "CreateMultipartUpload"
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject"}.get(method, "DeleteObject")


def _bucket_action(method: str, bucket: str, query: dict[str, str]) -> str:
    if bucket == "":
        return "ListBuckets"
    about = next((end for name, end in _SUBRESOURCES.items() if name in query), None)
    if about is not None:
        return {"GET": "Get", "PUT": "Put"}.get(method, "Delete") + about
    if "uploads" in query:
        return "ListMultipartUploads"
    if "versions" in query:
        return "ListObjectVersions"
    return {"GET": "ListObjectsV2", "HEAD": "HeadBucket", "PUT": "CreateBucket", "POST": "DeleteObjects"}.get(
        method, "DeleteBucket"
    )
