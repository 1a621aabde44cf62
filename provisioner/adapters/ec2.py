"""The Cloud port on EC2: AWS itself, and the embedded cloud, which answers the same calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.adapters.aws_codes import names_profile
from cloudtrain.provisioner.adapters.aws_errors import code_of, decoder, message_of, translated
from cloudtrain.provisioner.adapters.caller_address import route
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.coalesce import Backoff, Coalescer
from cloudtrain.provisioner.adapters.ec2_resources import SSH_PORT, Here, Resources
from cloudtrain.provisioner.adapters.image_lookup import find
from cloudtrain.provisioner.adapters.listing import GAP_S, Listing
from cloudtrain.provisioner.adapters.quota_lookup import named
from cloudtrain.provisioner.adapters.run_instances import request as run_instances_request
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.adapters.terminating import terminate
from cloudtrain.provisioner.errors import CloudtrainError, CloudUnreachable, QuotaExceeded
from cloudtrain.provisioner.model import Endpoint, FoundImage, Image, LaunchRequest, Machine, MachineState
from cloudtrain.provisioner.names import TAG_GENERATION, TAG_JOB, TAG_LOCAL_SSH, TAG_TOKEN
from cloudtrain.provisioner.spec import AWS_DEFAULTS, AwsOptions

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

_PRODUCT = "Linux/UNIX"
_SUBNET_FULL = "InsufficientFreeAddressesInSubnet"


class Ec2Cloud:
    """The Cloud port for one account. ``address`` gives the caller's own public IPv4 address.

    ``is_dead`` says whether the embedded cloud has died; None on AWS. Safe to use from several threads: those that list
    machines, or end some, at one time share calls.
    """

    def __init__(
        self, clients: Clients, *, address: Callable[[], str], is_dead: Callable[[], bool] | None = None
    ) -> None:
        self._clients = clients
        self._here = Here(address, route)
        self._is_dead = is_dead
        self._lock = threading.Lock()
        self._regions: dict[str, Resources] = {}
        self._listings: dict[str, Listing] = {}
        self._endings: dict[str, Coalescer[str, CloudtrainError | None]] = {}

    # ---- who we are

    def account(self, region: str = "us-east-1") -> str:
        """The account's twelve digits. Raises AccessError where there are no valid credentials."""
        with self._translated(f"asking AWS who you are, in {region}"):
            return self._clients.client("sts", region).get_caller_identity()["Account"]

    def owner(self, region: str = "us-east-1") -> str:
        """The caller's user id, as it goes into the owner tag. Raises as ``account`` does."""
        with self._translated(f"asking AWS who you are, in {region}"):
            return self._clients.client("sts", region).get_caller_identity()["UserId"]

    # ---- the port

    def prepare(self, job_id: str, owner: str, regions: Iterable[str], options: AwsOptions = AWS_DEFAULTS) -> None:
        """Make the job's security groups in each region, open to whom the way there needs alone."""
        for region in regions:
            with self._translated(f"security group for {job_id} in {region}", region):
                self._resources(region).prepare(job_id, owner, options, self._here)

    def find_image(self, image: Image, region: str) -> FoundImage:
        """The AMI that the row's parameter names now, or the user's own one, as DescribeImages shows it."""
        return find(self._clients, image, region, is_dead=self._is_dead)

    def price(self, pool: Pool) -> Decimal | None:
        """The pool's spot price now; None for an on-demand pool, whose price the catalogue knows."""
        if pool.capacity_type is not CapacityType.SPOT:
            return None
        with self._translated(f"spot price of {pool}"):
            zone = self._resources(pool.region).zone_name(pool.zone_id)
            now = datetime.now(UTC)
            pages = (
                self._ec2(pool.region)
                .get_paginator("describe_spot_price_history")
                .paginate(
                    InstanceTypes=[pool.instance_type],  # type: ignore[list-item] # a snapshot of AWS's list
                    ProductDescriptions=[_PRODUCT],
                    AvailabilityZone=zone,
                    StartTime=now,  # from now to now: the price in force
                    EndTime=now,
                )
            )
            seen = [p for page in pages for p in page["SpotPriceHistory"] if p["AvailabilityZone"] == zone]
        newest = max(seen, key=lambda p: p["Timestamp"], default=None)
        price = Decimal(newest["SpotPrice"]) if newest else None
        return price if price else None

    def launch(self, request: LaunchRequest) -> Machine:
        """Start one machine: one RunInstances call, not repeated here."""
        pool = request.attempt.pool
        try:
            return self._launch(request, pool)
        except QuotaExceeded as error:
            raise named(self._clients, error, pool) from error.__cause__

    def _launch(self, request: LaunchRequest, pool: Pool) -> Machine:
        resources = self._resources(pool.region)
        with self._translated(f"launch in {pool}", pool.region, launching=True):
            subnet = resources.subnet(pool.zone_id, request.options.subnet_ids)
            group_id = resources.group(request.job_id, request.owner, subnet.vpc_id, request.options, self._here)
            wanted = run_instances_request(request, subnet_id=subnet.subnet_id, security_group_id=group_id)
            self._listing(pool.region).forget(request.job_id)
            try:
                made = self._clients.launcher(pool.region).run_instances(**wanted)
            except ClientError as error:
                if code_of(error).startswith(("InvalidGroup.", "InvalidSecurityGroup")):
                    resources.forget(request.job_id)  # swept by somebody, or too new to be seen
                if code_of(error) == _SUBNET_FULL and resources.fill(subnet, request.options.subnet_ids):
                    text = f"launch in {pool}: subnet {subnet.subnet_id} has no free address"
                    raise CloudUnreachable(f"{text}: another of subnet_ids is next") from error
                if names_profile(code_of(error), message_of(error)) and self._iam_shows(request.instance_profile):
                    text = f"launch in {pool}: EC2 does not know the instance profile {request.instance_profile} yet"
                    raise CloudUnreachable(f"{text}: IAM, which has it, tells all regions within minutes") from error
                raise
        machine = self._machine(made["Instances"][0]) if made["Instances"] else None
        if machine is None:
            raise CloudUnreachable(f"launch in {pool}: RunInstances answered without a machine of ours; asking again")
        return machine

    def machines(self, job_id: str, regions: Iterable[str]) -> tuple[Machine, ...]:
        """Every machine that carries the job's tag, with its spot request's status while it lives."""
        seen = [pair for region in regions for pair in self._listing(region).of(job_id)]
        machines = [self._machine(instance, status) for instance, status in seen]
        return tuple(m for m in machines if m is not None)

    def terminate(self, region: str, instance_ids: Iterable[str]) -> None:
        """Ask for the end of machines. An id that EC2 does not know is passed over."""
        said = self._ending(region).ask(list(instance_ids))
        errors = [error for error in said.values() if error is not None]
        if errors:
            raise errors[0].with_traceback(None)

    def sweep(self, job_id: str, regions: Iterable[str]) -> tuple[str, ...]:
        """Delete the job's groups, and volumes and interfaces that outlived their machine."""
        left: list[str] = []
        for region in regions:
            with self._translated(f"clearing up after {job_id} in {region}", region):
                ids = self._resources(region).sweep(job_id)
            left += [f"{kept} in {region}" for kept in ids]
        return tuple(left)

    # ---- inside

    def _translated(
        self, doing: str, region: str | None = None, *, launching: bool = False
    ) -> AbstractContextManager[None]:
        """``region``: where a refusal for want of a permission is decoded."""
        decode = decoder(self._clients, region) if region is not None else None
        return translated(doing, is_dead=self._is_dead, launching=launching, decode=decode)

    def _ec2(self, region: str) -> EC2Client:
        return self._clients.client("ec2", region)

    def _resources(self, region: str) -> Resources:
        with self._lock:
            if region not in self._regions:
                self._regions[region] = Resources(lambda: self._ec2(region), region)
            return self._regions[region]

    def _listing(self, region: str) -> Listing:
        with self._lock:
            if region not in self._listings:
                backoff = Backoff(GAP_S[self._clients.cloud])
                self._listings[region] = Listing(lambda: self._ec2(region), region, backoff, is_dead=self._is_dead)
            return self._listings[region]

    def _ending(self, region: str) -> Coalescer[str, CloudtrainError | None]:
        with self._lock:
            if region not in self._endings:
                self._endings[region] = Coalescer(lambda ids: self._terminate(region, ids))
            return self._endings[region]

    def _terminate(self, region: str, ids: tuple[str, ...]) -> dict[str, CloudtrainError | None]:
        decode = decoder(self._clients, region)
        refused = terminate(self._ec2(region), region, ids, is_dead=self._is_dead, decode=decode)
        return {instance_id: refused.get(instance_id) for instance_id in ids}

    def _iam_shows(self, profile: str) -> bool:
        """Whether IAM has the instance profile, with a role in it; False where it can't be asked."""
        try:
            shown = self._clients.client("iam", "us-east-1").get_instance_profile(InstanceProfileName=profile)
            return bool(shown["InstanceProfile"]["Roles"])
        except (ClientError, BotoCoreError):
            return False

    def _machine(self, instance: InstanceTypeDef, spot_status: str | None = None) -> Machine | None:
        """The instance as ours; None for one that carries the job's tag and was not launched by this program."""
        tags = tags_of(instance)
        if not tags.get(TAG_TOKEN) or not tags.get(TAG_GENERATION, "").isdecimal():
            return None
        reason = instance.get("StateReason", {})
        return Machine(
            instance_id=instance["InstanceId"],
            job_id=tags[TAG_JOB],
            generation=int(tags[TAG_GENERATION]),
            client_token=tags[TAG_TOKEN],
            state=MachineState(instance["State"]["Name"]),
            launched_at=instance["LaunchTime"].timestamp(),
            endpoint=self._endpoint(instance, tags),
            private=self._private(instance, tags),
            state_reason=reason.get("Code") or None,
            state_message=reason.get("Message") or None,
            spot_request_id=instance.get("SpotInstanceRequestId") or None,
            spot_status=spot_status,
        )

    def _endpoint(self, instance: InstanceTypeDef, tags: dict[str, str]) -> Endpoint | None:
        if self._clients.cloud == "local":
            host, _, port = tags.get(TAG_LOCAL_SSH, "").rpartition(":")
            return Endpoint(host, int(port)) if host else None
        address = instance.get("PublicIpAddress")
        return Endpoint(address, SSH_PORT) if address else None

    def _private(self, instance: InstanceTypeDef, tags: dict[str, str]) -> Endpoint | None:
        """Inside its VPC. In the embedded cloud a machine with a public place has a made-up private address."""
        address = instance.get("PrivateIpAddress")
        return Endpoint(address, SSH_PORT) if address and TAG_LOCAL_SSH not in tags else None
