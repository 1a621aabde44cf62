"""``resources`` of a job file: its alternatives, the disk, and how AWS makes and reaches the machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cloudtrain.pricing.accelerators import AcceleratorError, canonical, combine, parse
from cloudtrain.pricing.requirements import Amount
from cloudtrain.provisioner import proxy
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile.keys import Section
from cloudtrain.provisioner.jobfile.values import is_region
from cloudtrain.provisioner.jobfile.yamlnodes import Source
from cloudtrain.provisioner.spec import AwsOptions, Resources

MAX_ALTERNATIVES = 20  # each is planned over the whole catalogue

# EC2's EbsBlockDevice for gp3: 1 to 65,536 GiB, 125 to 2,000 MiB/s (API reference and botocore 1.44, read 2026-11).
MAX_DISK_GIB = 65_536
MIN_THROUGHPUT, MAX_THROUGHPUT = 125, 2_000

_SIZE = re.compile(r"([0-9]{1,6}) ?(GB|GiB|TB|TiB)(\+?)", re.IGNORECASE)
_ZONE_ID = re.compile(r"[a-z]{2,5}[0-9](-[a-z]{3}[0-9])?-az[0-9]{1,2}")
_IMAGE = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")
_SUBNET = re.compile(r"subnet-([0-9a-f]{8}|[0-9a-f]{17})")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # useradd(8)
# KMS API reference, CreateAlias and KeyListEntry; aliases of AWS's own are none of a customer's.
_KMS_KEY = re.compile(
    r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:)?alias/(?!aws/)[\w/-]{1,250}"
    r"|arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]{1,64}",
    re.ASCII,
)
_PROFILE = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)  # IAM API reference, CreateInstanceProfile

_PLACE_FORM = "write aws, aws/REGION or aws/REGION/ZONE-ID, such as aws/us-east-1 or aws/us-east-1/use1-az4"


def read(source: Source, node: Node) -> dict[str, Any]:
    """What the section says, as fields of ``JobSpec``. Raises UsageError."""
    found: dict[str, Any] = {}
    common = _nodes(source, node, job_keys.RESOURCES)
    if "disk_size" in common:
        found["disk_size_gib"] = _disk_gib(source, common.pop("disk_size"))
    if "aws" in common:
        found["aws"] = _aws(source, common.pop("aws"))
    if "disk_tier" in common:
        found["aws"] = _with_tier(source, common.pop("disk_tier"), found.get("aws", AwsOptions()))
    lists = {key: common.pop(key) for key in ("any_of", "ordered") if key in common}
    if len(lists) > 1:
        raise source.error(lists["ordered"], "any_of and ordered are both there: keep one")
    base = _resources(source, common)
    if not lists:
        _must_name_a_machine(source, base, node)
        return {**found, "resources": (base,)}
    ((key, listed),) = lists.items()
    found |= {"resources": _alternatives(source, key, listed, common), "resources_ordered": key == "ordered"}
    return found


def _nodes(source: Source, node: Node, section: Section) -> dict[str, Node]:
    served = (*section.served, *section.aliases)
    return dict(source.known_entries(node, section.what, served, lambda key: job_keys.refusal(section, key)))


def _alternatives(source: Source, key: str, node: Node, common: Mapping[str, Node]) -> tuple[Resources, ...]:
    """Each entry of the list with what stands beside the list where the entry says nothing else."""
    section = next(s for s in job_keys.ALTERNATIVES if s.path.endswith(key))
    items = source.sequence(node, key)
    if len(items) > MAX_ALTERNATIVES:
        raise source.error(node, f"{key} has {len(items)} entries: at most {MAX_ALTERNATIVES}")
    lines: dict[Resources, int] = {}
    for item in items:
        resources = _resources(source, {**common, **_nodes(source, item, section)})
        _must_name_a_machine(source, resources, item)
        if resources in lines:
            raise source.error(item, f"this entry of {key} asks for the same as line {lines[resources]}: keep one")
        lines[resources] = item.start_mark.line + 1
    return tuple(lines)


def _must_name_a_machine(source: Source, resources: Resources, node: Node) -> None:
    if resources.accelerators is None and resources.instance_type is None:
        raise source.error(node, "no GPU asked for: set resources.accelerators, such as `accelerators: T4:1`")


def _resources(source: Source, nodes: Mapping[str, Node]) -> Resources:
    found: dict[str, Any] = {"infra": _infra(source, nodes)}
    for key, value in nodes.items():
        match key:
            case "accelerators":
                found[key] = _accelerators(source, value)
            case "use_spot":
                if isinstance(value, ScalarNode) and value.value == "auto":
                    raise source.error(value, "`use_spot: auto` is not supported yet: write true or false")
                found[key] = source.boolean(value, key)
            case "cpus":
                found[key] = _amount(source, value, key, source.text_or_number(value, key))
            case "memory":
                text = source.text_or_number(value, f"{key} (GiB)")
                size = _SIZE.fullmatch(text)
                found[key] = _amount(source, value, key, f"{_gib(size)}{size[3]}" if size else text)
            case "max_hourly_cost":
                found["max_hourly_cost_usd"] = source.positive_decimal(value, key, "USD per hour")
            case "instance_type":
                found[key] = source.text(value, key)
    return Resources(**found)


def _accelerators(source: Source, node: Node) -> str:
    """The canonical text of a scalar, a mapping (any of) or a list (in order)."""
    what = "accelerators"
    try:
        if isinstance(node, MappingNode):
            return canonical(combine([_counted(source, k, v) for k, v in source.entries(node, what)], ordered=False))
        if isinstance(node, SequenceNode):
            return canonical(combine([source.text(item, what) for item in node.value], ordered=True))
        return canonical(parse(source.text(node, what)))
    except AcceleratorError as error:
        raise source.error(node, str(error)) from error


def _counted(source: Source, key: ScalarNode, value: Node) -> str:
    if isinstance(value, ScalarNode) and value.value == "" and value.style is None:
        return str(key.value)  # {A100:8} without a blank: YAML reads a key with no value
    return f"{key.value}:{source.integer(value, f'the count of {key.value}', minimum=1)}"


def _infra(source: Source, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """The places of ``infra``, or of SkyPilot's older ``cloud``, ``region`` and ``zone``."""
    older = [nodes[key] for key in ("cloud", "region", "zone") if key in nodes]
    if "infra" not in nodes:
        if not older:
            return ()
        if "zone" in nodes and "region" not in nodes:
            raise source.error(nodes["zone"], f"zone without region: {_PLACE_FORM}, under infra")
        parts = {key: source.text(nodes[key], key) for key in ("cloud", "region", "zone") if key in nodes}
        return (_place(source, older[-1], "/".join([parts.pop("cloud", "aws").lower(), *parts.values()])),)
    if older:
        raise source.error(older[0], "infra says where already: take cloud, region and zone out")
    places = [_place(source, item, source.text(item, "infra")) for item in source.items(nodes["infra"])]
    if not places:
        raise source.error(nodes["infra"], "infra is empty: write aws or aws/REGION, or take it out")
    return tuple(dict.fromkeys(places))


def _place(source: Source, node: Node, text: str) -> str:
    cloud, *inside = text.split("/")
    region, zone = (*inside, "", "")[:2]
    if cloud == "local":
        raise source.error(node, "infra names a cloud's places: for this machine use `--cloud local`")
    if cloud != "aws":
        problem = f"write aws/{text}" if is_region(cloud) else f"{cloud!r} is not supported yet: {_PLACE_FORM}"
        raise source.error(node, f"infra {text!r}: {problem}")
    if re.fullmatch(rf"{re.escape(region)}[a-z]", zone):
        raise source.error(
            node,
            f"infra {text!r}: {zone} is another zone in each account: write aws/{region}, or the zone's id "
            f"(`aws ec2 describe-availability-zones --region {region}`)",
        )
    whole = len(inside) <= 2 and (not inside or is_region(region)) and (len(inside) < 2 or _ZONE_ID.fullmatch(zone))
    if not whole:
        raise source.error(node, f"infra {text!r}: {_PLACE_FORM}")
    return text


def _amount(source: Source, node: Node, key: str, text: str) -> str:
    try:
        return str(Amount.parse(text))
    except ValueError as error:
        raise source.error(node, f"{key}: {error}") from error


def _gib(size: re.Match[str]) -> int:
    """SkyPilot's units are powers of two: its GB is a GiB."""
    return int(size[1]) * (1024 if size[2].upper().startswith("T") else 1)


def _disk_gib(source: Source, node: Node) -> int:
    size = _SIZE.fullmatch(node.value) if isinstance(node, ScalarNode) else None
    if size is None or size[3]:
        return source.integer(node, "disk_size (GiB)", minimum=1, maximum=MAX_DISK_GIB)
    if not 1 <= _gib(size) <= MAX_DISK_GIB:
        raise source.error(node, f"disk_size must be from 1 to {MAX_DISK_GIB} GiB, not {size[0]}")
    return _gib(size)


def _with_tier(source: Source, node: Node, aws: AwsOptions) -> AwsOptions:
    """SkyPilot's ``disk_tier``: gp3 as it comes (125 MiB/s), or with the 400 MB/s that its reference gives for high."""
    tier = source.text(node, "disk_tier").lower()
    if tier in ("low", "medium"):
        return aws
    if tier not in ("high", "best"):
        raise source.error(node, f"disk_tier {tier!r} is not supported: ask for MiB/s with aws.volume_throughput")
    if aws.volume_throughput is not None:
        raise source.error(node, "aws.volume_throughput says how fast the disk is: take disk_tier out")
    return replace(aws, volume_throughput=400)


def _aws(source: Source, node: Node) -> AwsOptions:
    found: dict[str, Any] = {}
    nodes = _nodes(source, node, job_keys.AWS)
    for key, value in nodes.items():
        match key:
            case "image_id":
                found[key] = _matching(source, value, key, _IMAGE, "an image's id, such as ami-0123456789abcdef0")
            case "ssh_user":
                found[key] = _matching(source, value, key, _USER, "a login name, such as ubuntu")
            case "subnet_ids":
                found[key] = _subnets(source, value)
            case "public_ip":
                found[key] = source.boolean(value, key)
            case "ssh_proxy":
                found[key] = _proxy(source, value)
            case "iam_instance_profile":
                found[key] = _matching(source, value, key, _PROFILE, "a profile's name, not its ARN")
            case "kms_key":
                found[key] = _matching(source, value, key, _KMS_KEY, "alias/NAME or a key's ARN in AWS KMS")
            case "volume_throughput":
                found[key] = source.integer(value, f"{key} (MiB/s)", minimum=MIN_THROUGHPUT, maximum=MAX_THROUGHPUT)
    if found.get("public_ip") is False and "ssh_proxy" not in nodes:
        raise source.error(
            nodes["public_ip"],
            "public_ip: false needs ssh_proxy, which says how the machine is reached: a bastion (USER@HOST), ssm, "
            "instance-connect, or direct (a VPN, or from inside the VPC)",
        )
    return AwsOptions(**found)


def _matching(source: Source, node: Node, key: str, form: re.Pattern[str], want: str) -> str:
    text = source.text(node, key)
    if not form.fullmatch(text):
        raise source.error(node, f"{key} {text!r} is not {want}")
    return text


def _subnets(source: Source, node: Node) -> tuple[str, ...]:
    want = "a subnet's id, such as subnet-0123456789abcdef0"
    items = source.items(node)
    found = [_matching(source, item, "subnet_ids", _SUBNET, want) for item in items]
    if not found:
        raise source.error(node, "subnet_ids is empty: name a subnet, or take it out")
    for number, subnet in enumerate(found):
        if subnet in found[:number]:
            raise source.error(items[number], f"{subnet} is named twice: keep one")
    return tuple(found)


def _proxy(source: Source, node: Node) -> str | None:
    """None stands for ``direct``: straight to the machine's address, public or private."""
    text = source.text(node, "ssh_proxy")
    if text == "direct":
        return None
    try:
        proxy.parse(text)
    except UsageError as error:
        raise source.error(node, f"{error}, or direct") from error
    return text
