"""What one region shows of many jobs, listed together: a call for 200 jobs, not one for each.

Two hundred values are the most that one filter of EC2's takes (User Guide, "Filter your resources", read 2026-11).
Describe calls have a bucket of 100 and are refilled by 20 a second for the account and region, unfiltered or unpaged
ones less (EC2 Developer Guide, "Request throttling for the Amazon EC2 API", read 2026-11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.aws_errors import translated
from cloudtrain.provisioner.adapters.coalesce import Backoff, Coalescer
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.errors import CloudtrainError, CloudUnreachable, NotFound
from cloudtrain.provisioner.model import MachineState
from cloudtrain.provisioner.names import TAG_JOB

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

Seen = list[tuple["InstanceTypeDef", str | None]]
"""Instances, each with its spot request's status code while it lives."""

GAP_S = {"aws": 1.0, "local": 0.02}  # between the starts of two listings of a region
FILTER_VALUES = 200
_PAGE = 1000


class Listing:
    """One region's machines by the jobs' tag. Safe to use from several threads, which then share calls.

    A call that is throttled or gets no answer is CloudUnreachable for all who asked, and the next one comes later.
    Where a zone is disrupted, EC2 may refuse every list that names no ids (DescribeInstances, API reference, read
    2026-11): then the machines that were seen before are asked for by id, zone by zone.
    """

    def __init__(
        self,
        client: Callable[[], EC2Client],
        region: str,
        backoff: Backoff,
        *,
        is_dead: Callable[[], bool] | None = None,
    ) -> None:
        self._client = client
        self._region = region
        self._backoff = backoff
        self._is_dead = is_dead
        self._asked = Coalescer[str, Seen | CloudtrainError](self._answers, wait=backoff.wait)
        self._live: dict[str, dict[str, str]] = {}  # job id -> instance id -> zone name, as last listed by tag

    def of(self, job_id: str) -> Seen:
        """The job's instances, by a call that starts after this one did. Raises what ``translated`` makes."""
        seen = self._asked.ask([job_id])[job_id]
        if isinstance(seen, CloudtrainError):
            raise seen.with_traceback(None)  # one object for all who asked
        return seen

    def forget(self, job_id: str) -> None:
        """The job may have a machine that no list has shown yet: what was seen of it is not all of it."""
        self._live.pop(job_id, None)

    def _answers(self, jobs: tuple[str, ...]) -> dict[str, Seen | CloudtrainError]:
        answers: dict[str, Seen | CloudtrainError] = {}
        throttled, silent = False, None
        for chunk in batches(jobs, FILTER_VALUES):
            try:
                if silent is not None:
                    raise silent
                answers |= self._by_tag(chunk)
            except CloudtrainError as error:
                cause = error.__cause__
                throttled = throttled or (isinstance(error, CloudUnreachable) and error.throttled)
                # Where one call had no answer, the next would wait as long for none.
                silent = error if isinstance(error, CloudUnreachable) and not isinstance(cause, ClientError) else None
                answers |= self._otherwise(chunk, error)
        self._backoff.note(throttled=throttled)
        return answers

    def _by_tag(self, jobs: list[str]) -> dict[str, Seen]:
        with translated(f"machines in {self._region}", is_dead=self._is_dead):
            pages = (
                self._client()
                .get_paginator("describe_instances")
                .paginate(Filters=[{"Name": f"tag:{TAG_JOB}", "Values": jobs}], PaginationConfig={"PageSize": _PAGE})
            )
            instances = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
            statuses = self._spot_statuses(instances)
        seen: dict[str, Seen] = {job_id: [] for job_id in jobs}
        for instance in instances:
            shown = seen.get(_job_of(instance))
            if shown is not None:
                shown.append((instance, statuses.get(instance.get("SpotInstanceRequestId", ""))))
        for job_id, shown in seen.items():
            self._live[job_id] = {i["InstanceId"]: i["Placement"]["AvailabilityZone"] for i, _ in shown if _lives(i)}
        return seen

    def _spot_statuses(self, instances: list[InstanceTypeDef]) -> dict[str, str]:
        """Spot request id to status code, of machines that live: a request closes two minutes before its machine."""
        ids = [i["SpotInstanceRequestId"] for i in instances if _lives(i) and i.get("SpotInstanceRequestId")]
        statuses: dict[str, str] = {}
        for batch in batches(ids, FILTER_VALUES):
            # By filter: asked for by id, one request that isn't visible yet fails the whole call.
            pages = (
                self._client()
                .get_paginator("describe_spot_instance_requests")
                .paginate(
                    Filters=[{"Name": "spot-instance-request-id", "Values": batch}],
                    PaginationConfig={"PageSize": _PAGE},
                )
            )
            for wanted in (r for page in pages for r in page["SpotInstanceRequests"]):
                statuses[wanted["SpotInstanceRequestId"]] = wanted.get("Status", {}).get("Code", "")
        return statuses

    def _otherwise(self, jobs: list[str], error: CloudtrainError) -> dict[str, Seen | CloudtrainError]:
        """Answers where the list failed: by id for whom that can tell more, else the error."""
        answers: dict[str, Seen | CloudtrainError] = dict.fromkeys(jobs, error)
        if not (isinstance(error, CloudUnreachable) and error.broken):
            return answers
        known = {job_id: self._live[job_id] for job_id in jobs if self._live.get(job_id)}
        answers |= {job_id: [] for job_id in known}
        for zone in sorted({zone for ids in known.values() for zone in ids.values()}):
            there = {job_id: [i for i, z in ids.items() if z == zone] for job_id, ids in known.items()}
            try:
                for batch in batches((i for ids in there.values() for i in ids), FILTER_VALUES):
                    for instance in self._by_id(zone, batch):
                        shown = answers.get(_job_of(instance))
                        if isinstance(shown, list):
                            shown.append((instance, None))
            except CloudtrainError as worse:
                answers |= {job_id: worse for job_id, ids in there.items() if ids}
        return answers

    def _by_id(self, zone: str, ids: list[str]) -> list[InstanceTypeDef]:
        """The machines of one zone that EC2 still knows: one that ended an hour ago must not hide the others."""
        try:
            with translated(f"machines in {zone}", is_dead=self._is_dead):
                reply = self._client().describe_instances(InstanceIds=ids)
        except NotFound:
            half = len(ids) // 2
            return [*self._by_id(zone, ids[:half]), *self._by_id(zone, ids[half:])] if half else []
        return [i for r in reply["Reservations"] for i in r["Instances"]]


def _lives(instance: InstanceTypeDef) -> bool:
    return MachineState(instance["State"]["Name"]) is not MachineState.TERMINATED


def _job_of(instance: InstanceTypeDef) -> str:
    """The job that an instance's tag names; "" without one. Tags are "gradually disassociated" from a terminated
    instance (EC2 user guide, "Terminate your instance", read 2026-11), so a reply may show it without them."""
    return tags_of(instance).get(TAG_JOB, "")


def batches(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """In lists of at most ``size``."""
    wanted = list(ids)
    for start in range(0, len(wanted), size):
        yield wanted[start : start + size]
