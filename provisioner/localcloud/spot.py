"""The spot calls of the embedded cloud: where a launch goes, its request's status, and the price history."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from moto.core.parse import default_timestamp_parser
from moto.ec2.exceptions import EC2ClientError

from cloudtrain.provisioner.localcloud.state import Life, LocalState, moment

PAGE = 1000
"""DescribeSpotPriceHistory's largest page (EC2 API reference, 2026-11)."""
_HISTORY_S = 90 * 24 * 3600.0
"""How far back it reaches (the same page)."""
PRODUCT = "Linux/UNIX"
_PLAIN = re.compile(r"[^*?\[\\]*")


def requested_zone(backend: Any, params: dict[str, Any]) -> tuple[Any, bool]:
    """moto's zone for a RunInstances request, and whether the request named it. A zone id is turned into the name
    that moto reads."""
    placement = params.get("Placement") or {}
    interfaces = params.get("NetworkInterfaces") or [{}]
    subnet_id = params.get("SubnetId") or interfaces[0].get("SubnetId")
    zones = backend.describe_availability_zones()
    if subnet_id:
        name = backend.get_subnet(subnet_id).availability_zone
    elif placement.get("AvailabilityZoneId"):
        names = [zone.name for zone in zones if zone.zone_id == placement["AvailabilityZoneId"]]
        if not names:
            text = f"Invalid availability-zone-id: [{placement['AvailabilityZoneId']}]"
            raise EC2ClientError("InvalidParameterValue", text)
        name = names[0]
        params["Placement"] = {**placement, "AvailabilityZone": name}
    elif placement.get("AvailabilityZone"):
        name = placement["AvailabilityZone"]
    else:
        return zones[0], False
    zone = next((zone for zone in zones if zone.name == name), None)
    if zone is None:
        text = f"Invalid availability zone: [{name}]"
        raise EC2ClientError("InvalidParameterValue", text)
    return zone, True


def _document(life: Life) -> dict[str, Any]:
    status, machine = life.spot, life.machine
    assert status is not None
    tags = machine.ec2_backend.describe_tags(filters={"resource-id": [status.id]})
    return {
        "SpotInstanceRequestId": status.id,
        "State": status.state,
        "Status": {"Code": status.code, "Message": status.message, "UpdateTime": moment(status.updated_at)},
        "Type": "one-time",
        "CreateTime": moment(status.created_at),
        "InstanceId": life.instance_id,
        "InstanceInterruptionBehavior": "terminate",
        "LaunchedAvailabilityZone": machine.placement.zone,
        "ProductDescription": PRODUCT,
        "LaunchSpecification": {
            "ImageId": machine.image_id,
            "InstanceType": machine.instance_type,
            "Placement": {"AvailabilityZone": machine.placement.zone},
        },
        "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in tags],
    }


def requests(state: LocalState, region: str, ids: list[str], filters: dict[str, list[str]]) -> list[dict[str, Any]]:
    """DescribeSpotInstanceRequests, as documents. Raises InvalidSpotInstanceRequestID.NotFound."""
    found = [_document(life) for life in state.lives.values() if life.spot and life.region == region]
    if ids:
        unknown = set(ids) - {document["SpotInstanceRequestId"] for document in found}
        if unknown:
            text = f"The spot instance request ID '{sorted(unknown)[0]}' does not exist"
            raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", text)
        found = [document for document in found if document["SpotInstanceRequestId"] in ids]
    return [d for d in found if all(_passes(d, name, values) for name, values in filters.items())]


def _passes(document: dict[str, Any], name: str, values: list[str]) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in document["Tags"]}
    plain = {
        "state": document["State"],
        "status-code": document["Status"]["Code"],
        "instance-id": document["InstanceId"],
        "spot-instance-request-id": document["SpotInstanceRequestId"],
        "launched-availability-zone": document["LaunchedAvailabilityZone"],
    }
    if name.startswith("tag:"):
        have = [tags[name[4:]]] if name[4:] in tags else []
    elif name == "tag-key":
        have = list(tags)
    elif name in plain:
        have = [plain[name]]
    else:
        raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return any(matches(value, values) for value in have)


def matches(value: str, patterns: Collection[str]) -> bool:
    """Whether a value is one of a filter's: most name no pattern, and there may be hundreds."""
    return value in patterns or any(
        fnmatch.fnmatchcase(value, pattern) for pattern in patterns if not _PLAIN.fullmatch(pattern)
    )


def cancel(state: LocalState, region: str, ids: list[str]) -> list[dict[str, str]]:
    """CancelSpotInstanceRequests: the request ends, the machine runs on (EC2 API reference)."""
    known = {life.spot.id: life.spot for life in state.lives.values() if life.spot and life.region == region}
    unknown = set(ids) - set(known)
    if unknown:
        text = f"The spot instance request ID '{sorted(unknown)[0]}' does not exist"
        raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", text)
    for request_id in ids:
        status = known[request_id]
        if status.state == "active":
            status.state, status.updated_at = "cancelled", state.clock()
            status.code = "request-canceled-and-instance-running"
            status.message = "Your Spot request is canceled, but your instance is still running."
    return [{"SpotInstanceRequestId": i, "State": "cancelled"} for i in ids]


def prices(state: LocalState, response: Any) -> tuple[list[dict[str, Any]], str]:
    """DescribeSpotPriceHistory: one page, newest first within each pool, and the next page's token ("" at the end).

    Without StartTime the history reaches back an hour (AWS's default is longer; it would be the same walk).
    """
    filters = response._filters_from_querystring()
    products = response._get_param("ProductDescriptions") or filters.get("product-description") or [PRODUCT]
    now = state.clock()
    end = min(_time(response._get_param("EndTime"), now), now)
    start = max(_time(response._get_param("StartTime"), now - 3600), now - _HISTORY_S)
    start = min(start, end)
    rows: list[dict[str, Any]] = []
    if any(product in (PRODUCT, f"{PRODUCT} (Amazon VPC)") for product in products):
        for kind, zone in _pools(state, response, filters):
            rows += [
                {
                    "InstanceType": kind,
                    "ProductDescription": PRODUCT,
                    "SpotPrice": f"{quote.usd_per_hour:f}",
                    "AvailabilityZone": zone.name,
                    "AvailabilityZoneId": zone.zone_id,
                    "Timestamp": moment(quote.at),
                }
                for quote in state.market.history(kind, zone.zone_id, start, end)
            ]
    first = int(response._get_param("NextToken") or 0)
    size = min(int(response._get_param("MaxResults") or PAGE), PAGE)
    rest = first + size
    return rows[first:rest], str(rest) if rest < len(rows) else ""


def _pools(state: LocalState, response: Any, filters: dict[str, list[str]]) -> list[tuple[str, Any]]:
    kinds = response._get_param("InstanceTypes") or filters.get("instance-type")
    names = filters.get("availability-zone") or _listed(response._get_param("AvailabilityZone"))
    ids = filters.get("availability-zone-id") or _listed(response._get_param("AvailabilityZoneId"))
    zones = {zone.zone_id: zone for zone in response.ec2_backend.describe_availability_zones()}
    return [
        (kind, zones[zone_id])
        for kind, zone_id in state.market.pools()
        if zone_id in zones
        and (not kinds or any(fnmatch.fnmatchcase(kind, pattern) for pattern in kinds))
        and (not ids or zone_id in ids)
        and (not names or zones[zone_id].name in names)
    ]


def _listed(value: str | None) -> list[str]:
    return [value] if value else []


def _time(value: Any, default: float) -> float:
    if value is None:
        return default
    parsed = value if isinstance(value, datetime) else default_timestamp_parser(str(value))
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
