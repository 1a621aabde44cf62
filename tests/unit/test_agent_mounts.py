"""file_mounts on the machine: downloaded in parts, verified, put whole into place, never over anything."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.trainer.agent import fetch, mounts
from cloudtrain.trainer.agent.host import LocalHost, SystemdHost
from cloudtrain.trainer.agent.mounts import Mounter
from cloudtrain.trainer.agent.objects import Denied, ObjectsError
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.agent.placing import PlaceError
from cloudtrain.trainer.contract import AgentConfig, Mount, config_from_json, mount_target_trouble, to_json
from tests.memory_objects import MemoryObjects

OUR, THEIRS = "our-bucket", "their-bucket"
Tree = dict[str, Any]


class Stand:
    """A machine's home, our bucket and theirs, and what a mounter made of them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.places = Places(self.home / "cloudtrain")
        self.places.create()
        self.host: Any = LocalHost({})
        self.buckets = {OUR: MemoryObjects(), THEIRS: MemoryObjects()}
        self.opened: list[tuple[str, str]] = []
        self.mounts: list[Mount] = []
        self.scratch: str | None = None
        self.login_user: str | None = None

    def local(self, target: str, files: Tree, *, single: bool = False) -> None:
        """A mount of bytes, of (bytes, mode), of None for a folder, of "-> x" for a link."""
        rows: list[dict[str, Any]] = []
        for path, what in files.items():
            if what is None:
                rows.append({"path": path, "dir": True, "mode": 0o750})
            elif isinstance(what, str):
                rows.append({"path": path, "link": what.removeprefix("-> ")})
            else:
                data, mode = what if isinstance(what, tuple) else (what, 0o644)
                digest = hashlib.sha256(data).hexdigest()
                self.buckets[OUR].data[f"files/{digest}"] = data
                rows.append({"path": path, "mode": mode, "size": len(data), "sha256": digest})
        self.add(target, {"v": 1, "source": "/home/me/data", "single": single, "files": rows})

    def theirs(self, target: str, prefix: str, names: list[str]) -> None:
        """A mount of what lies in their bucket now."""
        found = self.buckets[THEIRS].data
        rows = [
            {"path": name, "mode": 0o644, "size": len(found[prefix + name]), "etag": f'"{md5(found[prefix + name])}"'}
            for name in names
        ]
        where = {"bucket": THEIRS, "region": "eu-west-1", "prefix": prefix}
        self.add(target, {"v": 1, "source": f"s3://{THEIRS}/{prefix}", "single": False, "files": rows, **where})

    def add(self, target: str, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        key = f"mounts/j/{len(self.mounts)}.json"
        self.buckets[OUR].data[key] = data
        sizes = [row.get("size", 0) for row in document["files"]]
        self.mounts.append(Mount(target, key, hashlib.sha256(data).hexdigest(), sum(sizes), len(sizes)))

    def mounter(self) -> Mounter:
        config = AgentConfig("j", 1, OUR, "us-east-1", "p", "", mounts=tuple(self.mounts), scratch=self.scratch)
        config = replace(config, login_user=self.login_user)

        def connect(bucket: str, region: str) -> MemoryObjects:
            self.opened.append((bucket, region))
            return self.buckets[bucket]

        return Mounter(config, self.places, self.host, {"HOME": str(self.home)}, connect)

    def bring(self) -> Mounter:
        mounter = self.mounter()
        mounter.start()
        wait(lambda: mounter.done or mounter.failure is not None or mounter.crash is not None)
        assert mounter.crash is None
        return mounter

    def refused(self) -> tuple[str, str]:
        failure = self.bring().failure
        assert failure is not None and failure.error is not None and failure.failure is not None
        return failure.error, failure.failure

    def reads(self, bucket: str = OUR) -> list[str]:
        return [key for call, key in self.buckets[bucket].calls if call == "read"]


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def wait(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(fetch, "_BACKOFF_S", (0.01,))
    monkeypatch.setattr(mounts, "_AGAIN_S", 0.01)
    monkeypatch.setattr(mounts, "RESERVE_BYTES", 0)
    return Stand(tmp_path)


BIG = random.Random(0).randbytes(3_000_000)


def test_a_tree_arrives_as_it_was_and_shows_at_its_target(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PART_BYTES", 1 << 20)
    files: Tree = {
        "sub": None,
        "sub/empty": b"",
        "sub/run me.sh": (b"#!/bin/sh\n", 0o755),
        "new\nline 训练": b"x" * 100,
        "big": BIG,
        "locked": (b"secret", 0o400),
        "link": "-> sub/run me.sh",
        "hollow": None,
    }
    stand.local("/data/set", files)
    mounter = stand.bring()
    assert mounter.done and (mounter.moved_bytes, mounter.total_bytes) == (3_000_000 + 116, 3_000_000 + 116)
    at = stand.places.rootfs / "data/set"
    assert at.is_symlink() and at.resolve().is_relative_to(stand.places.mounts)
    assert (at / "big").read_bytes() == BIG
    assert (at / "sub/run me.sh").stat().st_mode & 0o777 == 0o755
    assert (at / "locked").stat().st_mode & 0o777 == 0o400
    assert (at / "sub").stat().st_mode & 0o777 == 0o750
    assert os.readlink(at / "link") == "sub/run me.sh"  # noqa: PTH115
    assert (at / "sub/empty").read_bytes() == b"" and (at / "hollow").is_dir()
    assert (at / "new\nline 训练").read_bytes() == b"x" * 100
    assert len(stand.reads()) == 3 + 4
    assert {path.name for path in next(stand.places.mounts.iterdir()).iterdir()} == {"data", "whole"}


def test_each_kind_of_target_is_where_it_belongs(stand: Stand) -> None:
    stand.local("/data", {"a": b"1"})
    stand.local("~/more/data", {"a": b"2"})
    stand.local("sets/data", {"a": b"3"})
    stand.local("~/vocab.txt", {"words": b"4"}, single=True)
    assert stand.bring().done
    found = ["cloudtrain/rootfs/data/a", "more/data/a", "cloudtrain/work/sets/data/a", "vocab.txt"]
    assert [(stand.home / path).read_bytes() for path in found] == [b"1", b"2", b"3", b"4"]


def test_what_is_there_and_whole_is_not_brought_again(stand: Stand) -> None:
    stand.local("/data", {"a": b"1", "b": b"2"})
    assert stand.bring().done
    reads = len(stand.reads())
    assert stand.bring().done
    assert len(stand.reads()) == reads


def test_an_agent_that_comes_back_believes_only_what_it_can_check(stand: Stand) -> None:
    stand.local("/data", {"a": b"aaa", "b": b"bbb", "c": b"ccc"})
    assert stand.bring().done
    folder = next(stand.places.mounts.iterdir())
    (folder / "whole").unlink()
    (folder / "data/b").write_bytes(b"xxx")
    (folder / "data/c").unlink()
    stand.buckets[OUR].calls.clear()
    mounter = stand.bring()
    assert mounter.done and mounter.moved_bytes == 9
    assert sorted(stand.reads()) == sorted(f"files/{hashlib.sha256(text).hexdigest()}" for text in (b"bbb", b"ccc"))
    assert (stand.places.rootfs / "data/b").read_bytes() == b"bbb"


def test_their_objects_come_from_their_bucket_and_region(stand: Stand) -> None:
    stand.buckets[THEIRS].data |= {"set/a/x": b"1", "set/b": BIG, "settee": b"no"}
    stand.theirs("/data", "set/", ["a/x", "b"])
    assert stand.bring().done
    assert (THEIRS, "eu-west-1") in stand.opened
    assert (stand.places.rootfs / "data/b").read_bytes() == BIG
    assert stand.reads() == [] and sorted(stand.reads(THEIRS)) == ["set/a/x", "set/b"]


@pytest.mark.parametrize("part", [1 << 20, 16 << 20])
def test_an_object_that_was_changed_after_the_launch_is_refused_by_name(
    stand: Stand, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PART_BYTES", part)
    stand.buckets[THEIRS].data |= {"set/a": b"1", "set/b": BIG}
    stand.theirs("/data", "set/", ["a", "b"])
    stand.buckets[THEIRS].data["set/b"] = BIG[1:] + b"x"
    error, fault = stand.refused()
    assert fault == "job" and f"s3://{THEIRS}/set/b was changed after the launch" in error and "launch again" in error
    assert not (stand.places.rootfs / "data").exists()
    del stand.buckets[THEIRS].data["set/b"]
    assert f"s3://{THEIRS}/set/b was deleted" in stand.refused()[0]


def test_an_md5_etag_is_checked_unless_s3_says_that_it_is_none(stand: Stand) -> None:
    theirs = stand.buckets[THEIRS]
    theirs.data["a"] = b"right"
    stand.theirs("/data", "", ["a"])

    def swap(call: str, key: str) -> None:  # damaged on the way, its ETag as it was
        if call == "read":
            theirs.after_read = lambda data: b"wrong"

    theirs.before = swap
    error, fault = stand.refused()
    assert "its digest is another" in error and fault == "job"
    assert len(stand.reads(THEIRS)) == fetch.DAMAGED_TRIES
    theirs.etag_is_md5 = False
    assert stand.bring().done


def test_a_bucket_that_may_not_be_read_names_the_command(stand: Stand) -> None:
    def deny(call: str, key: str) -> None:
        if call == "read":
            raise Denied("read: AccessDenied")

    stand.buckets[THEIRS].data["set/a"] = b"1"
    stand.theirs("/data", "set/", ["a"])
    stand.buckets[THEIRS].before = deny
    error, fault = stand.refused()
    assert fault == "job" and f"`cloudtrain setup --read s3://{THEIRS}/set/`" in error
    assert len(stand.reads(THEIRS)) == 0


def test_a_key_that_does_not_serve_the_machine_is_named_as_such(stand: Stand) -> None:
    def deny(call: str, key: str) -> None:
        if call == "read":
            raise Denied("read: AccessDenied: User is not authorized to perform: kms:Decrypt on this resource")

    stand.buckets[THEIRS].data["set/a"] = b"1"
    stand.theirs("/data", "set/", ["a"])
    stand.buckets[THEIRS].before = deny
    assert "allow that role kms:Decrypt in the key's policy" in stand.refused()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_on_a_real_machine_the_data_is_the_login_users(stand: Stand) -> None:
    class Real(SystemdHost):
        def place(self, target: str, data: Path, rootfs: Path) -> None:
            raise AssertionError

    stand.host = Real(lambda argv, timeout_s: 0, root=True)
    stand.login_user = "nobody"
    stand.local("deep/data", {"a": b"x", "sub/b": (b"y", 0o400), "sub": None, "link": "-> a"})
    assert stand.bring().done
    user = pwd.getpwnam("nobody")
    at = stand.places.work / "deep/data"
    paths = [at.parent, at.resolve(), *at.resolve().rglob("*")]
    assert len(paths) == 6
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in paths} == {(user.pw_uid, user.pw_gid)}


def test_an_outage_is_waited_out_and_a_standstill_is_not(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [30]

    def flaky(call: str, key: str) -> None:
        left[0] -= 1
        if left[0] > 0:
            raise ObjectsError("throttled")

    stand.local("/data", {str(n): b"x" * n for n in range(20)})
    stand.buckets[OUR].before = flaky
    assert stand.bring().done

    def down(call: str, key: str) -> None:
        if call == "read":
            raise ObjectsError("no route to the bucket")

    stand.local("/more", {"a": b"other"})
    stand.buckets[OUR].before = down
    monkeypatch.setattr(fetch, "STALL_S", 0.3)
    error, fault = stand.refused()
    assert fault == "machine" and error == "file_mounts /more: no data has come for 0 s: no route to the bucket"


def test_too_little_room_is_said_before_anything_is_downloaded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "RESERVE_BYTES", 1 << 60)
    stand.local("/data", {"a": BIG})
    error, fault = stand.refused()
    assert fault == "machine" and "raise resources.disk_size" in error and "3 MiB" in error
    assert stand.reads() == []


def test_a_disk_that_fills_up_all_the_same_says_so(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stand.local("/data", {"a": b"x"})
    monkeypatch.setattr(fetch, "_write_all", full)
    assert stand.refused() == ("file_mounts /data: disk full on the machine: raise resources.disk_size", "machine")


def test_the_fast_disk_is_used_where_it_is_mounted(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    class Real(LocalHost):
        real = True

    stand.host = Real({})
    stand.scratch = str(stand.home / "nvme")
    Path(stand.scratch).mkdir()
    stand.local("/data", {"a": b"x"})
    assert stand.bring().done
    assert list(Path(stand.scratch).iterdir()) == [], "a folder that is no disk of its own"
    stand.local("/data2", {"a": b"y"})
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == stand.scratch)
    assert stand.bring().done
    assert (stand.places.rootfs / "data2").resolve().is_relative_to(Path(stand.scratch, "cloudtrain"))


def test_a_manifest_that_is_not_the_launched_one_is_refused(stand: Stand) -> None:
    stand.local("/data", {"a": b"x"})
    stand.buckets[OUR].data["mounts/j/0.json"] += b" "
    assert "is not the one that was launched" in stand.refused()[0]
    del stand.buckets[OUR].data["mounts/j/0.json"]
    assert "is gone from the bucket" in stand.refused()[0]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"../a": b"x"}, "no path inside"),
        ({"/etc/passwd": b"x"}, "no path inside"),
        ({"a": "-> ../../x"}, "points outside"),
        ({"a": "-> b", "b/c": b"x", "b": "-> ."}, "lies below"),
    ],
)
def test_nothing_may_lie_or_point_outside(stand: Stand, files: Tree, words: str) -> None:
    stand.local("/data", files)
    error, fault = stand.refused()
    assert words in error and fault == "job"


def test_nothing_is_put_over_what_is_there(stand: Stand) -> None:
    (stand.places.work / "data").mkdir()
    (stand.places.work / "data/mine").write_text("mine")
    stand.local("data", {"a": b"x"})
    error, fault = stand.refused()
    assert fault == "job" and "with something in it" in error
    assert (stand.places.work / "data/mine").read_text() == "mine"
    (stand.places.work / "data/mine").unlink()
    assert stand.bring().done, "an empty folder is no loss"


def test_a_stop_ends_it_and_what_came_is_kept(stand: Stand) -> None:
    seen: list[str] = []
    mounter = stand.mounter()

    def slow(call: str, key: str) -> None:
        if call == "read":
            seen.append(key)
            if len(seen) > 25:
                mounter.leave()
                time.sleep(0.05)

    stand.local("/data", {str(n): str(n).encode() for n in range(200)})
    stand.buckets[OUR].before = slow
    mounter = stand.mounter()
    mounter.start()
    wait(lambda: len(seen) > 25)
    time.sleep(0.2)
    assert not mounter.done and mounter.failure is None
    assert not (stand.places.rootfs / "data").exists()
    stand.buckets[OUR].before = lambda call, key: None
    stand.buckets[OUR].calls.clear()
    assert stand.bring().done
    assert 0 < len(stand.reads()) < 190


def test_a_real_machine_puts_it_there_and_refuses_what_is_the_systems(tmp_path: Path) -> None:
    host = SystemdHost(lambda argv, timeout_s: 0, root=True)
    data, taken = tmp_path / "data", tmp_path / "taken"
    data.mkdir()
    taken.mkdir()
    (taken / "file").touch()
    host.place(f"{tmp_path}/deep/er/here", data, tmp_path / "rootfs")
    host.place(f"{tmp_path}/deep/er/here", data, tmp_path / "rootfs")
    assert (tmp_path / "deep/er/here").resolve() == data
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o755
    for target, words in [
        (str(taken), "something in it"),
        (str(taken / "file"), "is a file"),
        (f"{taken}/file/x", "no folder"),
    ]:
        with pytest.raises(PlaceError, match=words):
            host.place(target, data, tmp_path / "rootfs")
    with pytest.raises(PlaceError, match="a link to"):
        host.place(f"{tmp_path}/deep/er/here", taken, tmp_path / "rootfs")
    for target in ("/", "/etc", "/etc/x", "/usr/local/x", "/home", "/data/../etc", "//etc/x"):
        with pytest.raises(PlaceError, match="can't be a target"):
            host.place(target, data, tmp_path / "rootfs")


def test_a_local_host_never_touches_the_computers_own_path(tmp_path: Path) -> None:
    host = LocalHost({})
    data, own, rootfs = tmp_path / "data", tmp_path / "own", tmp_path / "rootfs"
    data.mkdir()
    host.place(str(own / "set"), data, rootfs)
    assert not own.exists()
    assert (rootfs / str(own).lstrip("/") / "set").resolve() == data
    (rootfs / "out").symlink_to(tmp_path)
    with pytest.raises(PlaceError, match="leads out"):
        host.place("/out/set", data, rootfs)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("target", "fine"),
    [
        ("/data", True),
        ("/mnt/data", True),
        ("/home/ubuntu/data", True),
        ("/etcetera", True),
        ("data", True),
        ("a/b", True),
        ("~/data", True),
        ("", False),
        ("~", False),
        ("~/", False),
        ("~root/x", False),
        ("~/cloudtrain/x", False),
        (".", False),
        ("a/../..", False),
        ("/mnt", False),
        ("/mnt/", False),
        ("/./etc", False),
        ("/proc/1", False),
    ],
)
def test_targets(target: str, fine: bool) -> None:
    assert (mount_target_trouble(target) is None) is fine


def test_mounts_survive_the_trip_to_the_machine() -> None:
    config = AgentConfig("j", 1, "b", "r", "p", "", mounts=(Mount("/data", "k", "s", 1, 2),))
    assert config_from_json(to_json(config)) == config
