"""Takes away what `setup` made: only what carries its mark, and a bucket only when it is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from botocore.exceptions import ClientError

from cloudtrain.provisioner.account import setup_plan
from cloudtrain.provisioner.account.setup_plan import READ_POLICY, ROLE, SPOT_ROLE, SSM_POLICY
from cloudtrain.provisioner.adapters.account_bucket import BUCKET, bucket_tags
from cloudtrain.provisioner.adapters.account_parts import MACHINE_ROLE, PROFILE, SPOT_PART, entity
from cloudtrain.provisioner.adapters.account_setup import REFUSED, Account, eventually
from cloudtrain.provisioner.adapters.aws_errors import code_of, translated
from cloudtrain.provisioner.adapters.tagging import tags_of
from cloudtrain.provisioner.errors import CloudtrainError, RegionDenied
from cloudtrain.provisioner.names import TAG_JOB

_PAGES = 100  # of a thousand objects: enough to say that there are many
_NOT_OURS = "not made by setup"


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing that is there. ``remove`` is None where it is kept, for the reason in ``kept``."""

    what: str
    name: str
    remove: Callable[[], None] | None
    kept: str = ""


def removals(it: Account) -> tuple[Removal, ...]:
    """What is there, in the order in which it goes. Raises AccessError, CloudUnreachable."""
    found: list[Removal | None] = []
    for what, look in ((PROFILE, _profile), (MACHINE_ROLE, _role), (BUCKET, _bucket), (SPOT_PART, _spot)):
        with translated(f"looking at the {what}"):
            found.append(look(it))
    return tuple(removal for removal in found if removal is not None)


def take_away(removal: Removal) -> str | None:
    """Remove one thing; returns what went wrong, in one line. May be repeated."""
    if removal.remove is None:
        return None
    try:
        with translated(f"{removal.what} {removal.name}"):
            removal.remove()
    except CloudtrainError as error:
        return str(error)
    return None


def machines(it: Account) -> tuple[str, ...]:
    """Machines of jobs that are not gone, in any region that is enabled: "i-… in us-east-1 (job …)".

    One call for each region, some at once. Raises AccessError, CloudUnreachable.
    """
    with translated("looking for regions"):
        shown = it.clients.client("ec2", it.wanted.region).describe_regions()["Regions"]
    regions = [region["RegionName"] for region in shown]
    if it.clients.cloud == "local":
        regions = [it.wanted.region]  # each region that is asked takes the embedded cloud a second to make
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda region: _machines_if_open(it, region), regions))
    return tuple(name for names in found for name in names)


def _machines_if_open(it: Account, region: str) -> list[str]:
    """None in a region that an organization has closed: nobody who may not look at machines there can launch them."""
    try:
        return _machines_in(it, region)
    except RegionDenied:
        if region == it.wanted.region:
            raise
        return []


def _machines_in(it: Account, region: str) -> list[str]:
    with translated(f"looking for machines in {region}"):
        pages = (
            it.clients.client("ec2", region)
            .get_paginator("describe_instances")
            .paginate(Filters=[{"Name": "tag-key", "Values": [TAG_JOB]}])
        )
        instances = [i for page in pages for group in page["Reservations"] for i in group["Instances"]]
    return [
        f"{i['InstanceId']} in {region} (job {tags_of(i).get(TAG_JOB)})"
        for i in instances
        if i["State"]["Name"] not in ("terminated", "shutting-down")
    ]


def _profile(it: Account) -> Removal | None:
    found = entity(lambda: it.iam.get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"])
    if found is None:
        return None
    if not setup_plan.is_ours(tags_of(found)):
        return Removal(PROFILE, ROLE, None, _NOT_OURS)
    elsewhere = _other_regions(it)
    if elsewhere:
        return Removal(PROFILE, ROLE, None, f"machines of {', '.join(elsewhere)} need it")

    def remove() -> None:
        for role in found["Roles"]:
            it.iam.remove_role_from_instance_profile(InstanceProfileName=ROLE, RoleName=role["RoleName"])
        it.iam.delete_instance_profile(InstanceProfileName=ROLE)

    return Removal(PROFILE, ROLE, _gone(remove))


def _role(it: Account) -> Removal | None:
    found = entity(lambda: it.iam.get_role(RoleName=ROLE)["Role"])
    if found is None:
        return None
    if not setup_plan.is_ours(tags_of(found)):
        return Removal(MACHINE_ROLE, ROLE, None, _NOT_OURS)
    if _other_regions(it):
        return Removal("role's bucket rights", it.wanted.role_policy, _gone(lambda: _drop(it, [it.wanted.role_policy])))
    ours = [it.wanted.role_policy, READ_POLICY, SSM_POLICY]
    foreign = [name for name in _inline(it) if name not in ours] + _attached(it)
    if foreign:
        return Removal(MACHINE_ROLE, ROLE, None, f"it has {', '.join(foreign)}, which setup did not give it")

    def remove() -> None:
        _drop(it, [name for name in _inline(it) if name in ours])
        # The profile that it was taken out of a moment ago may still count (IAM is eventually consistent).
        eventually(lambda: it.iam.delete_role(RoleName=ROLE), "DeleteConflict")

    return Removal(MACHINE_ROLE, ROLE, _gone(remove))


def _drop(it: Account, names: Iterable[str]) -> None:
    for name in names:
        it.iam.delete_role_policy(RoleName=ROLE, PolicyName=name)


def _inline(it: Account) -> list[str]:
    return entity(lambda: list(it.iam.list_role_policies(RoleName=ROLE)["PolicyNames"])) or []


def _attached(it: Account) -> list[str]:
    attached = it.iam.list_attached_role_policies(RoleName=ROLE)["AttachedPolicies"]
    return [policy["PolicyName"] for policy in attached]


def _other_regions(it: Account) -> list[str]:
    """Regions whose bucket the role has rights to, but for this one."""
    regions = (setup_plan.region_of(name) for name in _inline(it))
    return [region for region in regions if region is not None and region != it.wanted.region]


def _bucket(it: Account) -> Removal | None:
    name = it.wanted.bucket
    if it.hidden is not None:
        return Removal(BUCKET, name, None, it.hidden)
    tags = bucket_tags(it)
    if tags is None:
        return None
    if not setup_plan.is_ours(tags):
        return Removal(BUCKET, name, None, _NOT_OURS)
    kept = _contents(it)
    return Removal(BUCKET, name, None if kept else lambda: it.s3.delete_bucket(**it.mine), kept)


def _contents(it: Account) -> str:
    """How much is in the bucket; "" where it is empty."""
    count = size = 0
    pages = it.s3.get_paginator("list_objects_v2").paginate(**it.mine, PaginationConfig={"MaxItems": _PAGES * 1000})
    for page in pages:
        objects = page.get("Contents", ())
        count += len(objects)
        size += sum(item["Size"] for item in objects)
    more = "at least " if count >= _PAGES * 1000 else ""
    noun = "object" if count == 1 else "objects"
    if not count:
        return ""
    away = f"`aws s3 rb s3://{it.wanted.bucket} --force` deletes it with them"
    return f"it holds {more}{count:,} {noun}, {size / 1e6:,.1f} MB; {away}"


def _spot(it: Account) -> Removal | None:
    try:
        found = entity(lambda: it.iam.get_role(RoleName=SPOT_ROLE))
    except ClientError as error:
        if code_of(error) not in REFUSED:
            raise
        return None
    kept = "AWS's own, for all spot machines of the account"
    return Removal(SPOT_PART, SPOT_ROLE, None, kept) if found is not None else None


def _gone(remove: Callable[[], None]) -> Callable[[], None]:
    """What somebody else removed a moment ago is removed."""

    def call() -> None:
        try:
            remove()
        except ClientError as error:
            if code_of(error) != "NoSuchEntity":
                raise

    return call
