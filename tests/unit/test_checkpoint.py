"""Checkpoints are whole or absent, damage is noticed in every byte, and pruning never costs the newest good one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.trainer import checkpoint
from cloudtrain.trainer.checkpoint import CheckpointRejected
from cloudtrain.trainer.contract import MANIFEST_NAME, checkpoint_name


def make(directory: Path, step: int, payload: bytes = b"weights " * 64) -> Path:
    return checkpoint.write(directory, step, {"model.pt": payload, "more/rng.bin": b"rng" * 20}, {"epoch": 2})


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_written_is_there_and_verifies(tmp_path: Path) -> None:
    def in_two_pieces(file: BinaryIO) -> None:
        file.write(b"first ")
        file.write(memoryview(b"second"))

    path = checkpoint.write(tmp_path, 123, {"model.pt": in_two_pieces, "deep/er/x": b"y"}, {"epoch": 2})

    assert path == tmp_path / "step-000000123"
    assert (path / "model.pt").read_bytes() == b"first second"
    manifest = checkpoint.verify(path)
    assert (manifest.step, manifest.extra, manifest.total_bytes) == (123, {"epoch": 2}, 13)
    assert sorted(manifest.files) == ["deep/er/x", "model.pt"]
    assert names(tmp_path) == ["step-000000123"]


def test_every_file_is_on_the_disk_before_the_name_is_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noting_fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def noting_rename(path: Path, target: Path) -> Path:
        events.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    make(tmp_path, 1)
    before, after = events[: events.index("renamed")], events[events.index("renamed") + 1 :]
    assert before[:3] == ["model.pt", "rng.bin", MANIFEST_NAME]
    assert sorted(before[3:]) == [f".step-1.tmp-{os.getpid()}", "more"]
    assert after == [tmp_path.name]


@given(data=st.data())
def test_no_flipped_bit_goes_unnoticed_in_any_file(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = make(tmp_path_factory.mktemp("flip"), 7)
    file = path / data.draw(st.sampled_from([MANIFEST_NAME, "model.pt", "more/rng.bin"]))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)

    if file.name == MANIFEST_NAME and _same_json(bytes(content), path):
        return  # one kind of white space for another: the manifest still says the same
    with pytest.raises(CheckpointRejected):
        checkpoint.verify(path)


def _same_json(text: bytes, path: Path) -> bool:
    import json

    fresh = make(path.parent / "again", 7)
    try:
        return bool(json.loads(text) == json.loads((fresh / MANIFEST_NAME).read_bytes()))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: (p / "model.pt").write_bytes((p / "model.pt").read_bytes()[:-1]), "model.pt has 511 bytes, not 512"),
        (lambda p: (p / "model.pt").write_bytes(b"WEIGHTS " * 64), "model.pt does not match its digest"),
        (lambda p: (p / "more/rng.bin").unlink(), "more/rng.bin is missing"),
        (lambda p: (p / MANIFEST_NAME).write_bytes(b""), "MANIFEST.json is empty"),
        (lambda p: (p / MANIFEST_NAME).write_bytes(b"[1]"), "MANIFEST.json is damaged"),
        (lambda p: (p / MANIFEST_NAME).write_bytes(b'{"v": 1, "step": 20}'), "MANIFEST.json is damaged"),
        (lambda p: (p / MANIFEST_NAME).unlink(), "no MANIFEST.json: the checkpoint is incomplete"),
    ],
)
def test_a_damaged_one_is_refused_and_named_and_the_next_older_used(
    tmp_path: Path, damage: object, reason: str
) -> None:
    older = make(tmp_path, 10)
    damage(make(tmp_path, 20))  # type: ignore[operator]

    assert checkpoint.newest(tmp_path) == (older, [("step-000000020", reason)])


def test_a_manifest_of_another_step_or_version_or_with_a_path_outside_is_refused(tmp_path: Path) -> None:
    make(tmp_path, 10).rename(tmp_path / "step-000000011")
    with pytest.raises(CheckpointRejected, match="is of step 10, not of step 11"):
        checkpoint.verify(tmp_path / "step-000000011")

    (tmp_path / "step-12").mkdir()
    (tmp_path / "step-12" / "a").write_bytes(b"a")
    manifest = checkpoint.describe(tmp_path / "step-12")
    for change in ({"files": {"../a": {"bytes": 1, "sha256": ""}}}, {"v": 2}):
        changed = {**manifest, **change}
        del changed["sha256"]
        changed["sha256"] = checkpoint._digest(changed)
        with pytest.raises(CheckpointRejected, match=r"no file name for a part|has version 2"):
            checkpoint.decode(checkpoint.encode(changed))


def test_steps_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("step-900", "step-1000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(name.encode())
        (tmp_path / name / MANIFEST_NAME).write_bytes(checkpoint.encode(checkpoint.describe(tmp_path / name)))

    assert checkpoint.newest(tmp_path) == (tmp_path / "step-1000", [])
    assert checkpoint.prune(tmp_path, keep=1) == ["step-900"]


def test_nothing_there_is_nothing_found(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "absent") == (None, [])
    assert checkpoint.prune(tmp_path / "absent", keep=3) == []


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    make(tmp_path, 5, b"old")
    path = make(tmp_path, 5, b"new")

    assert (path / "model.pt").read_bytes() == b"new"
    assert checkpoint.verify(path).step == 5
    assert names(tmp_path) == ["step-000000005"]


def test_a_write_that_fails_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    make(tmp_path, 5)

    def full_disk(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, 6, {"a": b"whole", "b": full_disk})
    assert names(tmp_path) == ["step-000000005"]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-000000005", [])


def test_prune_counts_and_removes_only_valid_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        make(tmp_path, step)
    (tmp_path / "step-000000005" / "model.pt").write_bytes(b"rotten" * 100)
    (tmp_path / "step-000000004" / MANIFEST_NAME).unlink()

    assert checkpoint.prune(tmp_path, keep=2) == ["step-000000001"]
    assert names(tmp_path) == [checkpoint_name(step) for step in (2, 3, 4, 5)]
    assert checkpoint.prune(tmp_path, keep=0) == ["step-000000002"]
    assert checkpoint.newest(tmp_path)[0] == tmp_path / "step-000000003"


def test_prune_of_own_ones_leaves_another_runs_alone(tmp_path: Path) -> None:
    for step in (1, 2, 3, 900):
        make(tmp_path, step)
    own = [checkpoint_name(step) for step in (1, 2, 3)]

    assert checkpoint.prune(tmp_path, keep=2, own=own) == ["step-000000001"]
    assert names(tmp_path) == [checkpoint_name(step) for step in (2, 3, 900)]


def test_sweep_takes_what_the_dead_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".step-7.tmp-{dead.pid}", f".step-6.old-{dead.pid}", f".step-8.tmp-{os.getppid()}", "mine.tmp-1"):
        (tmp_path / name).mkdir()

    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == sorted([f".step-8.tmp-{os.getppid()}", "mine.tmp-1"])


def test_describe_makes_a_scripts_own_checkpoint_verifiable(tmp_path: Path) -> None:
    path = tmp_path / "step-40"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "é 1.bin").write_bytes(b"12345")
    (path / "link.bin").symlink_to("sub/é 1.bin")

    manifest = checkpoint.describe(path, {"by": "script"})
    assert (manifest["step"], sorted(manifest["files"]), manifest["extra"]) == (
        40,
        ["link.bin", "sub/é 1.bin"],
        {"by": "script"},
    )
    (path / MANIFEST_NAME).write_bytes(checkpoint.encode(manifest))
    assert checkpoint.verify(path).total_bytes == 10
    assert checkpoint.describe(path, {"by": "script"}) == manifest


@pytest.mark.parametrize(
    ("name", "fill", "reason"),
    [
        ("final", lambda p: (p / "a").write_bytes(b"a"), "not named like a checkpoint"),
        ("step-1", lambda p: None, "holds no file"),
        ("step-1", lambda p: os.mkfifo(p / "pipe"), "pipe is neither a file nor a directory"),
        ("step-1", lambda p: (p / "up").symlink_to(".."), "up is neither a file nor a directory"),
        ("step-1", lambda p: (p / "gone").symlink_to("nowhere"), "gone is neither a file nor a directory"),
    ],
)
def test_describe_refuses_what_would_not_come_back_the_same(
    tmp_path: Path, name: str, fill: object, reason: str
) -> None:
    path = tmp_path / name
    path.mkdir()
    fill(path)  # type: ignore[operator]
    with pytest.raises(CheckpointRejected, match=reason):
        checkpoint.describe(path)


WRITER = """
import sys
from pathlib import Path
from cloudtrain.trainer import checkpoint
for step in range(int(sys.argv[2]), 100_000):
    checkpoint.write(Path(sys.argv[1]), step, {"model.pt": lambda file: [file.write(bytes(4096)) for _ in range(200)]})
    checkpoint.prune(Path(sys.argv[1]), keep=2)
    print(step, flush=True)
"""


def test_kill_9_in_the_middle_of_saves_never_costs_a_finished_one(tmp_path: Path) -> None:
    step = 1
    for attempt in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(step)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.011 * (attempt + 1))
        writer.send_signal(signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().split()] or [step]
        writer.stdout.close()
        writer.wait()
        found, rejected = checkpoint.newest(tmp_path)
        assert found is not None
        assert rejected == []
        step = checkpoint.verify(found).step
        assert step >= reported[-1]
        step += 1
    make(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2)
    assert len(names(tmp_path)) == 2, "what the killed writers left is swept"
