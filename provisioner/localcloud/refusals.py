"""What EC2 refuses in a RunInstances request and moto takes. Pure over plain values: the caller looks things up.

Codes and texts: EC2 API reference (RunInstances, SpotMarketOptions, error codes), User Guide (user data, tags in
instance metadata, idempotency), botocore 1.44's service model; read 2026-11. Where AWS's text was not seen, it is ours.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudtrain.provisioner.localcloud import volumes

USER_DATA_BYTES = 16 * 1024
"""Raw, before base64 (User Guide, "Run commands at launch using user data")."""
TOKEN_CHARACTERS = 64
"""ASCII (Developer Guide, "Ensuring idempotency")."""
_METADATA_TAG_KEY = re.compile(r"[0-9A-Za-z\-_+=,.@:]{1,255}")
"""What a tag's key may hold where InstanceMetadataTags is enabled (User Guide, "View tags … using metadata")."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that can't be served."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A RunInstances request with what was looked up for it."""

    params: Mapping[str, Any]
    image_architecture: str
    root_device: str
    root_gib: int
    type_architectures: tuple[str, ...]
    exists: bool  # EC2 has the type somewhere
    offered: bool  # the type is offered in the zone
    zone: str
    spot_price: Decimal | None


def refusal(launch: Launch) -> Refusal | None:
    """Why EC2 would refuse the request; None where it would not."""
    checks = (_token, _count, _user_data, _tags, _market, _architecture, _volumes)
    return next((found for check in checks if (found := check(launch)) is not None), None)


def _token(launch: Launch) -> Refusal | None:
    token = str(launch.params.get("ClientToken") or "")
    if len(token) > TOKEN_CHARACTERS or not token.isascii():
        return Refusal("InvalidParameterValue", f"Client token must be at most {TOKEN_CHARACTERS} ASCII characters")
    return None


def _count(launch: Launch) -> Refusal | None:
    low, high = int(launch.params.get("MinCount") or 0), int(launch.params.get("MaxCount") or 0)
    if not 1 <= low <= high:
        return Refusal("InvalidParameterValue", f"MinCount {low} and MaxCount {high} must be at least 1, and in order")
    return None


def _user_data(launch: Launch) -> Refusal | None:
    text = launch.params.get("UserData")
    if text is None:
        return None
    try:
        raw = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return Refusal("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
    if len(raw) > USER_DATA_BYTES:
        return Refusal("InvalidParameterValue", f"User data is limited to {USER_DATA_BYTES} bytes")
    return None


def _tags(launch: Launch) -> Refusal | None:
    in_metadata = (launch.params.get("MetadataOptions") or {}).get("InstanceMetadataTags") == "enabled"
    for specification in launch.params.get("TagSpecifications") or ():
        resource = specification.get("ResourceType")
        if resource not in ("instance", "volume", "spot-instances-request", "network-interface", "elastic-gpu"):
            text = f"'{resource}' is not a valid taggable resource type for this operation."
            return Refusal("InvalidParameterValue", text)
        for tag in specification.get("Tags") or ():
            key = str(tag.get("Key") or "")
            if key.lower().startswith("aws:"):
                text = "Tag keys starting with 'aws:' are reserved for internal use"
                return Refusal("InvalidParameterValue", text)
            if not 1 <= len(key) <= 128 or len(str(tag.get("Value") or "")) > 256:
                return Refusal("InvalidParameterValue", f"Tag '{key}': keys have 1 to 128 characters, values up to 256")
            if resource == "instance" and in_metadata and not _fits_metadata(key):
                text = f"'{key}' is not a valid tag key. Tag keys must match pattern ({_METADATA_TAG_KEY.pattern}),"
                return Refusal("InvalidParameterValue", text + " and must not be a reserved name ('.', '..', '_index')")
    return None


def _fits_metadata(key: str) -> bool:
    return _METADATA_TAG_KEY.fullmatch(key) is not None and key not in (".", "..", "_index")


def _market(launch: Launch) -> Refusal | None:
    options = launch.params.get("InstanceMarketOptions") or {}
    market, spot = options.get("MarketType"), options.get("SpotOptions") or {}
    if market not in (None, "spot"):
        return Refusal("Unsupported", f"The local cloud serves no market of type {market}")
    one_time = spot.get("SpotInstanceType", "one-time") == "one-time"
    if not one_time and spot.get("InstanceInterruptionBehavior", "terminate") == "terminate":
        text = "Persistent Spot requests are supported only with the interruption behaviors stop and hibernate"
        return Refusal("InvalidParameterCombination", text)
    if not one_time:
        return Refusal("Unsupported", "The local cloud serves one-time Spot requests only")
    if spot.get("ValidUntil") is not None:
        return Refusal("InvalidParameterCombination", "ValidUntil is not supported for a one-time Spot request")
    return _price(launch, spot) if market == "spot" else None


def _price(launch: Launch, spot: Mapping[str, Any]) -> Refusal | None:
    if not launch.offered or launch.spot_price is None:
        return None  # the zone check says so
    if spot.get("MaxPrice") is not None and Decimal(str(spot["MaxPrice"])) < launch.spot_price:
        text = f"Your Spot request price of {spot['MaxPrice']} is lower than the minimum required Spot request"
        return Refusal("SpotMaxPriceTooLow", f"{text} fulfillment price of {launch.spot_price}.")
    return None


def _architecture(launch: Launch) -> Refusal | None:
    if not launch.exists:
        kind = launch.params.get("InstanceType")
        text = f"The following supplied instance types do not exist: [{kind}]"
        return Refusal("InvalidInstanceType.NotFound", text)
    if launch.type_architectures and launch.image_architecture not in launch.type_architectures:
        text = f"The architecture '{launch.type_architectures[0]}' of the specified instance type does not match the"
        text += f" architecture '{launch.image_architecture}' of the specified AMI. Specify an instance type and an AMI"
        return Refusal("InvalidParameterValue", f"{text} that have matching architectures, and try again.")
    if not launch.offered:
        kind = launch.params.get("InstanceType")
        text = f"Your requested instance type ({kind}) is not supported in your requested Availability Zone"
        return Refusal("Unsupported", f"{text} ({launch.zone}).")
    return None


def _volumes(launch: Launch) -> Refusal | None:
    mappings = launch.params.get("BlockDeviceMappings") or ()
    found = volumes.refused(mappings, launch.root_device, launch.root_gib)
    return None if found is None else Refusal(*found)
