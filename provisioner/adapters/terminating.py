"""TerminateInstances, so that one machine that can't be ended never keeps the others.

One unknown id, and EC2 ends none of them; one protected machine, and it ends none of that zone (EC2 API reference,
TerminateInstances, read 2026-11). So what a call refuses is asked again in halves, down to the one that is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cloudtrain.provisioner.adapters.aws_errors import Decoder, translated
from cloudtrain.provisioner.adapters.listing import batches
from cloudtrain.provisioner.errors import (
    AccessError,
    CloudGone,
    CloudtrainError,
    CloudUnreachable,
    NotFound,
    RegionDenied,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_BATCH = 100  # ids in one call; EC2 takes 1,000


def terminate(
    ec2: EC2Client,
    region: str,
    instance_ids: Iterable[str],
    *,
    is_dead: Callable[[], bool] | None = None,
    decode: Decoder | None = None,
) -> dict[str, CloudtrainError]:
    """Ask for the end of machines; why not, for each whose end could not be asked for. An id that EC2 does not know is
    none of them. ``is_dead``, ``decode``: see ``aws_errors.translate``."""

    def ask(ids: list[str]) -> dict[str, CloudtrainError]:
        try:
            with translated(
                f"terminate {' '.join(ids)} in {region}", is_dead=is_dead, decode=decode if len(ids) == 1 else None
            ):
                ec2.terminate_instances(InstanceIds=ids)
        except CloudtrainError as error:
            if not of_one(error):
                return dict.fromkeys(ids, error)
            if len(ids) == 1:
                return {} if isinstance(error, NotFound) else {ids[0]: error}
            half = len(ids) // 2
            return ask(ids[:half]) | ask(ids[half:])
        return {}

    refused: dict[str, CloudtrainError] = {}
    for batch in batches(instance_ids, _BATCH):
        refused |= ask(batch)
    return refused


def of_one(error: CloudtrainError) -> bool:
    """Whether one of the machines may be the reason. It is none where AWS is asked too often, does not answer, or lets
    us do nothing at all; a permission may hang on one machine's tags, and a fault of AWS's own on anything."""
    if isinstance(error, CloudUnreachable):
        return error.broken
    return isinstance(error, RegionDenied) or not isinstance(error, (AccessError, CloudGone))
