"""An account as after `cloudtrain setup`: the same plan, made in moto's own objects.

Calls to the API would do as well, but these are made when a first call waits for them. A test holds the two alike.
"""

from __future__ import annotations

import json
from typing import Any

from cloudtrain.provisioner.account import policies, setup_plan
from cloudtrain.provisioner.account.setup_plan import ROLE, Wanted
from cloudtrain.provisioner.localcloud.client import ACCOUNT

OWNER = "local"
"""Who has set the account up."""


def _wanted(region: str) -> Wanted:
    return setup_plan.wanted(ACCOUNT, region, OWNER)


def bucket_name(region: str) -> str:
    """The bucket of a region."""
    return _wanted(region).bucket


def make_role(backend: Any) -> None:
    """Make the machines' role and profile in moto's IAM. Its rights come with each bucket."""
    it = _wanted("us-east-1")
    marks = _marks(it)
    trust = json.dumps(policies.machine_trust(it))
    backend.create_role(ROLE, trust, "/", None, "Machines of cloudtrain", marks, "3600")
    backend.create_instance_profile(ROLE, "/", [ROLE], marks)
    give_rights(backend, it.region)


def give_rights(backend: Any, region: str) -> None:
    """Let machines use the bucket of a region."""
    it = _wanted(region)
    backend.put_role_policy(ROLE, it.role_policy, json.dumps(policies.machine_policy(it)))


def make_bucket(backend: Any, region: str) -> None:
    """Make the bucket of a region in moto's S3, with its settings."""
    it = _wanted(region)
    name, rule = it.bucket, setup_plan.lifecycle_rule()
    backend.create_bucket(name, region, "account-regional" if it.account_regional else None)
    backend.put_bucket_tagging(name, it.tags)
    backend.put_public_access_block(name, setup_plan.PUBLIC_ACCESS)
    backend.put_bucket_ownership_controls(name, "BucketOwnerEnforced")
    backend.put_bucket_encryption(name, {"Rule": {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}})
    backend.put_bucket_policy(name, json.dumps(policies.bucket_policy(it)).encode())
    days = rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
    backend.put_bucket_lifecycle(name, [rule | {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": str(days)}}])


def _marks(it: Wanted) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in it.tags.items()]
