"""Reads what the checks of one region look at, all at once. Changes nothing; RunInstances is asked with DryRun."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.account import quotas
from cloudtrain.provisioner.account.facts import (
    Ami,
    DryRun,
    EbsKey,
    Identity,
    ImageFacts,
    Network,
    RegionFacts,
    Subnet,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.account.region_checks import SPOT_ROLE_ARN
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.image_lookup import root_gib, show
from cloudtrain.provisioner.adapters.images import image_for, user_named_by
from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.adapters.reading import Readers, Reading
from cloudtrain.provisioner.adapters.run_instances import request
from cloudtrain.provisioner.adapters.userdata import cloud_config
from cloudtrain.provisioner.model import Attempt, Image, LaunchRequest, Phase

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

AWS_KEY = "alias/aws/ebs"
_PROBE_JOB = "doctor-000000"
_NO_QUOTA = ("NoSuchResourceException", "NoSuchResource")
_DENIED_ACTION = re.compile(r"not authorized to perform: (\S+)(?: on resource: (\S+))?")
_ENCODED = re.compile(r"[Ee]ncoded authorization failure message: (\S+)")
_LONGEST = 200

_Shown = tuple[str | None, Ami | Unread | None]  # the id that the parameter names, and the image of that id


def opt_in(clients: Clients, home_region: str, regions: Iterable[str]) -> dict[str, str]:
    """Region to "opt-in-not-required", "opted-in" or "not-opted-in". One call. Raises botocore's errors."""
    shown = clients.client("ec2", home_region).describe_regions(RegionNames=list(regions), AllRegions=True)
    return {region["RegionName"]: region["OptInStatus"] for region in shown["Regions"]}


class RegionReader:
    """Begins at once to read one region; ``facts`` waits for it."""

    def __init__(self, clients: Clients, region: str, wants: Wants, identity: Identity, readers: Readers) -> None:
        self.region = region
        self._clients = clients
        self._wants = wants
        self._identity = identity
        self._readers = readers
        self._ec2: EC2Client = clients.client("ec2", region)
        spot = bool(set(wants.pools(region)) & set(wants.spot_pools))
        self._network = readers.start("ec2:DescribeSubnets", self._read_network)
        self._images = [self._begin_image(kinds, image) for kinds, image in self._rows()]
        self._quotas = [(code, self._begin_quota(code)) for code in self._codes()]
        self._offered = readers.start("ec2:DescribeInstanceTypeOfferings", self._read_offered)
        self._key = readers.start("ec2:GetEbsDefaultKmsKeyId", self._read_key)
        self._rights = [readers.start(action, call) for action, call in self._calls(spot)]
        self._dry = readers.start("ec2:RunInstances", self._read_dry_runs)

    def facts(self, enabled: str | Unread) -> RegionFacts:
        """What was read; waits for it until the readers' deadline."""
        tried = self._dry.get()
        refused = [reading.get() for reading in self._rights]
        return RegionFacts(
            region=self.region,
            opt_in=enabled,
            quotas=tuple((code, reading.get()) for code, reading in self._quotas),
            ebs_key=self._key.get(),
            network=self._network.get(),
            images=tuple(_image_facts(kinds, image, reading) for kinds, image, reading in self._images),
            offered=self._offered.get(),
            dry_runs=() if isinstance(tried, Unread) else tried,
            denied=tuple(fact for fact in refused if isinstance(fact, Unread) and fact.why is Why.DENIED),
        )

    def _begin_image(self, kinds: tuple[str, ...], image: Image) -> tuple[tuple[str, ...], Image, Reading[_Shown]]:
        return kinds, image, self._readers.start("ssm:GetParameter", lambda: self._read_image(image))

    def _begin_quota(self, code: str) -> Reading[float]:
        return self._readers.start("servicequotas:GetServiceQuota", lambda: self._read_quota(code))

    # ---- what runs in threads

    def _calls(self, spot: bool) -> list[tuple[str, Callable[[], object]]]:
        ec2 = self._ec2
        calls: list[tuple[str, Callable[[], object]]] = [
            ("ec2:DescribeInstances", lambda: ec2.describe_instances(MaxResults=5))
        ]
        if spot:
            calls.append(
                ("ec2:DescribeSpotInstanceRequests", lambda: ec2.describe_spot_instance_requests(MaxResults=5))
            )
        return calls

    def _codes(self) -> list[str]:
        found = (quotas.quota_of(p.instance_type, p.capacity_type) for p in self._wants.pools(self.region))
        return list(dict.fromkeys(quota.code for quota in found if quota is not None))

    def _rows(self) -> list[tuple[tuple[str, ...], Image]]:
        """Each image that the region's pools boot, with the types that boot it."""
        kinds = dict.fromkeys(pool.instance_type for pool in self._wants.pools(self.region))
        rows: dict[Image, list[str]] = {}
        for kind in kinds:
            image = image_for(kind, self._clients.cloud, self._wants.options)
            if isinstance(image, Image):
                rows.setdefault(image, []).append(kind)
        return [(tuple(names), image) for image, names in rows.items()]

    def _read_quota(self, code: str) -> float:
        client = self._clients.client("service-quotas", self.region)
        try:
            shown = client.get_service_quota(ServiceCode=quotas.SERVICE, QuotaCode=code)
        except ClientError as error:
            if code_of(error) not in _NO_QUOTA:
                raise
            shown = client.get_aws_default_service_quota(ServiceCode=quotas.SERVICE, QuotaCode=code)
        return float(shown["Quota"]["Value"])

    def _read_offered(self) -> frozenset[tuple[str, str]]:
        kinds = list(dict.fromkeys(pool.instance_type for pool in self._wants.pools(self.region)))
        pages = self._ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": kinds}]
        )
        return frozenset((o["InstanceType"], o["Location"]) for page in pages for o in page["InstanceTypeOfferings"])

    def _read_image(self, image: Image) -> _Shown:
        image_id = image.own_id
        if image_id is None:
            try:
                shown = self._clients.client("ssm", self.region).get_parameter(Name=image.ssm_parameter)
            except ClientError as error:
                if code_of(error) != "ParameterNotFound":
                    raise
                return None, None
            image_id = shown["Parameter"]["Value"]
        return image_id, self._readers.start("ec2:DescribeImages", lambda: _ami(self._ec2, image_id, image)).get()

    def _read_network(self) -> Network:
        ec2, named = self._ec2, self._wants.options.subnet_ids
        vpc_id, only = None, ("subnet-id", list(named))
        if not named:
            vpcs = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
            if not vpcs:
                return Network(None)
            vpc_id, only = vpcs[0]["VpcId"], ("default-for-az", ["true"])
        pages = ec2.get_paginator("describe_subnets").paginate(Filters=[{"Name": only[0], "Values": only[1]}])
        shown = [s for page in pages for s in page["Subnets"] if vpc_id is None or s["VpcId"] == vpc_id]
        if not shown:
            return Network(vpc_id)
        vpc_id = vpc_id or shown[0]["VpcId"]
        tables = self._readers.start("ec2:DescribeRouteTables", lambda: self._tables(shown)).get()
        subnets = tuple(_subnet(s, tables) for s in shown)
        gateway = _gateway(ec2, vpc_id) if any(s.internet is False for s in subnets) else None
        return Network(vpc_id, subnets, gateway)

    def _tables(self, subnets: list[Any]) -> list[Any]:
        by_vpc: list[FilterTypeDef] = [{"Name": "vpc-id", "Values": sorted({s["VpcId"] for s in subnets})}]
        pages = self._ec2.get_paginator("describe_route_tables").paginate(Filters=by_vpc)
        return [table for page in pages for table in page["RouteTables"]]

    def _read_key(self) -> EbsKey:
        wanted = self._wants.options.kms_key
        key_id = wanted or self._ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
        named = wanted is not None
        if AWS_KEY in key_id:
            return EbsKey(key_id)
        if key_id.startswith("arn:") and key_id.split(":")[3] != self.region:
            return EbsKey(key_id, customer=True, named=named, there=False)
        kms = self._clients.client("kms", self.region)
        described = self._readers.start("kms:DescribeKey", lambda: _described(kms, key_id)).get()
        if isinstance(described, Unread):
            return EbsKey(key_id, customer=True, named=named, enabled=described, spot_may_use=described)
        if described is None:
            return EbsKey(key_id, customer=True, named=named, there=False)
        key = described
        if key.get("KeyManager") == "AWS":
            return EbsKey(key_id)
        role = SPOT_ROLE_ARN.format(account=self._identity.account)
        may = self._readers.start("kms:ListGrants", lambda: role_may_use(kms, key["Arn"], role)).get()
        enabled = key["KeyState"] == "Enabled"
        return EbsKey(key["Arn"], customer=True, named=named, enabled=enabled, spot_may_use=may)

    def _read_dry_runs(self) -> tuple[DryRun, ...]:
        """One request for each market of the region, in its cheapest pool that has what a request needs."""
        network = self._network.get()
        if isinstance(network, Unread) or network.vpc_id is None:
            return ()
        tried: dict[str, DryRun] = {}
        for pool in self._wants.pools(self.region):
            subnet = next((s for s in network.subnets if s.zone_id == pool.zone_id), None)
            image, ami_id, ami = self._image_of(pool)
            if pool.capacity_type in tried or subnet is None or image is None or ami_id is None or ami is None:
                continue
            asked = self._dry_run(pool, subnet, image, ami_id, ami)
            if asked is not None:
                tried[pool.capacity_type] = asked
        return tuple(tried.values())

    def _image_of(self, pool: Pool) -> tuple[Image | None, str | None, Ami | None]:
        for kinds, image, reading in self._images:
            if pool.instance_type in kinds:
                found = reading.get()
                if not isinstance(found, Unread) and isinstance(found[1], Ami):
                    return image, found[0], found[1]
        return None, None, None

    def _dry_run(self, pool: Pool, subnet: Subnet, image: Image, image_id: str, ami: Ami) -> DryRun | None:
        groups = self._ec2.describe_security_groups(
            Filters=[{"Name": "vpc-id", "Values": [subnet.vpc_id]}, {"Name": "group-name", "Values": ["default"]}]
        )["SecurityGroups"]
        if not groups:
            return None
        shown = replace(image, root_device=ami.root_device, root_gib=max(ami.root_gib, image.root_gib))
        launch = self._probe(pool, shown, image_id)
        wanted = request(launch, subnet_id=subnet.subnet_id, security_group_id=groups[0]["GroupId"])
        wanted["DryRun"] = True  # nothing starts: EC2 answers with an error either way
        try:
            self._ec2.run_instances(**wanted)
        except ClientError as error:
            return self._answer(pool, error)
        return None

    def _probe(self, pool: Pool, image: Image, image_id: str) -> LaunchRequest:
        """The request as a launch makes it, with keys and a token that nobody will use."""
        now, pair = time.time(), ed25519_pair("doctor")
        wants = self._wants
        return LaunchRequest(
            job_id=_PROBE_JOB,
            owner=self._identity.owner,
            attempt=Attempt(1, pool, f"doctor-{secrets.token_hex(16)}", Phase.CLAIMED, now),
            image=image,
            image_id=image_id,
            disk_gib=max(image.root_gib, wants.disk_gib or 0),
            user_data=cloud_config(
                client_public_key=pair.public,
                host_private_key=pair.private_openssh,
                host_public_key=pair.public,
                boot_deadline_at=now + 1800,
            ),
            instance_profile=wants.profile,
            options=wants.options,
        )

    def _answer(self, pool: Pool, error: ClientError) -> DryRun:
        words = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
        match = _DENIED_ACTION.search(words)
        action, resource = match.groups() if match else (None, None)
        encoded = _ENCODED.search(words)
        if code_of(error) == "UnauthorizedOperation" and match is None and encoded:
            action, resource = self._decoded(encoded[1])
        return DryRun(pool, code_of(error), words[:_LONGEST], action, resource)

    def _decoded(self, encoded: str) -> tuple[str | None, str | None]:
        """What was refused, where the caller may read that."""
        try:
            client = self._clients.client("sts", self.region)
            told = json.loads(client.decode_authorization_message(EncodedMessage=encoded)["DecodedMessage"])
            return told["context"]["action"], told["context"].get("resource")
        except (ClientError, ValueError, KeyError, TypeError):
            return None, None


def _image_facts(kinds: tuple[str, ...], image: Image, reading: Reading[_Shown]) -> ImageFacts:
    found = reading.get()
    name = image.own_id or image.ssm_parameter
    return ImageFacts(name, kinds, found, None) if isinstance(found, Unread) else ImageFacts(name, kinds, *found)


def _ami(ec2: EC2Client, image_id: str, image: Image) -> Ami | None:
    shown = show(ec2, image_id)
    if shown is None:
        return None
    user = image.login_user or user_named_by(shown.get("Name", ""))
    root, state = shown.get("RootDeviceName", ""), shown.get("State", "available")
    return Ami(shown["Architecture"], root, root_gib(shown), state, user_told=user is not None)


def _subnet(shown: Any, tables: list[Any] | Unread) -> Subnet:
    subnet_id, vpc_id = shown["SubnetId"], shown["VpcId"]
    found = (subnet_id, vpc_id, shown["AvailabilityZoneId"], shown["AvailableIpAddressCount"])
    if isinstance(tables, Unread):
        return Subnet(*found, internet=tables, way_out=tables)
    own = [t for t in tables if any(a.get("SubnetId") == subnet_id for a in t["Associations"])]
    main = [t for t in tables if t["VpcId"] == vpc_id and any(a.get("Main") for a in t["Associations"])]
    table = next(iter(own or main), None)
    if table is None:
        return Subnet(*found, internet=False, way_out=False)
    ways = [r for r in table["Routes"] if r.get("DestinationCidrBlock") == "0.0.0.0/0" and r.get("State") == "active"]
    internet = any(str(route.get("GatewayId", "")).startswith("igw-") for route in ways)
    return Subnet(*found, route_table_id=table["RouteTableId"], internet=internet, way_out=bool(ways))


def _gateway(ec2: EC2Client, vpc_id: str) -> str | None:
    found = ec2.describe_internet_gateways(Filters=[{"Name": "attachment.vpc-id", "Values": [vpc_id]}])
    return next((gateway["InternetGatewayId"] for gateway in found["InternetGateways"]), None)


_NEEDED = {"Decrypt", "CreateGrant"}


def _described(kms: Any, key_id: str) -> Any:
    """The key's metadata; None where the region has no such key."""
    try:
        return kms.describe_key(KeyId=key_id)["KeyMetadata"]
    except ClientError as error:
        if code_of(error) == "NotFoundException":
            return None
        raise


def role_may_use(kms: Any, key_arn: str, role: str) -> bool:
    """Whether a grant, or else the key's policy, lets the spot role use the key."""
    for page in kms.get_paginator("list_grants").paginate(KeyId=key_arn):
        for grant in page["Grants"]:
            if grant.get("GranteePrincipal") == role and set(grant["Operations"]) >= _NEEDED:
                return True
    policy = json.loads(kms.get_key_policy(KeyId=key_arn, PolicyName="default")["Policy"])
    granted: set[str] = set()
    for statement in policy.get("Statement", ()):
        principal = statement.get("Principal", {})
        named = principal.get("AWS", []) if isinstance(principal, dict) else principal
        if statement.get("Effect") == "Allow" and role in ([named] if isinstance(named, str) else named):
            actions = statement.get("Action", [])
            granted |= {a.removeprefix("kms:") for a in ([actions] if isinstance(actions, str) else actions)}
    return "*" in granted or granted >= _NEEDED
