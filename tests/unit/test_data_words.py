"""How file_mounts are said in a plan."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from cloudtrain.provisioner.cli.data import text
from cloudtrain.provisioner.model import FileMount
from cloudtrain.provisioner.mounts import DataPlan, Estimate, Sized


def said(*sized: Sized, **found: float | Decimal | None) -> list[str]:
    values: dict[str, Any] = {"restore_s": 65.0, "upload_s": 0.0, "transfer_usd": Decimal(0), "elsewhere_usd": None}
    estimate = Estimate(**{**values, "storage_usd_per_month": None, **found})
    lines = text(DataPlan(sized, estimate)).splitlines()
    assert max(len(line) for line in lines) <= 80
    return lines


def test_a_bucket_in_the_region_costs_time_alone() -> None:
    mount = FileMount("/data", "s3://bucket/images")
    assert said(Sized(mount, 1281167, 150 * 2**30, region="us-east-1")) == [
        "data, on each machine before setup and run:",
        "  /data  1,281,167 files, 150.0 GiB, in us-east-1  s3://bucket/images",
        "restore: about 1m05s on each machine; transfer: free",
    ]


def test_local_data_says_what_stays_behind_and_what_keeping_costs() -> None:
    mount = FileMount("data", "/home/me/data")
    item = Sized(mount, 2, 5000, omitted=("a.tmp", "b/", "c", "d"))
    lines = said(item, upload_s=80.0, storage_usd_per_month=Decimal("0.001"), elsewhere_usd=Decimal("1.5"))
    assert lines[2:] == [
        "  data leaves out a.tmp, b/, c, 1 more",
        "restore: about 1m05s on each machine; transfer: free, up to $1.50 in other",
        "  regions",
        "upload: about 1m20s at 100 Mbit/s, less what is there already; free of charge;",
        "  kept until you delete it: under $0.01 a month",
    ]


def test_what_is_not_known_is_said() -> None:
    item = Sized(FileMount("/data", "s3://b/x"), trouble="s3://b/x: no credentials")
    assert said(item, restore_s=None, transfer_usd=None)[1:] == [
        "  /data  size not known  s3://b/x",
        "  s3://b/x: no credentials",
        "restore: time not known on each machine; transfer: price not known",
    ]
