"""TerminateInstances, so that one machine that can't be ended never keeps the others.

One unknown id, and EC2 ends none of them; one protected machine, and it ends none of that zone (EC2 API reference,
TerminateInstances, read 2026-11). So what a batch refuses is asked again one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.aws_codes import Kind, row
from cloudtrain.provisioner.adapters.aws_errors import code_of, message_of
from cloudtrain.provisioner.adapters.listing import batches

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

BATCH = 100  # ids in one call; EC2 takes 1,000


def terminate(ec2: EC2Client, instance_ids: Iterable[str]) -> dict[str, ClientError]:
    """Ask for the end of machines; what EC2 refused to end, and why. An id that it does not know is no refusal.

    Raises botocore's errors where no machine's own state is the reason: throttled, no permission at all, no answer.
    """
    refused: dict[str, ClientError] = {}
    for batch in batches(instance_ids, BATCH):
        try:
            ec2.terminate_instances(InstanceIds=batch)
        except ClientError as error:
            if not _of_one(error):
                raise
            refused |= _one_by_one(ec2, batch) if len(batch) > 1 else _kept(batch[0], error)
    return refused


def _one_by_one(ec2: EC2Client, ids: list[str]) -> dict[str, ClientError]:
    refused: dict[str, ClientError] = {}
    for instance_id in ids:
        try:
            ec2.terminate_instances(InstanceIds=[instance_id])
        except ClientError as error:
            if not _of_one(error):
                raise
            refused |= _kept(instance_id, error)
    return refused


def _kept(instance_id: str, error: ClientError) -> dict[str, ClientError]:
    found = row(code_of(error), 400, message_of(error))
    return {} if found is not None and found.kind is Kind.MISSING else {instance_id: error}


def _of_one(error: ClientError) -> bool:
    """Whether one of the machines may be the reason. A permission may hang on one machine's tags."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    found = row(code_of(error), status, message_of(error))
    return found is None or found.kind in (Kind.MISSING, Kind.REFUSED, Kind.REQUEST, Kind.REGION)
