"""How file_mounts are said in a plan."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.data_bucket import ContentStore
from cloudtrain.provisioner.cli.data import Data, text, upload
from cloudtrain.provisioner.launch import mounting
from cloudtrain.provisioner.launch.access import Access, Entry
from cloudtrain.provisioner.shipping.mounts import DataPlan, Estimate, Sized
from cloudtrain.provisioner.spec import FileMount


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


def test_an_upload_tells_how_far_it_is_and_what_ctrl_c_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = Clients("local", local_endpoint="http://127.0.0.1:9")
    access = Access(Entry("local", clients, Identity("1", "arn", "me", None), "us-east-1"), "bucket")
    plan = DataPlan((Sized(FileMount("/data", "/d"), 1, 4 << 20),), Estimate(1.0, 1.0, None, None, None))
    monkeypatch.setattr("cloudtrain.provisioner.cli.data._EVERY_S", 0.0)

    def half(looked: object, job_id: str, store: ContentStore) -> tuple[()]:
        store._count(2 << 20)
        return ()

    def broken_off(looked: object, job_id: str, store: ContentStore) -> tuple[()]:
        half(looked, job_id, store)
        raise KeyboardInterrupt

    monkeypatch.setattr(mounting, "upload", half)
    assert upload(Data((), plan), "j-1", access) == ()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("uploading data: 2.0 MiB of 4.0 MiB, ")
    assert second == "data: 2.0 MiB uploaded, 2.0 MiB were there already"
    monkeypatch.setattr(mounting, "upload", broken_off)
    with pytest.raises(KeyboardInterrupt):
        upload(Data((), plan), "j-1", access)
    assert (
        "nothing was launched; 2.0 MiB of data were uploaded, and the next launch uses them" in capsys.readouterr().err
    )
    assert upload(None, "j-1", access) == ()
