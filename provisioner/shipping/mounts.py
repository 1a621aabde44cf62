"""What ``file_mounts`` come to: manifests, and estimates of time and money. Pure.

A manifest's form is ``trainer.contract.Mount``'s. What every attempt gets is fixed when it is written: files of this
computer by their SHA-256, objects of a bucket by their ETags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudtrain.pricing import transfer
from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.names import MOUNTS
from cloudtrain.provisioner.spec import FileMount
from cloudtrain.trainer.contract import Mount

LIMIT_FILES = 1_000_000  # a manifest of some 150 MB, which a small machine still reads
NAME_BYTES = 255  # of one part of a path, on Linux's file systems
ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")  # not to be read before they are restored (S3 User Guide, "Archived objects")
FILE_MODE = 0o644  # of what comes from a bucket, which knows no modes

# Estimates of one machine's restore. A gp3 volume gives 125 MiB/s unless more is bought (EBS User Guide, "General
# Purpose SSD volumes", 2026-11). With its own NVMe the agent is the limit: 16 connections of one Python process; our
# assumption, below what AWS's own tools reach on such machines. So are the requests that it makes in a second.
GP3_BYTES_PER_S = 125 * 2**20
NVME_BYTES_PER_S = 400 * 10**6
FILES_PER_S = 200
# From an office or home, assumed: 100 Mbit/s up. What the upload really does is shown while it runs.
UPLOAD_BYTES_PER_S = 12_500_000


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object as its bucket lists it."""

    key: str
    size: int
    etag: str
    storage_class: str = "STANDARD"


@dataclass(frozen=True, slots=True)
class Sized:
    """A mount, looked at. ``region``: where a bucket's data lies; None: data of this computer, which will lie in our
    bucket, or not known. ``trouble``: why the size is not known, in one line; then files and bytes are 0."""

    mount: FileMount
    files: int = 0
    bytes: int = 0
    omitted: tuple[str, ...] = ()
    region: str | None = None
    trouble: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is uploaded from this computer."""
        return not is_s3(self.mount.source)


def is_s3(source: str) -> bool:
    """Whether the source is a bucket's, and not a path."""
    return source.startswith("s3://")


def parse_s3(source: str) -> tuple[str, str]:
    """Bucket, and prefix without slashes at its ends, of "s3://BUCKET[/PREFIX]"."""
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")


def describe_objects(source: str, objects: Sequence[S3Object], region: str) -> dict[str, Any]:
    """The manifest of what a bucket's prefix holds: the object of that very name, or all below it.

    Raises UsageError, naming the object, for what can't be files of one folder, or is archived.
    """
    bucket, prefix = parse_s3(source)
    single = next((item for item in objects if item.key == prefix), None)
    below = [item for item in objects if item.key.startswith(f"{prefix}/" if prefix else "")]
    if single is not None and not below:
        folder, slash, _ = prefix.rpartition("/")
        start, chosen = folder + slash, [single]
    else:
        start = f"{prefix}/" if prefix else ""
        chosen = [item for item in below if not (item.key.endswith("/") and item.size == 0)]  # made by the console
    if not chosen:
        holds = "no object" if not below else "empty folders alone"
        raise UsageError(f"{source} holds {holds}: correct the bucket or prefix in file_mounts")
    if len(chosen) > LIMIT_FILES:
        raise UsageError(
            f"{source} holds {len(chosen):,} objects, more than {LIMIT_FILES:,}: pack them into larger files (tar)"
        )
    rows = []
    folders = {part for item in chosen for part in _folders(item.key[len(start) :])}
    for item in chosen:
        path = item.key[len(start) :]
        _check(f"s3://{bucket}/{item.key}", path, folders)
        if item.storage_class in ARCHIVED:
            raise UsageError(
                f"s3://{bucket}/{item.key} is archived ({item.storage_class}): restore it first, with "
                "`aws s3api restore-object`"
            )
        rows.append({"path": path, "mode": FILE_MODE, "size": item.size, "etag": item.etag})
    lone = single is not None and not below
    where = {"bucket": bucket, "region": region, "prefix": start}
    return {"v": 1, "source": source, "single": lone, **where, "files": rows}


def _folders(path: str) -> Iterable[str]:
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _check(name: str, path: str, folders: set[str]) -> None:
    parts = path.split("/")
    why = None
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        why = "can't be a file's name"
    elif any(len(part.encode()) > NAME_BYTES for part in parts):
        why = f"has a part of more than {NAME_BYTES} bytes, which no file's name may have"
    elif path in folders:
        why = "would have to be a file and a folder"
    if why is not None:
        raise UsageError(f"{name!r} {why}: choose another prefix, or rename the object")


def pack(document: dict[str, Any], target: str, job_id: str, number: int) -> tuple[Mount, bytes]:
    """A mount as the machine is told of it, and its manifest's bytes, which go under its key."""
    data = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    sizes = [row["size"] for row in document["files"] if "size" in row]
    key = f"{MOUNTS}{job_id}/{number}.json"
    digest = hashlib.sha256(data).hexdigest()
    return Mount(target, key, digest, sum(sizes), len(sizes), document.get("region")), data


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The mounts of a plan, and what they cost."""

    sized: tuple[Sized, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the mounts of a plan cost in time and money. Seconds and USD; None: not known.

    ``transfer_usd``: of one machine, in the region that is tried first; ``elsewhere_usd``: the most that a machine of
    another region of the plan costs, None where there is none.
    """

    restore_s: float | None
    upload_s: float
    transfer_usd: Decimal | None
    elsewhere_usd: Decimal | None
    storage_usd_per_month: Decimal | None


def estimate(
    sized: Sequence[Sized], offerings: Sequence[Offering], bucket_region: str, *, throughput_mib_s: int | None = None
) -> Estimate:
    """What to expect. ``bucket_region``: where uploaded data lies. ``throughput_mib_s``: of the root volume, where
    bought."""
    first = offerings[0]
    regions = dict.fromkeys(o.pool.region for o in offerings)
    costs = {region: transfer_usd(sized, region, bucket_region) for region in regions}
    others = [usd for region, usd in costs.items() if region != first.pool.region]
    known = [usd for usd in others if usd is not None]
    uploaded = sum(item.bytes for item in sized if item.local)
    unknown = any(item.trouble for item in sized)
    total, files = sum(item.bytes for item in sized), sum(item.files for item in sized)
    nvme = first.instance.local_nvme_gb > 0
    return Estimate(
        restore_s=None if unknown else restore_s(total, files, nvme=nvme, throughput_mib_s=throughput_mib_s),
        upload_s=uploaded / UPLOAD_BYTES_PER_S,
        transfer_usd=costs[first.pool.region],
        elsewhere_usd=max(known) if others and len(known) == len(others) else None,
        storage_usd_per_month=transfer.usd_per_month(bucket_region, uploaded),
    )


def restore_s(total_bytes: int, files: int, *, nvme: bool, throughput_mib_s: int | None = None) -> float:
    """About how long one machine takes to download it."""
    disk = (throughput_mib_s * 2**20 if throughput_mib_s is not None else GP3_BYTES_PER_S) if not nvme else None
    return total_bytes / min(NVME_BYTES_PER_S, disk or NVME_BYTES_PER_S) + files / FILES_PER_S


def transfer_usd(sized: Sequence[Sized], machine_region: str, bucket_region: str) -> Decimal | None:
    """What one machine's restore costs in transfer; None where a size or a rate is not known."""
    total = Decimal(0)
    for item in sized:
        rate = transfer.between(item.region or bucket_region, machine_region)
        if rate is None or item.trouble:
            return None
        total += rate.usd_per_gb * item.bytes / transfer.GB
    return total


def require_room(sized: Sequence[Sized], offerings: Sequence[Offering], root_gib: int) -> None:
    """Raise UsageError where no machine of the plan has a disk that the data fits on. ``root_gib``: of the root volume,
    as it will be; what the image itself takes of it is not known, so this is no promise."""
    total = sum(item.bytes for item in sized)
    nvme = max(o.instance.local_nvme_gb * 10**9 for o in offerings)
    if total > max(nvme, root_gib * 2**30):
        raise UsageError(
            f"file_mounts take {total / 2**30:.0f} GiB, and no machine of the plan has a disk for that (root volume "
            f"{root_gib} GiB): set resources.disk_size to {int(total / 2**30 * 1.1) + root_gib} or more"
        )
