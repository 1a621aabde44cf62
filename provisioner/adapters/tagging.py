"""A job's tags as EC2 takes, finds and shows them. Which they are: ``names.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.provisioner.names import TAG_JOB, TAG_OWNER, job_name

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagTypeDef


def tags(job_id: str, owner: str) -> list[TagTypeDef]:
    """The tags of whatever belongs to a job. By them it is found, and by nothing else."""
    return [
        {"Key": "Name", "Value": job_name(job_id)},
        {"Key": TAG_OWNER, "Value": owner},
        {"Key": TAG_JOB, "Value": job_id},
    ]


def by_job(job_id: str) -> list[FilterTypeDef]:
    """The filter that finds what belongs to a job."""
    return [{"Name": f"tag:{TAG_JOB}", "Values": [job_id]}]


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """The tags in a description of EC2's, of IAM's, or in a reply of GetBucketTagging."""
    return {tag["Key"]: tag["Value"] for tag in (*described.get("Tags", ()), *described.get("TagSet", ()))}
