"""Data at launch against S3: listed once, sent once, and noticed when it changes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters import data_bucket
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.data_bucket import ContentStore, list_source
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable, NotFound, UsageError
from cloudtrain.provisioner.launch import mounting
from cloudtrain.provisioner.launch.mounting import Looked, look, upload
from cloudtrain.provisioner.spec import FileMount

REGION = "us-east-1"
_NUMBERS = itertools.count(1)
BIG = random.Random(1).randbytes(12 << 20)


class World:
    """A bucket of ours, one of theirs elsewhere, a folder, and a count of what is asked."""

    def __init__(self, clients: Clients, folder: Path) -> None:
        self.clients = clients
        self.folder = folder
        number = next(_NUMBERS)
        self.ours, self.theirs = f"cloudtrain-ours-{number}", f"theirs-{number}"
        self.client: Any = clients.client("s3", REGION)
        self.client.create_bucket(Bucket=self.ours)
        place: Any = {"LocationConstraint": "eu-west-1"}
        clients.client("s3", "eu-west-1").create_bucket(Bucket=self.theirs, CreateBucketConfiguration=place)
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda name: None
        self.client.meta.events.register_first("before-call.s3", self._note)

    def _note(self, model: Any, **_: Any) -> None:
        self.calls[model.name] += 1
        self.before(model.name)

    def close(self) -> None:
        self.client.meta.events.unregister("before-call.s3", self._note)

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    def look(self, source: str | None = None, *, strict: bool = True) -> tuple[Looked, ...]:
        mount = FileMount("/data", source if source is not None else str(self.folder))
        return look([mount], lambda: self.clients, REGION, leave_out=(), strict=strict)

    def upload(self, job: str, source: str | None = None, **more: Any) -> dict[str, Any]:
        store = ContentStore(self.clients, self.ours, REGION, **more)
        (mount,) = upload(self.look(source), job, store)
        body = self.client.get_object(Bucket=self.ours, Key=mount.key)["Body"].read()
        assert hashlib.sha256(body).hexdigest() == mount.sha256
        document: dict[str, Any] = json.loads(body)
        assert mount.files == sum("size" in row for row in document["files"])
        return document

    def stored(self) -> dict[str, bytes]:
        """What lies under files/, by digest."""
        listed = self.client.list_objects_v2(Bucket=self.ours, Prefix="files/").get("Contents", [])
        return {
            item["Key"].removeprefix("files/"): self.client.get_object(Bucket=self.ours, Key=item["Key"])["Body"].read()
            for item in listed
        }


@pytest.fixture
def world(
    moto_clients: Clients, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr(data_bucket, "PART_BYTES", 5 << 20)
    (tmp_path / "data").mkdir()
    made = World(moto_clients, tmp_path / "data")
    request.addfinalizer(made.close)
    return made


def test_every_content_is_sent_once_and_a_second_launch_sends_nothing(world: World) -> None:
    world.write({"a": b"one", "b/c": b"one", "b/empty": b"", "big": BIG, ".gitignore": b"*.tmp\n", "x.tmp": b"no"})
    (world.folder / "b/c").chmod(0o755)
    (world.folder / "link").symlink_to("b/c")
    odd = os.fsdecode(b"not-utf8-\xff")
    (world.folder / odd).write_bytes(b"odd")
    found = {row["path"]: row for row in world.upload("j-1")["files"]}
    assert set(found) == {"a", "b", "b/c", "b/empty", "big", ".gitignore", "link", odd}
    assert found["b/c"]["mode"] == 0o755 and found["link"] == {"path": "link", "link": "b/c"}
    assert found["b"] == {"path": "b", "dir": True, "mode": (world.folder / "b").stat().st_mode & 0o777}
    stored = world.stored()
    assert {hashlib.sha256(data).hexdigest() for data in stored.values()} == set(stored)
    assert set(stored) == {row["sha256"] for row in found.values() if "sha256" in row}
    assert world.calls["PutObject"] == 4 + 2, "four small contents, the mark of a launch, and a manifest"
    assert world.calls["UploadPart"] == 3
    world.calls.clear()
    world.upload("j-2")
    assert (world.calls["PutObject"], world.calls["UploadPart"]) == (2, 0), "the mark and the manifest"


def test_an_upload_that_was_broken_off_goes_on_where_it_was(world: World) -> None:
    world.write({"big": BIG})
    sent: list[int] = []

    def break_off(count: int) -> None:
        sent.append(count)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.upload("j-1", moved=break_off)
    assert sent and world.stored() == {}
    before = world.calls["UploadPart"]
    there: list[int] = []
    world.upload("j-2", moved=there.append)
    assert sum(there) == len(BIG)
    assert world.calls["UploadPart"] == 3 and before > 0, "what was sent before was not sent again"
    assert list(world.stored().values()) == [BIG]
    assert world.client.list_multipart_uploads(Bucket=world.ours).get("Uploads", []) == []


def test_ctrl_c_ends_an_upload_at_the_next_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write({f"big{number}": bytes([number]) + BIG for number in range(12)})

    def pressed(rows: Any) -> Any:
        while world.calls["UploadPart"] < 1:
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(mounting, "_results", pressed)
    with pytest.raises(KeyboardInterrupt):
        world.upload("j-1")
    assert world.calls["UploadPart"] < 12 * 3
    assert len(world.stored()) < 12
    monkeypatch.undo()
    monkeypatch.setattr(data_bucket, "PART_BYTES", 5 << 20)
    world.upload("j-2")
    assert len(world.stored()) == 12


def test_parts_of_other_bytes_are_not_taken_for_ours(world: World) -> None:
    world.write({"big": BIG})
    key = f"files/{hashlib.sha256(BIG).hexdigest()}"
    begun = world.client.create_multipart_upload(Bucket=world.ours, Key=key, ChecksumAlgorithm="SHA256")
    part = {"Bucket": world.ours, "Key": key, "UploadId": begun["UploadId"]}
    world.client.upload_part(**part, PartNumber=1, Body=bytes(5 << 20))
    world.upload("j-1")
    assert list(world.stored().values()) == [BIG]


@pytest.mark.parametrize("size", [10, 12 << 20])
def test_a_file_that_changes_while_it_is_read_is_noticed(world: World, size: int) -> None:
    world.write({"log": b"x" * size})
    looked = world.look()
    with (world.folder / "log").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UsageError, match="'log' changed while it was read"):
        upload(looked, "j-1", ContentStore(world.clients, world.ours, REGION))


def test_a_large_file_that_is_another_when_it_is_sent_is_noticed(world: World) -> None:
    world.write({"big": BIG})
    path = world.folder / "big"

    def rewrite(name: str) -> None:
        if name == "CreateMultipartUpload":
            path.write_bytes(BIG[1:] + b"x")

    world.before = rewrite
    with pytest.raises(UsageError, match="'big' changed"):
        world.upload("j-1")
    assert world.stored() == {}
    assert world.client.list_multipart_uploads(Bucket=world.ours).get("Uploads", []) == []


def test_one_file_is_mounted_as_one(world: World) -> None:
    world.write({"words.txt": b"words", "other": b"no", ".gitignore": b"words.txt\n"})
    document = world.upload("j-1", str(world.folder / "words.txt"))
    assert document["single"] and [row["path"] for row in document["files"]] == ["words.txt"]
    assert list(world.stored().values()) == [b"words"]


def test_their_bucket_is_listed_where_it_is_and_nothing_of_it_is_copied(world: World) -> None:
    client: Any = world.clients.client("s3", "eu-west-1")
    for key, data in {"set/a": b"1", "set/sub/b": b"22", "settee": b"no", "set/": b""}.items():
        client.put_object(Bucket=world.theirs, Key=key, Body=data)
    document = world.upload("j-1", f"s3://{world.theirs}/set/")
    assert (document["region"], document["prefix"]) == ("eu-west-1", "set/")
    rows = document["files"]
    assert [(row["path"], row["size"]) for row in rows] == [("a", 1), ("sub/b", 2)]
    assert rows[0]["etag"] == client.head_object(Bucket=world.theirs, Key="set/a")["ETag"]
    assert world.stored() == {}
    assert world.upload("j-2", f"s3://{world.theirs}/settee")["single"]


def test_what_can_not_be_listed_is_refused_with_the_fix(world: World) -> None:
    with pytest.raises(NotFound, match=r"there is no bucket nobody-has-this-1; correct file_mounts"):
        world.look("s3://nobody-has-this-1/x")
    with pytest.raises(UsageError, match="holds no object"):
        world.look(f"s3://{world.theirs}/nothing")
    assert world.look("s3://nobody-has-this-1/x", strict=False)[0].sized.trouble is not None

    there: Any = world.clients.client("s3", "eu-west-1")
    there.put_object(Bucket=world.theirs, Key="set/a", Body=b"1")
    headers: Any = {"HTTPHeaders": {"x-amz-bucket-region": "eu-west-1"}}

    def deny(name: str) -> None:
        raise ClientError({"Error": {"Code": "403", "Message": "Forbidden"}, "ResponseMetadata": headers}, name)

    world.before = deny  # of the bucket as a whole; its prefix may be listed
    assert list_source(world.clients, f"s3://{world.theirs}/set", REGION)[0] == "eu-west-1"
    headers["HTTPHeaders"].clear()
    with pytest.raises(AccessError, match=r"may not list it \(s3:ListBucket\)"):
        list_source(world.clients, f"s3://{world.theirs}", REGION)


def test_more_objects_than_a_manifest_holds_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = world.clients.client("s3", "eu-west-1")
    for number in range(3):
        client.put_object(Bucket=world.theirs, Key=f"set/{number}", Body=b"")
    monkeypatch.setattr(data_bucket, "LIMIT_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 objects"):
        world.look(f"s3://{world.theirs}/set")


def test_a_bucket_that_takes_nothing_ends_the_launch(world: World) -> None:
    world.write({str(number): str(number).encode() for number in range(30)})

    def down(name: str) -> None:
        if name == "PutObject":
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "later"}}, name)

    world.before = down
    with pytest.raises(CloudUnreachable, match="SlowDown"):
        world.upload("j-1")
    assert world.stored() == {}
