"""What EC2 refuses in the volumes of a launch. Pure.

Sizes, IOPS and throughput: botocore 1.44's model of EbsBlockDevice (2026-11); the ratios of gp3: EBS User Guide,
"General Purpose SSD volumes", and the error that runs-on/runs-on#260 (2025-03) quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SIZES_GIB = {
    "gp2": (1, 16_384),
    "gp3": (1, 65_536),
    "io1": (4, 16_384),
    "io2": (4, 65_536),
    "st1": (125, 16_384),
    "sc1": (125, 16_384),
    "standard": (1, 1_024),
}
IOPS = {"gp3": (3_000, 80_000), "io1": (100, 64_000), "io2": (100, 256_000)}
THROUGHPUT_MIBPS = (125, 2_000)
GP3_IOPS = 3_000
"""What a gp3 volume has that asks for none."""
GP3_MIBPS_PER_IOPS = 0.25
GP3_IOPS_PER_GIB = 500
ROOT_DEVICES = ("/dev/sda1", "/dev/xvda")

Refused = tuple[str, str]
"""Code and message."""


def refused(mappings: Iterable[Mapping[str, Any]], root_device: str, root_gib: int) -> Refused | None:
    """Why a launch's BlockDeviceMappings would be refused; None where they would not.

    ``root_device``, ``root_gib``: the image's.
    """
    for mapping in mappings:
        device, ebs = mapping.get("DeviceName"), mapping.get("Ebs") or {}
        is_root = device == root_device
        if not is_root and device in ROOT_DEVICES:
            return "InvalidBlockDeviceMapping", f"{device} is not the root device of the image, which is {root_device}"
        size = ebs.get("VolumeSize")
        if is_root and size is not None and int(size) < root_gib:
            text = f"Volume of size {size}GB is smaller than snapshot of the image, expect size >= {root_gib}GB"
            return "InvalidBlockDeviceMapping", text
        if ebs.get("KmsKeyId") and not ebs.get("Encrypted"):
            return "InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set."
        kind = str(ebs.get("VolumeType") or ("gp3" if is_root else "gp2"))  # the image's own; the API's default
        found = _size(ebs, kind, from_image=is_root) or _speed(ebs, kind, root_gib if is_root else 0)
        if found is not None:
            return found
    return None


def _size(ebs: Mapping[str, Any], kind: str, *, from_image: bool) -> Refused | None:
    size = ebs.get("VolumeSize")
    if kind not in SIZES_GIB:
        return "InvalidParameterValue", f"Value ({kind}) for parameter volumeType is invalid."
    if size is None:
        text = "The request must contain the parameter size or snapshotId"
        return ("MissingParameter", text) if ebs and not from_image and not ebs.get("SnapshotId") else None
    low, high = SIZES_GIB[kind]
    if not low <= int(size) <= high:
        text = f"Volume of {size}GiB is invalid for volume type {kind}; must be between {low} and {high}GiB"
        return "InvalidParameterValue", text
    return None


def _speed(ebs: Mapping[str, Any], kind: str, image_gib: int) -> Refused | None:
    iops, throughput = ebs.get("Iops"), ebs.get("Throughput")
    if throughput is not None and kind != "gp3":
        return "InvalidParameterCombination", "throughput can only be specified for volumeType gp3."
    if iops is not None and kind not in IOPS:
        return "InvalidParameterCombination", f"The parameter iops is not supported for {kind} volumes."
    if kind in ("io1", "io2") and iops is None:
        return "MissingParameter", f"The parameter iops must be specified for {kind} volumes."
    if iops is not None:
        low, high = IOPS[kind]
        if not low <= int(iops) <= high:
            return "InvalidParameterValue", f"Volume iops of {iops} is invalid; must be between {low} and {high}."
    return _gp3(ebs, iops, throughput, image_gib) if kind == "gp3" else None


def _gp3(ebs: Mapping[str, Any], iops: Any, throughput: Any, image_gib: int) -> Refused | None:
    asked = int(iops or GP3_IOPS)
    if throughput is not None:
        low, high = THROUGHPUT_MIBPS
        if not low <= int(throughput) <= high:
            text = f"Throughput of {throughput} MiB/s is invalid; must be between {low} and {high} MiB/s."
            return "InvalidParameterValue", text
        ratio = int(throughput) / asked
        if ratio > GP3_MIBPS_PER_IOPS:
            text = f"Throughput (MiBps) to iops ratio of {ratio:.6f} is too high; maximum is {GP3_MIBPS_PER_IOPS:.6f}"
            return "InvalidParameterCombination", f"{text} MiBps per iops"
    size = int(ebs.get("VolumeSize") or image_gib)
    if iops is not None and size and asked > max(GP3_IOPS, size * GP3_IOPS_PER_GIB):
        text = f"Iops to volume size ratio of {asked / size:.6f} is too high; maximum is {GP3_IOPS_PER_GIB}"
        return "InvalidParameterCombination", text
    return None
