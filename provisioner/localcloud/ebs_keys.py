"""The keys that EBS encrypts with, and what becomes of a machine whose key can't be used.

Sources: EC2 User Guide, "Service-linked role for Spot Instance requests" (the grant); AWS re:Post, "kms-iam-ec2-
permission" (a machine whose key can't be used ends with Client.InternalError: Client error on launch); 2026-11.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.plants import SPOT_ROLE_ARN

AWS_ALIAS = "alias/aws/ebs"
BAD_KEY = ("Client.InternalError", "Client error on launch")
"""The StateReason of a machine that dies at its launch because its key can't be used."""


def default_key(backend: Any) -> str:
    """GetEbsDefaultKmsKeyId: a customer key's ARN, or AWS's own alias."""
    key_id = str(backend.default_kms_key_id)
    return AWS_ALIAS if not key_id or _is_aws_key(backend, key_id) else key_id


def doom(params: dict[str, Any], backend: Any, region: str, *, is_spot: bool) -> tuple[str, str] | None:
    """How a launch ends that encrypts a volume with a key that can't be used; None for one that lives."""
    wanted = set()
    for mapping in params.get("BlockDeviceMappings") or ():
        ebs = mapping.get("Ebs") or {}
        if ebs.get("KmsKeyId"):
            wanted.add(str(ebs["KmsKeyId"]))
        elif ebs.get("Encrypted") or backend.ebs_encryption_by_default:
            wanted.add(default_key(backend))
    if not params.get("BlockDeviceMappings") and backend.ebs_encryption_by_default:
        wanted.add(default_key(backend))
    usable = all(_usable(key, region, is_spot=is_spot) for key in wanted - {AWS_ALIAS})
    return None if usable else BAD_KEY


def _usable(name: str, region: str, *, is_spot: bool) -> bool:
    from moto.kms.models import kms_backends  # noqa: PLC0415 - only where a customer's key is in use

    backend = kms_backends[ACCOUNT][region]
    alias = backend.get_alias_name(name) if "alias/" in name else None
    key_id = backend.get_key_id_from_alias(alias) if alias else backend.get_key_id(name)
    key = backend.keys.get(key_id) if key_id else None
    if key is None or not key.enabled:
        return False
    granted = any(grant.grantee_principal == SPOT_ROLE_ARN for grant in key.grants.values())
    return not is_spot or granted or SPOT_ROLE_ARN in str(key.policy)


def _is_aws_key(backend: Any, arn: str) -> bool:
    """Whether it is the key that AWS makes for the account (moto makes it when a volume first needs it)."""
    from moto.kms.models import kms_backends  # noqa: PLC0415

    keys = kms_backends[ACCOUNT][backend.region_name]
    return bool(keys.alias_exists(AWS_ALIAS)) and keys.describe_key(AWS_ALIAS).arn == arn
