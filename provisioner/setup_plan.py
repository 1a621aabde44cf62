"""What `setup` makes in an account, as data: names, policies, a CloudFormation template. Pure.

Sources, read 2026-11: the Service Authorization Reference (actions, resources, condition keys), the S3, IAM and EC2
user guides, and the calls that provisioner/adapters and trainer/storage.py make.
"""

from __future__ import annotations

# AWS re:Post and the S3 guide, "Namespaces for general purpose buckets": everywhere but Bahrain and the UAE.
_NO_ACCOUNT_NAMESPACE = frozenset({"me-south-1", "me-central-1"})


def bucket_names(account: str, region: str) -> tuple[str, ...]:
    """The names that the bucket may have, the one to make first: nobody else can take an account-regional name."""
    name = f"cloudtrain-{account}-{region}"
    return (name,) if region in _NO_ACCOUNT_NAMESPACE else (f"{name}-an", name)
