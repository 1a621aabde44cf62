"""The checks of one region: facts in, findings out, each with the pools that are out because of it. Pure.

A check is one function and one row of ``CHECKS``. Sources of the AWS facts: docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cloudtrain.pricing.model import CapacityType, Offering, Pool
from cloudtrain.provisioner.account import quotas
from cloudtrain.provisioner.account.facts import (
    Ami,
    DryRun,
    EbsKey,
    Finding,
    ImageFacts,
    Network,
    RegionFacts,
    Subnet,
    Unread,
    Wants,
    Why,
)
from cloudtrain.provisioner.account.findings import POLICY, fail, not_read, ok, warn

NOT_ENABLED = "not-opted-in"
SPOT_ROLE_ARN = "arn:aws:iam::{account}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
# What EC2 needs of a customer's key to start spot machines with volumes under it (EC2 user guide, "Spot Instances",
# customer managed keys; read 2026-11).
GRANT_OPERATIONS = (
    "Decrypt Encrypt GenerateDataKey GenerateDataKeyWithoutPlaintext CreateGrant DescribeKey ReEncryptFrom ReEncryptTo"
)

_NAMED = 3  # so many types are named where all is well

RegionCheck = Callable[[RegionFacts, Wants], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Row:
    """One check, and what it looks at, in one line."""

    name: str
    about: str
    run: RegionCheck


def enabled(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    """Regions that AWS opened since 2019 are off until the account's owner enables them."""
    region = facts.region
    if isinstance(facts.opt_in, Unread):
        yield not_read("region", region, facts.opt_in, needed=False)
    elif facts.opt_in == NOT_ENABLED:
        fix = (
            f"`aws account enable-region --region-name {region}` (some minutes), or leave it out of infra; "
            "console: https://console.aws.amazon.com/billing/home#/account"
        )
        yield fail("region", region, f"{region} is not enabled for this account", fix, wants.pools(region))
    else:
        yield ok("region", region, "enabled for this account")


def _rights(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    if facts.denied:
        what = f"you have no permission for {', '.join(denied.action for denied in facts.denied)}, which follow a job"
        yield fail("rights", facts.region, what, POLICY, wants.pools(facts.region))
    else:
        yield ok("rights", facts.region, "the calls that follow a job are allowed")


def _quotas(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    values = dict(facts.quotas)
    groups: dict[quotas.Quota | None, list[Offering]] = {}
    for offering in wants.in_region(facts.region):
        quota = quotas.quota_of(offering.pool.instance_type, offering.pool.capacity_type)
        groups.setdefault(quota, []).append(offering)
    for quota, offerings in groups.items():
        if quota is None:
            kinds = ", ".join(sorted({f"{o.pool.instance_type} {o.pool.capacity_type}" for o in offerings}))
            what = f"which quota counts {kinds} is not documented: it is not checked"
            page = f"https://{facts.region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
            yield warn("quota", facts.region, what, f"look at {page}")
        else:
            yield from _quota(facts.region, quota, values.get(quota.code), offerings)


def _quota(
    region: str, quota: quotas.Quota, value: float | Unread | None, offerings: list[Offering]
) -> Iterator[Finding]:
    if value is None:
        return
    if isinstance(value, Unread):
        if value.why is Why.DENIED:
            yield not_read("quota", region, value, needed=False)
        else:
            page = quotas.console_page(quota, region)
            yield warn("quota", region, f"quota {quota.name!r} is not known: {value.words}", f"look at {page}")
        return
    too_large = tuple(o for o in offerings if o.instance.vcpus > value)
    least = min(o.instance.vcpus for o in (too_large or offerings))
    have = f"{value:g} vCPUs"
    if not too_large:
        yield ok("quota", region, f"quota {quota.name!r} is {have}")
        return
    fix = f"`{quotas.increase_command(quota, least, region)}`, or {quotas.console_page(quota, region)}"
    pools = tuple(o.pool for o in too_large)
    if len(too_large) == len(offerings):
        yield fail("quota", region, f"quota {quota.name!r} ({quota.code}) is {have}, {least} needed", fix, pools)
    else:
        kinds = ", ".join(sorted({o.pool.instance_type for o in too_large}))
        what = f"quota {quota.name!r} ({quota.code}) is {have}, too few for {kinds}"
        yield warn("quota", region, what, fix, pools)


def _ebs_key(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    key, region = facts.ebs_key, facts.region
    if isinstance(key, Unread):
        yield not_read("volume-key", region, key, needed=False)
    elif not key.customer:
        yield ok("volume-key", region, "volumes are encrypted with AWS's own key")
    else:
        yield from _customer_key(key, facts, wants)


def _customer_key(key: EbsKey, facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    region, pools = facts.region, wants.pools(facts.region)
    spot = tuple(p for p in pools if p.capacity_type is CapacityType.SPOT)
    if not key.there:
        fix = "name one of this region, or `alias/NAME`, which each region may have; or leave the region out of infra"
        where = "resources.aws.kms_key" if key.named else "the default EBS key"
        yield fail("volume-key", region, f"{where} {key.key_id} is not a key of {region}", fix, pools)
        return
    what = f"volumes are encrypted {'' if key.named else 'by default '}with the customer key {key.key_id}"
    if isinstance(key.enabled, Unread):
        yield not_read("volume-key", region, key.enabled, needed=False)
    elif not key.enabled:
        other = "name another" if key.named else f"`aws ec2 reset-ebs-default-kms-key-id --region {region}`"
        fix = f"`aws kms enable-key --region {region} --key-id {key.key_id}`, or {other}"
        yield fail("volume-key", region, f"{what}, which is disabled: machines would die at their start", fix, pools)
        return
    if not spot:
        yield ok("volume-key", region, what)
    elif isinstance(key.spot_may_use, Unread):
        yield not_read("volume-key", region, key.spot_may_use, needed=False)
    elif key.spot_may_use:
        yield ok("volume-key", region, f"{what}, which EC2's spot role may use")
    else:
        fix = (
            f"`aws kms create-grant --region {region} --key-id {key.key_id} --grantee-principal "
            f"{_spot_role_of(key)} --operations {GRANT_OPERATIONS}`"
        )
        lacks = f"{what}, which EC2's spot role may not use: spot machines would die at their start"
        yield fail("volume-key", region, lacks, fix, spot)


def _spot_role_of(key: EbsKey) -> str:
    account = key.key_id.split(":")[4] if key.key_id.startswith("arn:") else "ACCOUNT"
    return SPOT_ROLE_ARN.format(account=account)


# ---- the network


def _network(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    network, region = facts.network, facts.region
    if isinstance(network, Unread):
        yield not_read("network", region, network, needed=True, pools=wants.pools(region))
    elif network.vpc_id is None:
        yield _no_vpc(region, wants)
    else:
        zones = tuple(dict.fromkeys(pool.zone_id for pool in wants.pools(region)))
        best = {zone: subnet for zone in zones if (subnet := _subnet(network, zone)) is not None}
        troubles = [*_bare(tuple(z for z in zones if z not in best), region, wants), *_full(best, region, wants)]
        yield from troubles
        routes = list(_routes(best, network, region, wants))
        yield from routes
        out = {pool.zone_id for finding in (*troubles, *routes) for pool in finding.pools}
        if sound := [zone for zone in zones if zone not in out]:
            yield ok("network", region, f"a subnet with free addresses in {', '.join(sound)}")


def _subnet(network: Network, zone_id: str) -> Subnet | None:
    here = [subnet for subnet in network.subnets if subnet.zone_id == zone_id]
    return max(here, key=lambda s: s.free_addresses, default=None)


def _of(zones: Iterable[str], region: str, wants: Wants) -> tuple[Pool, ...]:
    there = set(zones)
    return tuple(p for p in wants.pools(region) if p.zone_id in there)


def _no_vpc(region: str, wants: Wants) -> Finding:
    pools = wants.pools(region)
    if wants.options.subnet_ids:
        named = ", ".join(wants.options.subnet_ids)
        fix = f"name a subnet of {region} in resources.aws.subnet_ids, or leave the region out of infra"
        return fail("network", region, f"none of {named} lies in {region}", fix, pools)
    fix = f"`aws ec2 create-default-vpc --region {region}`, or name subnets in resources.aws.subnet_ids"
    return fail("network", region, f"{region} has no default VPC", fix, pools)


def _bare(zones: tuple[str, ...], region: str, wants: Wants) -> Iterator[Finding]:
    if not zones:
        return
    pools, named = _of(zones, region, wants), ", ".join(zones)
    if wants.options.subnet_ids:
        what = f"none of the named subnets lies in {named}"
        yield warn("network", region, what, "name a subnet of each zone in resources.aws.subnet_ids", pools)
        return
    fix = f"`aws ec2 create-default-subnet --region {region} --availability-zone-id {zones[0]}`"
    if len(zones) > 1:
        fix += f", and the same for {', '.join(zones[1:])}"
    yield fail("network", region, f"there is no default subnet in {named}", fix, pools)


def _full(best: Mapping[str, Subnet], region: str, wants: Wants) -> Iterator[Finding]:
    for zone_id, subnet in best.items():
        if subnet.free_addresses < 1:
            what = f"subnet {subnet.subnet_id} of {zone_id} has no free address"
            fix = "end what is not needed there, or name another subnet in resources.aws.subnet_ids"
            yield fail("network", region, what, fix, _of([zone_id], region, wants))


def _routes(best: Mapping[str, Subnet], network: Network, region: str, wants: Wants) -> Iterator[Finding]:
    """One finding for each route table: its one route mends all of its subnets."""
    tables: dict[str | None, list[Subnet]] = {}
    for subnet in best.values():
        if isinstance(subnet.internet, Unread):
            yield not_read("route", region, subnet.internet, needed=False)
            return
        if not (subnet.internet if wants.options.public_ip else subnet.way_out):
            tables.setdefault(subnet.route_table_id, []).append(subnet)
    for subnets in tables.values():
        zones = [subnet.zone_id for subnet in subnets]
        subject = f"the subnets of {', '.join(zones)} have" if len(zones) > 1 else f"the subnet of {zones[0]} has"
        if wants.options.public_ip:
            what = f"{subject} no route to an internet gateway: machines there could not be reached"
            fix = _route_fix(subnets[0], network, region)
            yield fail("route", region, what, fix, _of(zones, region, wants))
        else:
            what = f"{subject} no route out: machines there reach S3 by a gateway endpoint alone"
            yield warn("route", region, what, _endpoint_fix(subnets[0], region))


def _endpoint_fix(subnet: Subnet, region: str) -> str:
    return (
        f"`aws ec2 create-vpc-endpoint --region {region} --vpc-id {subnet.vpc_id} --service-name "
        f"com.amazonaws.{region}.s3 --route-table-ids {subnet.route_table_id}`, unless there is one"
    )


def _route_fix(subnet: Subnet, network: Network, region: str) -> str:
    to = f"--route-table-id {subnet.route_table_id} --destination-cidr-block 0.0.0.0/0"
    if network.gateway_id is not None:
        return f"`aws ec2 create-route --region {region} {to} --gateway-id {network.gateway_id}`"
    return (
        f"`aws ec2 create-internet-gateway --region {region}`, then with its id `aws ec2 attach-internet-gateway "
        f"--region {region} --vpc-id {subnet.vpc_id} --internet-gateway-id IGW` and `aws ec2 create-route "
        f"--region {region} {to} --gateway-id IGW`"
    )


# ---- what a machine boots, and where


def _images(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    for image in facts.images:
        offerings = tuple(o for o in wants.in_region(facts.region) if o.pool.instance_type in image.instance_types)
        yield from _image(image, facts.region, wants, offerings)


def _image(image: ImageFacts, region: str, wants: Wants, offerings: tuple[Offering, ...]) -> Iterator[Finding]:
    pools = tuple(o.pool for o in offerings)
    own = wants.options.image_id is not None
    other = "name another resources.aws.image_id" if own else "name an image in resources.aws.image_id"
    if isinstance(image.image_id, Unread):
        yield not_read("image", region, image.image_id, needed=True, pools=pools)
    elif image.image_id is None:
        lines = image.name.rpartition("/latest/")[0].rpartition("/")[0]
        listing = f"`aws ssm get-parameters-by-path --recursive --region {region} --path {lines}`"
        what = f"there is no image parameter {image.name}"
        yield fail("image", region, what, f"{listing} lists what there is; {other}, or leave the region out", pools)
    elif isinstance(image.ami, Unread):
        yield not_read("image", region, image.ami, needed=True, pools=pools)
    elif image.ami is None or image.ami.state != "available":
        state = "does not exist" if image.ami is None else f"is {image.ami.state}"
        what = f"image {image.image_id} {state} in {region}" + ("" if own else f" ({image.name})")
        yield fail("image", region, what, f"{other}, or leave the region out of infra", pools)
    else:
        yield from _ami(image, image.ami, region, wants, offerings)


def _ami(image: ImageFacts, ami: Ami, region: str, wants: Wants, offerings: tuple[Offering, ...]) -> Iterator[Finding]:
    what = f"image {image.image_id}"
    others = [o for o in offerings if o.instance.architecture != ami.architecture]
    if others:
        kinds = ", ".join(sorted({f"{o.pool.instance_type} ({o.instance.architecture})" for o in others}))
        fix = f"name an image for {others[0].instance.architecture} in resources.aws.image_id, or another type"
        out = tuple(o.pool for o in others)
        yield fail("image", region, f"{what} is for {ami.architecture}, not for {kinds}", fix, out)
    if wants.disk_gib is not None and wants.disk_gib < ami.root_gib:
        more = f"{what} needs {ami.root_gib} GiB, more than disk_size {wants.disk_gib}: the volume gets that much"
        yield warn("image", region, more, f"set resources.disk_size: {ami.root_gib}, which is billed as well")
    if not ami.user_told:
        fix = "set resources.aws.ssh_user to its login user"
        pools = tuple(o.pool for o in offerings)
        yield fail("image", region, f"{what} has a name that does not tell who logs in", fix, pools)
    elif not others:
        yield ok("image", region, f"{what} is there ({ami.architecture}, {ami.root_gib} GiB)")


def _offered(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    if isinstance(facts.offered, Unread):
        yield not_read("offered", facts.region, facts.offered, needed=False)
        return
    by_type: dict[str, list[Pool]] = {}
    for pool in wants.pools(facts.region):
        by_type.setdefault(pool.instance_type, []).append(pool)
    sound, nowhere = [], []
    for kind, pools in by_type.items():
        out = tuple(p for p in pools if (kind, p.zone_id) not in facts.offered)
        if not out:
            sound.append(kind)
        elif len(out) == len(pools):
            nowhere.append(kind)
        else:
            zones = ", ".join(dict.fromkeys(p.zone_id for p in out))
            what = f"{kind} is not offered in {zones}"
            yield warn("offered", facts.region, what, f"none needed: other zones have it; {_offers(kind, facts)}", out)
    if nowhere:
        out = tuple(p for p in wants.pools(facts.region) if p.instance_type in nowhere)
        what = f"{', '.join(nowhere)} {'is' if len(nowhere) == 1 else 'are'} not offered in the zones of the plan"
        yield fail(
            "offered", facts.region, what, f"another type or region (--region); {_offers(nowhere[0], facts)}", out
        )
    if sound:
        kinds = ", ".join(sound[:_NAMED]) + (f" and {len(sound) - _NAMED} more types" if len(sound) > _NAMED else "")
        yield ok("offered", facts.region, f"in each zone of the plan: {kinds}")


def _offers(kind: str, facts: RegionFacts) -> str:
    return (
        f"`aws ec2 describe-instance-type-offerings --region {facts.region} --location-type availability-zone-id "
        f"--filters Name=instance-type,Values={kind}` lists its zones"
    )


DRY_RUN = "dry-run"
NOT_EXPLAINED = "another type or zone"
NEW_PROFILE = "none needed: a launch asks again for some minutes"  # IAM is eventually consistent
NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
_ACCESS = ("UnauthorizedOperation", "AuthFailure", "AccessDenied")
_CARRIED_OUT = "DryRunOperation"


def _dry_runs(facts: RegionFacts, wants: Wants) -> Iterator[Finding]:
    denied: dict[str, list[Pool]] = {}
    for tried in facts.dry_runs:
        where, kind = f"{facts.region}/{tried.pool.zone_id}", f"{tried.pool.instance_type} {tried.pool.capacity_type}"
        if tried.code == _CARRIED_OUT:
            yield ok(DRY_RUN, where, f"EC2 would start {kind}")
        elif tried.code.startswith(_ACCESS) and tried.code != NO_SPOT_ROLE:
            same = [p for p in wants.pools(facts.region) if p.capacity_type is tried.pool.capacity_type]
            denied.setdefault(_denied(tried), []).extend(same)
        elif "iaminstanceprofile" in tried.words.replace(" ", "").lower():  # where there is none, its check says so
            what = f"EC2 does not know the instance profile yet, made a moment ago: {tried.words}"
            yield warn(DRY_RUN, where, what, NEW_PROFILE)
        elif tried.code != NO_SPOT_ROLE:  # the check of that role says it
            what = f"EC2 refuses {kind}: {tried.code}: {tried.words}"
            fix = quotas.UPGRADE if quotas.on_free_plan(tried.words) else NOT_EXPLAINED
            yield fail(DRY_RUN, where, what, fix, (tried.pool,))
    for what, pools in denied.items():
        yield fail(DRY_RUN, facts.region, what, POLICY, tuple(pools))


def _denied(tried: DryRun) -> str:
    action = tried.action or "ec2:RunInstances"
    on = f" on {tried.resource}" if tried.resource else ""
    return f"you have no permission for {action}{on}, which starting a machine needs"


CHECKS: tuple[Row, ...] = (
    Row("region", "the region is enabled for the account", enabled),
    Row("rights", "the calls that follow a job are allowed", _rights),
    Row("quota", "the vCPU quota of the family and market holds the machine", _quotas),
    Row("network", "a subnet with free addresses in each zone, reachable", _network),
    Row("image", "the image is there, fits the type, and its root volume fits", _images),
    Row("offered", "the type is offered in the zone", _offered),
    Row("volume-key", "the key that encrypts volumes is usable, by EC2's spot role too", _ebs_key),
    Row(DRY_RUN, "EC2 would carry out the very request", _dry_runs),
)
