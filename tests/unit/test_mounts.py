"""Manifests and estimates of file_mounts."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.shipping import mounts
from cloudtrain.provisioner.shipping.mounts import S3Object, Sized, describe_objects, estimate, pack, parse_s3
from cloudtrain.provisioner.spec import FileMount
from cloudtrain.trainer.agent.unpack import read_entries
from tests.records import OFFERINGS, offering

GB = 10**9


def objects(*keys: str, size: int = 3) -> list[S3Object]:
    return [S3Object(key, size, '"e"') for key in keys]


def paths(source: str, *keys: str) -> list[str]:
    return [row["path"] for row in describe_objects(source, objects(*keys), "us-east-1")["files"]]


@pytest.mark.parametrize(
    ("source", "bucket", "prefix"),
    [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://b/p/q/", "b", "p/q"), ("s3://b/p", "b", "p")],
)
def test_sources_are_read(source: str, bucket: str, prefix: str) -> None:
    assert parse_s3(source) == (bucket, prefix)


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name() -> None:
    assert paths("s3://b/set", "set/a", "set/b/c", "settee/d") == ["a", "b/c"]
    assert paths("s3://b", "set/a", "x") == ["set/a", "x"]
    assert paths("s3://b/set", "set", "set/a") == ["a"], "what is below it is what is meant"


def test_one_object_is_one_file() -> None:
    found = describe_objects("s3://b/sets/words.txt", objects("sets/words.txt", "sets/words.txt.gz"), "eu-west-1")
    assert found["single"] and [row["path"] for row in found["files"]] == ["words.txt"]
    assert (found["bucket"], found["region"], found["prefix"]) == ("b", "eu-west-1", "sets/")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((), "holds no object"),
        (("other/x",), "holds no object"),
        (("set/a//b",), "can't be a file's name"),
        (("set/../x",), "can't be a file's name"),
        (("set/a/",), "can't be a file's name"),
        (("set/a", "set/a/b"), "a file and a folder"),
        ((f"set/{'é' * 128}",), "more than 255 bytes"),
    ],
)
def test_what_can_be_no_folder_is_refused_by_name(keys: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        describe_objects("s3://b/set", objects(*keys), "us-east-1")


def test_folders_that_the_console_made_are_no_files() -> None:
    found = [S3Object("set/", 0, '"e"'), S3Object("set/a/", 0, '"e"'), *objects("set/a/b")]
    assert [row["path"] for row in describe_objects("s3://b/set", found, "r")["files"]] == ["a/b"]
    with pytest.raises(UsageError, match="empty folders alone"):
        describe_objects("s3://b/set", found[:2], "r")


def test_archived_and_far_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="set/a is archived"):
        describe_objects("s3://b/set", [S3Object("set/a", 1, "e", "DEEP_ARCHIVE")], "r")
    monkeypatch.setattr(mounts, "LIMIT_FILES", 2)
    with pytest.raises(UsageError, match=r"3 objects, more than 2"):
        describe_objects("s3://b/set", objects("set/a", "set/b", "set/c"), "r")


@given(st.lists(st.text(st.sampled_from("ab/.é\0"), min_size=1, max_size=12), max_size=6, unique=True))
def test_what_is_accepted_at_launch_is_accepted_on_the_machine(names: list[str]) -> None:
    found = [S3Object(f"set/{name}", 1, '"e"') for name in names]
    try:
        document = describe_objects("s3://b/set", found, "us-east-1")
    except UsageError:
        return
    assert {row["path"] for row in document["files"]} == set(names)
    assert set(read_entries(document["files"], "here")) == set(names)


def test_a_manifest_is_named_by_its_bytes_and_counts_its_files() -> None:
    rows = [{"path": "a", "size": 5, "sha256": "x", "mode": 420}, {"path": "\udcff", "link": "a"}]
    mount, data = pack({"v": 1, "files": rows}, "/data", "j-1", 2)
    assert (mount.key, mount.bytes, mount.files) == ("mounts/j-1/2.json", 5, 1)
    assert json.loads(data)["files"] == rows
    assert pack({"v": 1, "files": rows}, "/data", "j-1", 2)[0] == mount


def sized(count: int, source: str = "s3://b/x", region: str | None = "us-east-1", files: int = 1) -> Sized:
    return Sized(FileMount("/data", source), files, count, region=region)


def test_a_restore_takes_as_long_as_the_slowest_part() -> None:
    seconds = mounts.restore_s
    assert seconds(125 * 2**20, 0, nvme=False) == 1.0
    assert seconds(125 * 2**20, 0, nvme=False, throughput_mib_s=250) == 0.5
    assert seconds(400 * 10**6, 200, nvme=True) == 2.0
    assert seconds(400 * 10**6, 0, nvme=False, throughput_mib_s=1000) == 1.0, "more than the agent takes is no use"


def test_transfer_is_free_in_the_region_and_paid_from_another() -> None:
    ohio = offering("use2-az1", "0.2")
    plan = (*OFFERINGS, replace(ohio, pool=replace(ohio.pool, region="us-east-2")))
    there = estimate([sized(100 * GB, region="eu-west-1")], plan, "us-east-1")
    assert there.transfer_usd == Decimal("2.00")
    here = estimate([sized(100 * GB)], plan, "us-east-1")
    assert (here.transfer_usd, here.elsewhere_usd) == (Decimal(0), Decimal("1.00"))
    assert here.upload_s == 0
    assert estimate([sized(100 * GB)], OFFERINGS, "us-east-1").elsewhere_usd is None
    assert estimate([sized(1, region="nowhere-1")], plan, "us-east-1").transfer_usd is None


def test_local_data_is_uploaded_and_kept() -> None:
    found = estimate([sized(100 * GB, source="/data", region=None)], OFFERINGS, "us-east-1")
    assert found.upload_s == 8000 and found.storage_usd_per_month == Decimal("2.3")
    assert found.transfer_usd == 0
    assert estimate([sized(100, source="/x", region=None)], OFFERINGS, "nowhere-1").transfer_usd is None


def test_what_is_not_known_is_not_estimated() -> None:
    item = Sized(FileMount("/data", "s3://b/x"), trouble="no credentials")
    found = estimate([item], OFFERINGS, "us-east-1")
    assert (found.restore_s, found.transfer_usd) == (None, None)


def test_data_that_fits_nowhere_is_refused_before_anything_is_spent() -> None:
    mounts.require_room([sized(100 * GB)], OFFERINGS, 75)  # T4 types have 125 GB of their own
    with pytest.raises(UsageError, match=r"set resources\.disk_size to 280"):
        mounts.require_room([sized(200 * 2**30)], OFFERINGS, 60)
    mounts.require_room([sized(200 * 2**30)], OFFERINGS, 300)
