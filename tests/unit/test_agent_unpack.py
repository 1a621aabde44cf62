"""The snapshot arrives byte for byte with its modes, and nothing else does."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.shipping.snapshot import take
from cloudtrain.trainer.agent import unpack as module
from cloudtrain.trainer.agent.unpack import UnpackError, read_manifest, unpack


def build(folder: Path, members: list[tuple[tarfile.TarInfo, bytes]], files: list[dict[str, Any]]) -> Path:
    """A snapshot of these members, with a manifest of these entries."""
    tar = folder / "snapshot.tar"
    with tarfile.open(tar, "w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    manifest = {"v": 1, "sha256": hashlib.sha256(tar.read_bytes()).hexdigest(), "files": files}
    (folder / "snapshot.json").write_text(json.dumps(manifest))
    return tar


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def entry(path: str, data: bytes = b"", mode: int = 0o644) -> dict[str, Any]:
    return {"path": path, "mode": mode, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_real_snapshot_comes_out_as_it_went_in(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "with space/'quote\"/中文").mkdir(parents=True)
    (source / "with space/'quote\"/中文/$x\n.py").write_bytes(bytes(range(256)) * 10000)
    (source / "run me.sh").write_text("#!/bin/sh\n")
    (source / "run me.sh").chmod(0o751)
    (source / "secret").write_text("s")
    (source / "secret").chmod(0o400)
    (source / "empty").mkdir(mode=0o700)
    (source / "sub").mkdir()
    (source / "sub/up").symlink_to("../run me.sh")
    (source / "loop").symlink_to("loop")
    (source / "gone").symlink_to("nowhere")
    (source / "closed").mkdir()
    (source / "closed/file").write_text("x")
    (source / "closed").chmod(0o555)
    (tmp_path / "in").mkdir()
    take(source, tmp_path / "in")
    before = os.umask(0o077)
    try:
        for _ in range(2):  # repeating it is harmless
            unpack(tmp_path / "in/snapshot.tar", read_manifest(tmp_path / "in/snapshot.json"), tmp_path / "work")
    finally:
        os.umask(before)
    assert tree(tmp_path / "work") == tree(source)
    assert [path.name for path in tmp_path.iterdir() if "work" in path.name] == ["work"]


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    seen: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            content: object = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            seen[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return seen


Case = Callable[[Path], Path]


def absolute(folder: Path) -> Path:
    return build(folder, [(member("/etc/x"), b"")], [entry("/etc/x")])


def dotted(folder: Path) -> Path:
    return build(folder, [(member("a/../../x"), b"")], [entry("a/../../x")])


def unnamed(folder: Path) -> Path:
    return build(folder, [(member("a"), b""), (member("b"), b"")], [entry("a")])


def twice(folder: Path) -> Path:
    return build(folder, [(member("a"), b"1"), (member("a"), b"2")], [entry("a", b"1")])


def lacking(folder: Path) -> Path:
    return build(folder, [(member("a"), b"")], [entry("a"), entry("b")])


def other_bytes(folder: Path) -> Path:
    return build(folder, [(member("a"), b"X")], [entry("a", b"Y")])


def device(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.CHRTYPE), b"")], [entry("a")])


def hard_link(folder: Path) -> Path:
    return build(folder, [(member("a"), b""), (member("b", tarfile.LNKTYPE, "a"), b"")], [entry("a"), entry("b")])


def link_out(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.SYMTYPE, "../x"), b"")], [{"path": "a", "link": "../x"}])


def link_absolute(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.SYMTYPE, "/etc"), b"")], [{"path": "a", "link": "/etc"}])


def link_other(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.SYMTYPE, "/etc"), b"")], [{"path": "a", "link": "b"}])


def chain(folder: Path) -> Path:
    """No link leads out by its text; the two together do."""
    directory = member("p/q", tarfile.DIRTYPE)
    members = [
        (directory, b""),
        (member("p/q/b", tarfile.SYMTYPE, "../.."), b""),
        (member("l", tarfile.SYMTYPE, "p/q/b/.."), b""),
    ]
    files: list[dict[str, Any]] = [
        {"path": "p/q", "dir": True, "mode": 0o755},
        {"path": "p/q/b", "link": "../.."},
        {"path": "l", "link": "p/q/b/.."},
    ]
    return build(folder, members, files)


def through_a_link(folder: Path) -> Path:
    members = [(member("a", tarfile.SYMTYPE, "b"), b""), (member("a/x"), b"")]
    return build(folder, members, [{"path": "a", "link": "b"}, entry("a/x")])


def truncated(folder: Path) -> Path:
    tar = build(folder, [(member("a"), b"x" * 100_000)], [entry("a", b"x" * 100_000)])
    tar.write_bytes(tar.read_bytes()[:50_000])
    return tar


def flipped(folder: Path) -> Path:
    tar = build(folder, [(member("a"), b"")], [entry("a")])
    data = bytearray(tar.read_bytes())
    data[-1] ^= 1  # in the padding: only the whole's digest notices
    tar.write_bytes(data)
    return tar


def fifo(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.FIFOTYPE), b"")], [entry("a")])


def block_device(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.BLKTYPE), b"")], [entry("a")])


def renamed_by_pax(folder: Path) -> Path:
    info = member("a")
    info.pax_headers = {"path": "../x"}
    return build(folder, [(info, b"")], [entry("a")])


def link_turned_by_pax(folder: Path) -> Path:
    info = member("a", tarfile.SYMTYPE, "b")
    info.pax_headers = {"linkpath": "/etc"}
    return build(folder, [(info, b"")], [{"path": "a", "link": "b"}])


def long_name_outside(folder: Path) -> Path:
    name = "../" * 60 + "x"  # longer than a header's field: it travels in a record of its own
    return build(folder, [(member(name), b"")], [entry(name)])


def empty_name(folder: Path) -> Path:
    return build(folder, [(member(""), b"")], [entry("")])


def dot(folder: Path) -> Path:
    return build(folder, [(member(".", tarfile.DIRTYPE), b"")], [{"path": ".", "dir": True, "mode": 0o777}])


def double_slash(folder: Path) -> Path:
    return build(folder, [(member("a//b"), b"")], [entry("a//b")])


def nul(folder: Path) -> Path:
    return build(folder, [(member("a"), b"")], [entry("a\0b")])


def file_for_a_folder(folder: Path) -> Path:
    return build(folder, [(member("a"), b"")], [{"path": "a", "dir": True, "mode": 0o755}])


def folder_for_a_file(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.DIRTYPE), b"")], [entry("a")])


def link_for_a_file(folder: Path) -> Path:
    return build(folder, [(member("a", tarfile.SYMTYPE, "/etc/passwd"), b"")], [entry("a")])


def below_a_file(folder: Path) -> Path:
    return build(folder, [(member("a"), b""), (member("a/b"), b"")], [entry("a"), entry("a/b")])


def longer_than_said(folder: Path) -> Path:
    return build(folder, [(member("a"), b"x" * 1000)], [entry("a", b"x")])


def sparse_bomb(folder: Path) -> Path:
    """A terabyte of zeros in two kilobytes (GNU format 1.0: the map stands in the content)."""
    tar, info = folder / "snapshot.tar", member("a")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "a",
        "GNU.sparse.realsize": str(1 << 40),
    }
    content = b"1\n1099511627775\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0")
    info.size = len(content)
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(content))
    said = {**entry("a"), "size": 1 << 40}
    manifest = {"v": 1, "sha256": hashlib.sha256(tar.read_bytes()).hexdigest(), "files": [said]}
    (folder / "snapshot.json").write_text(json.dumps(manifest))
    return tar


def compressed_bomb(folder: Path) -> Path:
    tar = build(folder, [(member("a"), bytes(1 << 20))], [entry("a", bytes(1 << 20))])
    tar.write_bytes(gzip.compress(tar.read_bytes()))
    manifest = json.loads((folder / "snapshot.json").read_text())
    manifest["sha256"] = hashlib.sha256(tar.read_bytes()).hexdigest()
    (folder / "snapshot.json").write_text(json.dumps(manifest))
    return tar


CASES: list[Case] = [absolute, dotted, unnamed, twice, lacking, other_bytes, device, hard_link, link_out, link_absolute]
CASES += [link_other, chain, through_a_link, truncated, flipped, fifo, block_device, renamed_by_pax]
CASES += [link_turned_by_pax, long_name_outside, empty_name, dot, double_slash, nul, file_for_a_folder]
CASES += [folder_for_a_file, link_for_a_file, below_a_file, longer_than_said, sparse_bomb, compressed_bomb]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_not_as_announced_is_refused_whole(tmp_path: Path, case: Case) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/before").touch()
    tar = case(tmp_path / "in")
    with pytest.raises(UnpackError) as caught:
        unpack(tar, read_manifest(tmp_path / "in/snapshot.json"), tmp_path / "work")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "before",
        "in",
        "snapshot.json",
        "snapshot.tar",
        "work",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 2, "sha256": "", "files": []}', '{"v": 1, "files": 3}'])
def test_a_strange_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(UnpackError):
        read_manifest(tmp_path / "m.json")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    tar = build(tmp_path, [(member("a"), b"x")], [entry("a", b"x")])

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_write_file", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(tar, read_manifest(tmp_path / "snapshot.json"), tmp_path / "work")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot.json", "snapshot.tar", "work"]


def test_no_right_beyond_those_of_the_three_groups_is_set(tmp_path: Path) -> None:
    tar = build(tmp_path, [(member("a"), b"")], [entry("a", mode=0o6755)])
    unpack(tar, read_manifest(tmp_path / "snapshot.json"), tmp_path / "work")
    assert (tmp_path / "work/a").stat().st_mode & 0o7777 == 0o755


def test_what_is_sent_holds_no_device_no_pipe_and_nothing_that_a_link_leads_out_to(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    work = tmp_path / "in"
    work.mkdir()
    os.mkfifo(work / "pipe")
    (work / "hard").write_text("x")
    os.link(work / "hard", work / "other")
    (work / "real.py").touch()
    (tmp_path / "out").mkdir()
    take(work, tmp_path / "out")
    with tarfile.open(tmp_path / "out/snapshot.tar") as archive:
        kinds = {item.name: (item.isreg() or item.isdir(), item.islnk()) for item in archive}
    assert kinds == {"hard": (True, False), "other": (True, False), "real.py": (True, False)}
    (work / "way").symlink_to(tmp_path / "secret")
    with pytest.raises(CloudtrainError, match="way"):
        take(work, tmp_path / "out")
