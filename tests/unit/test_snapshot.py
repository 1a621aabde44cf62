"""The workdir snapshot: byte for byte, once, deterministic, and refusing what can't travel."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.shipping import snapshot
from cloudtrain.provisioner.shipping.snapshot import Snapshot, take


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def manifest(into: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((into / "snapshot.json").read_text(encoding="ascii"))
    return found


def paths(into: Path) -> list[str]:
    return [row["path"] for row in manifest(into)["files"]]


def unpack(into: Path, target: Path) -> None:
    with tarfile.open(into / "snapshot.tar", encoding="utf-8", errors="surrogateescape") as tar:
        tar.extractall(target, filter="tar")


NAMES = [
    "with space",
    "quo'te\"s",
    "$HOME `x` $(y)",
    "new\nline",
    "-rf",
    "训练 数据.py",
    unicodedata.normalize("NFD", "é.txt"),
    unicodedata.normalize("NFC", "é.txt"),
    "x" * 255,
    os.fsdecode(b"not-utf8-\xff\xfe"),
    "back\\slash",
    "tab\tname",
]


def test_names_bytes_and_modes_arrive_as_they_are(work: Path, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        (work / name).write_bytes(os.urandom(number * 100))
    run = work / "run me.sh"
    run.write_text("#!/bin/sh\n")
    run.chmod(0o755)
    (work / "deep" / ("y" * 255)).mkdir(parents=True)
    (work / "deep" / ("y" * 255) / "目录").mkdir(mode=0o700)
    (work / "empty").mkdir()
    (work / "link").symlink_to("deep/../run me.sh")
    (work / "dangling").symlink_to("./not there")
    taken = take(work, tmp_path / "job")
    unpack(tmp_path / "job", tmp_path / "out")
    assert shape(tmp_path / "out") == shape(work)
    assert taken.omitted == ()
    assert taken.files == len(NAMES) + 3
    assert taken.bytes == sum(n * 100 for n in range(len(NAMES))) + len("#!/bin/sh\n")


def shape(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything below root that must survive: kinds, modes, bytes, link texts."""
    found: dict[bytes, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        key = os.fsencode(path.relative_to(root))
        if path.is_symlink():
            found[key] = ("link", os.readlink(path))  # noqa: PTH115 - as written
        elif path.is_dir():
            found[key] = ("dir", path.stat().st_mode)
        else:
            found[key] = ("file", path.stat().st_mode, path.read_bytes())
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=60).filter(
            lambda n: n not in (b".", b"..", b".gitignore") and not set(n) & {0, 47}
        ),
        st.binary(max_size=300),
        max_size=6,
    )
)
def test_any_names_and_bytes_survive(content: dict[bytes, bytes]) -> None:
    with tempfile.TemporaryDirectory() as base:
        work, job = Path(base, "work"), Path(base, "job")
        (work / "sub").mkdir(parents=True)
        for name, data in content.items():
            (work / "sub" / os.fsdecode(name)).write_bytes(data)
        take(work, job)
        unpack(job, Path(base, "out"))
        assert shape(Path(base, "out")) == shape(work)


def test_the_manifest_names_every_member_and_the_hash_of_the_tar(work: Path, tmp_path: Path) -> None:
    (work / "a").mkdir(mode=0o750)
    (work / "a" / "f.py").write_bytes(b"print(1)\n")
    (work / "a" / "f.py").chmod(0o640)
    (work / "l").symlink_to("a/f.py")
    taken = take(work, tmp_path / "job")
    assert taken.sha256 == hashlib.sha256((tmp_path / "job" / "snapshot.tar").read_bytes()).hexdigest()
    assert manifest(tmp_path / "job") == {
        "v": 1,
        "sha256": taken.sha256,
        "files": [
            {"path": "a", "dir": True, "mode": 0o750},
            {"path": "a/f.py", "mode": 0o640, "size": 9, "sha256": hashlib.sha256(b"print(1)\n").hexdigest()},
            {"path": "l", "link": "a/f.py"},
        ],
    }


def test_the_same_content_is_the_same_tar(work: Path, tmp_path: Path) -> None:
    for name in ("b", "a", "a-b", "c"):
        (work / name).write_text(name)
    first = take(work, tmp_path / "one")
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in ("c", "a-b", "b", "a"):
        (copy / name).write_text(name)
        os.utime(copy / name, (1, 1))
    assert take(copy, tmp_path / "two").sha256 == first.sha256
    (copy / "a").write_text("A")
    assert take(copy, tmp_path / "three").sha256 != first.sha256


def test_no_workdir_is_no_snapshot(tmp_path: Path) -> None:
    assert take(None, tmp_path / "job") == Snapshot(None, 0, 0, ())
    assert not (tmp_path / "job").exists()


def test_an_empty_workdir_is_an_empty_snapshot(work: Path, tmp_path: Path) -> None:
    taken = take(work, tmp_path / "job")
    assert taken.sha256
    assert paths(tmp_path / "job") == []


@pytest.mark.parametrize("make_file", [True, False])
def test_a_missing_workdir_is_refused(tmp_path: Path, make_file: bool) -> None:
    if make_file:
        (tmp_path / "gone").write_text("a file")
    with pytest.raises(UsageError, match="gone: no such folder; correct `workdir`"):
        take(tmp_path / "gone", tmp_path / "job")


def test_repository_cache_and_venv_stay_home_and_are_named(work: Path, tmp_path: Path) -> None:
    for name in (".git/objects/x", "pkg/__pycache__/m.pyc", ".venv/bin/python", "pkg/m.py"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    taken = take(work, tmp_path / "job")
    assert taken.omitted == (".git/", ".venv/", "pkg/__pycache__/")
    assert paths(tmp_path / "job") == ["pkg", "pkg/m.py"]


def test_gitignore_counts_and_says_what_was_left_out(work: Path, tmp_path: Path) -> None:
    (work / ".gitignore").write_text("data/\n*.pt\n!keep.pt\n")
    for name in ("data/big.bin", "model.pt", "keep.pt", "src/x.pt", "src/data.py"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    taken = take(work, tmp_path / "job")
    assert paths(tmp_path / "job") == [".gitignore", "keep.pt", "src", "src/data.py"]
    assert taken.omitted == ("data/", "model.pt", "src/x.pt")


def test_cloudtrainignore_stands_instead_of_gitignore(work: Path, tmp_path: Path) -> None:
    (work / ".gitignore").write_text("data/\n")
    (work / ".cloudtrainignore").write_text("notes\n")
    (work / "data").mkdir()
    (work / "data" / "d").write_text("x")
    (work / "notes").write_text("x")
    taken = take(work, tmp_path / "job")
    assert "data/d" in paths(tmp_path / "job")
    assert taken.omitted == ("notes",)


def test_our_own_folders_inside_the_workdir_never_travel(work: Path, tmp_path: Path) -> None:
    (work / "results" / "j1").mkdir(parents=True)
    (work / "f").write_text("x")
    taken = take(work, work / ".state" / "jobs" / "j2", leave_out=[work / "results"])
    assert paths(work / ".state" / "jobs" / "j2") == [".state", ".state/jobs", "f"]
    assert taken.omitted == (".state/jobs/j2/", "results/")


@pytest.mark.parametrize(
    ("link", "target", "words"),
    [
        ("out", "../secret", "leads out of it"),
        ("out", "a/../../secret", "leads out of it"),
        ("out", "/etc/passwd", "is absolute"),
        ("a/out", "../../secret", "leads out of it"),
        ("out", "dot/../secret", "leads out of it"),  # as written inside, as the file system resolves it not
    ],
)
def test_links_that_lead_out_are_refused(work: Path, tmp_path: Path, link: str, target: str, words: str) -> None:
    (work / "a").mkdir()
    (work / "dot").symlink_to(".")
    (tmp_path / "secret").write_text("s")
    (work / link).symlink_to(target)
    with pytest.raises(UsageError, match=words) as caught:
        take(work, tmp_path / "job")
    assert repr(link) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_ignored_link_may_lead_anywhere(work: Path, tmp_path: Path) -> None:
    (work / ".gitignore").write_text("data\n")
    (work / "data").symlink_to("/mnt/data")
    assert take(work, tmp_path / "job").omitted == ("data",)


def test_sockets_and_pipes_are_left_out_and_named(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        taken = take(work, tmp_path / "job")
    assert taken.omitted == ("pipe (pipe)", "sock (socket)")


def test_too_much_is_refused_with_the_biggest_entries(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LIMIT_BYTES", 1000)
    (work / "data").mkdir()
    for number in range(4):
        (work / "data" / f"part{number}").write_bytes(b"x" * 300)
    (work / "small").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"biggest: 'data/' .*, 'small'.*gitignore"):
        take(work, tmp_path / "job")
    assert not (tmp_path / "job" / "snapshot.tar").exists()


def test_a_sparse_giant_is_refused_without_being_read(work: Path, tmp_path: Path) -> None:
    with (work / "giant").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(UsageError, match=r"3\.00 GiB, more than the 1 GiB"):
        take(work, tmp_path / "job")


class _Meddler:
    """Runs something at the first reads of a file, as another process would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, meddle: Any) -> None:
        self.left = times
        real = snapshot._HashingReader.read

        def read(reader: Any, size: int = -1) -> bytes:
            if self.left:
                self.left -= 1
                meddle()
            return real(reader, size)

        monkeypatch.setattr(snapshot._HashingReader, "read", read)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def test_a_file_that_changes_once_is_read_again(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "log").write_bytes(b"abc")
    _Meddler(monkeypatch, 1, lambda: _grow(work / "log"))
    take(work, tmp_path / "job")
    unpack(tmp_path / "job", tmp_path / "out")
    assert (tmp_path / "out" / "log").read_bytes() == b"abcmore"


@pytest.mark.parametrize("kind", ["grows", "shrinks"])
def test_a_file_that_never_rests_is_refused(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = work / "log"
    log.write_bytes(b"abc" * 1000)
    _Meddler(monkeypatch, 10**6, lambda: _grow(log) if kind == "grows" else os.truncate(log, log.stat().st_size // 2))
    if kind == "shrinks":
        monkeypatch.setattr(snapshot, "TRIES", 2)
    with pytest.raises(UsageError, match="'log' keeps changing while it is read"):
        take(work, tmp_path / "job")
    assert not (tmp_path / "job" / "snapshot.tar").exists()


def test_a_file_that_vanishes_is_no_crash(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "a").write_bytes(b"a")
    (work / "b").write_bytes(b"b")
    _Meddler(monkeypatch, 1, lambda: (work / "b").unlink())
    take(work, tmp_path / "job")
    assert paths(tmp_path / "job") == ["a"]


def test_a_pipe_that_takes_a_files_place_does_not_hang(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a").write_bytes(b"a")
    (work / "b").write_bytes(b"b")

    def swap() -> None:
        (work / "b").unlink()
        os.mkfifo(work / "b")

    _Meddler(monkeypatch, 1, swap)
    assert take(work, tmp_path / "job").omitted == ("b (pipe)",)


def test_a_new_snapshot_replaces_the_old_one(work: Path, tmp_path: Path) -> None:
    (work / "a").write_text("1")
    first = take(work, tmp_path / "job")
    (work / "a").write_text("2")
    second = take(work, tmp_path / "job")
    assert first.sha256 != second.sha256
    assert manifest(tmp_path / "job")["sha256"] == second.sha256
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == ["snapshot.json", "snapshot.tar"]


def test_the_tar_is_plain_enough_for_the_tar_command(work: Path, tmp_path: Path) -> None:
    (work / ("n" * 200)).write_text("x")
    take(work, tmp_path / "job")
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "job" / "snapshot.tar", "-C", tmp_path / "out"], check=True)
    assert (tmp_path / "out" / ("n" * 200)).read_text() == "x"
    assert io.BytesIO((tmp_path / "job" / "snapshot.tar").read_bytes()).getbuffer().nbytes % 512 == 0


def test_the_checkpoints_of_a_run_by_hand_stay_here_and_other_folders_of_that_name_travel(tmp_path: Path) -> None:
    for name in ("checkpoints/step-000000100", "sub/checkpoints"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "weights.pt").write_bytes(b"x")
    shot = take(tmp_path / "work", tmp_path / "job")
    assert shot.files == 1
    assert any("checkpoints" in name for name in shot.omitted)
