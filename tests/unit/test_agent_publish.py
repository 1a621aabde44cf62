"""Checkpoints to the bucket and back: order of writes, compare-and-set, outages at every call, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.trainer import checkpoint
from cloudtrain.trainer.agent.counted import Counted
from cloudtrain.trainer.agent.deliver import deliver_outputs
from cloudtrain.trainer.agent.objects import Conflict, Fenced, ObjectsError
from cloudtrain.trainer.agent.restore import restore, restore_local
from cloudtrain.trainer.agent.uploads import Publisher
from cloudtrain.trainer.contract import Keys, Latest, latest_from_json, to_json
from tests.memory_objects import MemoryObjects

KEYS = Keys("jobs/j")


@pytest.fixture
def objects() -> MemoryObjects:
    bucket = MemoryObjects()
    bucket.data[KEYS.latest] = to_json(Latest(1)).encode()
    return bucket


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def publisher(objects: MemoryObjects, local: Path, generation: int = 1, **more: object) -> Publisher:
    staging = local.parent / "run" / "uploading"
    return Publisher(objects, KEYS, generation, local, staging=staging, keep=2, **more)  # type: ignore[arg-type]


def save(local: Path, step: int) -> Path:
    return checkpoint.write(local, step, {"model.pt": f"weights of {step}".encode(), "sub/rng": b"r"})


def latest(objects: MemoryObjects) -> Latest:
    return latest_from_json(objects.data[KEYS.latest])


def test_parts_first_then_the_manifest_then_latest(objects: MemoryObjects, local: Path) -> None:
    save(local, 10)
    sender = publisher(objects, local)
    assert sender.publish_newest()
    prefix = KEYS.checkpoint(1, 10)
    writes = [key for call, key in objects.calls if call in ("put", "upload")]
    assert set(writes[:2]) == {f"{prefix}/model.pt", f"{prefix}/sub/rng"}
    assert writes[2:] == [f"{prefix}/MANIFEST.json", KEYS.latest]
    assert (latest(objects).step, latest(objects).key, sender.durable_step) == (10, prefix, 10)
    assert not sender.publish_newest(), "once is enough"


def test_a_job_that_removes_its_checkpoint_folder_has_none(objects: MemoryObjects, local: Path) -> None:
    local.rmdir()
    assert not publisher(objects, local).publish_newest(settle_s=0.0), "or its end would be tried again for ever"


def test_it_survives_an_outage_at_every_call(objects: MemoryObjects, local: Path) -> None:
    save(local, 10)
    for number in range(1, 20):
        bucket = MemoryObjects()
        bucket.data[KEYS.latest] = to_json(Latest(1)).encode()
        sender = publisher(bucket, local)
        count = 0

        def fail(call: str, key: str, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise ObjectsError("down")

        bucket.before = fail
        failed = False
        try:
            sender.publish_newest()
        except ObjectsError:
            failed = True
            assert latest(bucket).step is None
        bucket.before = lambda call, key: None
        sender.publish_newest()
        assert latest(bucket).step == 10
        if not failed:
            assert number > 5
            return
    raise AssertionError("never got through")


def test_answers_that_get_lost_are_no_harm(local: Path) -> None:
    save(local, 10)
    for target in ("MANIFEST.json", "latest.json"):
        bucket = MemoryObjects()
        bucket.data[KEYS.latest] = to_json(Latest(1)).encode()
        sender = publisher(bucket, local)

        def lose(call: str, key: str, target: str = target) -> None:
            if key.endswith(target):
                raise ObjectsError("the answer got lost")

        bucket.after = lose
        with pytest.raises(ObjectsError):
            sender.publish_newest()
        bucket.after = lambda call, key: None
        sender.publish_newest()
        assert (latest(bucket).step, sender.durable_step) == (10, 10)


def test_a_generation_claimed_in_the_middle_fences_it(objects: MemoryObjects, local: Path) -> None:
    save(local, 10)

    def claim(call: str, key: str) -> None:
        if (call, key) == ("put", KEYS.latest) and latest(objects).generation == 1:
            objects.data[KEYS.latest] = to_json(Latest(2)).encode()

    objects.before = claim
    with pytest.raises(Fenced):
        publisher(objects, local).publish_newest()
    assert latest(objects) == Latest(2)


def test_an_older_step_never_replaces_a_newer_one(objects: MemoryObjects, local: Path) -> None:
    objects.data[KEYS.latest] = to_json(Latest(1, 50, "elsewhere")).encode()
    save(local, 10)
    sender = publisher(objects, local)
    sender.publish_newest()
    assert latest(objects).step == 50
    assert sender.durable_step == 50


def test_the_newest_goes_first_and_the_rest_stays(objects: MemoryObjects, local: Path) -> None:
    for step in (900, 1000):
        save(local, step)
    publisher(objects, local).publish_newest()
    assert latest(objects).step == 1000
    assert not any("000000900" in key for key in objects.data)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_published(objects: MemoryObjects, local: Path) -> None:
    save(local, 10)
    path = save(local, 20)
    (path / "model.pt").write_bytes(b"weights of 21")
    sender = publisher(objects, local)
    sender.publish_newest()
    assert latest(objects).step == 10
    assert sender.rejected == ("step-000000020: model.pt does not match its digest",)


def test_a_scripts_own_checkpoint_gets_a_manifest_once_it_is_left_alone(objects: MemoryObjects, local: Path) -> None:
    (local / "step-7").mkdir()
    (local / "step-7" / "weights.bin").write_bytes(b"w")
    sender = publisher(objects, local)
    assert not sender.publish_newest(settle_s=60)
    assert sender.publish_newest(settle_s=0)
    prefix = KEYS.checkpoint(1, 7)
    assert json.loads(objects.data[f"{prefix}/MANIFEST.json"])["files"].keys() == {"weights.bin"}
    assert not (local / "step-7" / "MANIFEST.json").exists()


def test_a_checkpoint_that_its_writer_prunes_meanwhile_still_arrives(objects: MemoryObjects, local: Path) -> None:
    path = save(local, 10)

    def prune(call: str, key: str) -> None:
        if call == "upload" and path.exists():
            path.rename(local / ".gone")

    objects.before = prune
    publisher(objects, local).publish_newest()
    assert latest(objects).step == 10


def test_one_that_changes_meanwhile_is_not_published(objects: MemoryObjects, local: Path) -> None:
    (local / "step-7").mkdir()
    (local / "step-7" / "a").write_bytes(b"a")

    def grow(call: str, key: str) -> None:
        if call == "upload":
            (local / "step-7" / "late").write_bytes(b"b")

    objects.before = grow
    sender = publisher(objects, local)
    assert not sender.publish_newest(settle_s=0)
    assert latest(objects).step is None
    objects.before = lambda call, key: None
    assert sender.publish_newest(settle_s=0)
    assert f"{KEYS.checkpoint(1, 7)}/late" in objects.data


def test_the_bucket_keeps_the_newest_and_the_disk_too(objects: MemoryObjects, local: Path) -> None:
    sender = publisher(objects, local)
    for step in (10, 20, 30, 40):
        save(local, step)
        sender.publish_newest()
        sender.prune_bucket()
        sender.prune_local()
    steps = sorted({key.split("/")[3][-2:] for key in objects.data if "/checkpoints/" in key})
    assert steps == ["30", "40"]
    assert sorted(path.name for path in local.iterdir()) == ["step-000000030", "step-000000040"]


def test_a_fenced_agent_deletes_nothing(objects: MemoryObjects, local: Path) -> None:
    sender = publisher(objects, local)
    for step in (10, 20, 30):
        save(local, step)
        sender.publish_newest()
    objects.data[KEYS.latest] = to_json(Latest(2, 30, KEYS.checkpoint(1, 30))).encode()
    before = dict(objects.data)
    sender.prune_bucket()
    assert objects.data == before
    with pytest.raises(Fenced):
        sender.check_fence()


# ---- restore


@pytest.fixture
def filled(objects: MemoryObjects, local: Path) -> MemoryObjects:
    sender = publisher(objects, local)
    for step in (10, 20):
        save(local, step)
        sender.publish_newest()
    found = latest(objects)
    objects.data[KEYS.latest] = to_json(Latest(2, found.step, found.key, found.manifest_sha256)).encode()
    return objects


def test_the_newest_comes_back_byte_for_byte(filled: MemoryObjects, local: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    found = restore(filled, KEYS, 2, fresh)
    assert (found.step, found.rejected) == (20, ())
    assert found.path is not None
    assert checkpoint.verify(found.path).step == 20
    assert (found.path / "model.pt").read_bytes() == b"weights of 20"
    assert [path.name for path in fresh.iterdir()] == ["step-000000020"]
    downloads = sum(call == "download" for call, _ in filled.calls)
    assert restore(filled, KEYS, 2, fresh).step == 20
    assert sum(call == "download" for call, _ in filled.calls) == downloads, "it is there"


PREFIX = KEYS.checkpoint(1, 20)


@pytest.mark.parametrize(
    ("key", "data", "reason"),
    [
        (f"{PREFIX}/model.pt", b"weights of 2X", "model.pt does not match its digest"),
        (f"{PREFIX}/model.pt", b"weights", "model.pt has 7 bytes, not 13"),
        (f"{PREFIX}/model.pt", None, "model.pt is missing in the bucket"),
        (f"{PREFIX}/MANIFEST.json", None, "MANIFEST.json is missing in the bucket"),
        (f"{PREFIX}/MANIFEST.json", b"{}", "MANIFEST.json is not the one that was published"),
    ],
)
def test_damage_is_named_and_the_one_before_is_used(
    filled: MemoryObjects, tmp_path: Path, key: str, data: bytes | None, reason: str
) -> None:
    if data is None:
        del filled.data[key]
    else:
        filled.data[key] = data
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    found = restore(filled, KEYS, 2, fresh)
    assert (found.step, found.rejected) == (10, (f"g0001-step-000000020: {reason}",))
    assert found.damaged == {PREFIX}
    assert [path.name for path in fresh.iterdir()] == ["step-000000010"], "nothing damaged is left lying about"
    (fresh / "step-000000010").rename(fresh / "gone")
    save(fresh, 15)
    sender = publisher(filled, fresh, 2, durable_step=found.step, damaged=found.damaged)
    assert sender.publish_newest()
    assert latest(filled).step == 15, "what training repeats replaces what is damaged"


def test_nothing_whole_is_said_aloud(filled: MemoryObjects, tmp_path: Path) -> None:
    for step in (10, 20):
        filled.data[f"{KEYS.checkpoint(1, step)}/model.pt"] = b"?"
    found = restore(filled, KEYS, 2, tmp_path)
    assert found.step is None and len(found.rejected) == 3
    assert "from the beginning" in found.rejected[-1]


def test_no_checkpoint_yet_is_no_complaint(tmp_path: Path, objects: MemoryObjects) -> None:
    found = restore(objects, KEYS, 1, tmp_path)
    assert (found.step, found.path, found.rejected) == (None, None, ())


def test_a_bucket_that_does_not_answer_is_never_taken_for_an_empty_one(filled: MemoryObjects, tmp_path: Path) -> None:
    for number in range(1, 12):
        count = 0

        def fail(call: str, key: str, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise ObjectsError("down")

        filled.before = fail
        try:
            assert restore(filled, KEYS, 2, tmp_path).step == 20
            return
        except ObjectsError:
            continue
    raise AssertionError("never got through")


def test_a_newer_generation_leaves_nothing_to_restore(filled: MemoryObjects, tmp_path: Path) -> None:
    with pytest.raises(Fenced):
        restore(filled, KEYS, 1, tmp_path)


def test_after_a_crash_the_local_disk_may_know_more(filled: MemoryObjects, local: Path) -> None:
    save(local, 30)
    (local / "step-40").mkdir()
    (local / "step-40" / "half").write_bytes(b"h")
    found = restore_local(local, restore(filled, KEYS, 2, local))
    assert found.step == 30 and found.path == local / "step-000000030"
    assert found.rejected[0].startswith("step-40 on this disk")
    assert not (local / "step-40").exists()


# ---- outputs


def test_outputs_go_up_with_their_manifest_last(objects: MemoryObjects, tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    (folder / "a b").mkdir(parents=True)
    (folder / "a b" / "中.txt").write_text("x")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "out").symlink_to("/etc/hostname")
    assert deliver_outputs(objects, KEYS, 1, folder) == ("out",)
    document = json.loads(objects.data["jobs/j/outputs.json"])
    assert document["generation"] == 1
    assert [(f["path"], f["size"], f["mode"]) for f in document["files"]] == [
        ("a b/中.txt", 1, (folder / "a b" / "中.txt").stat().st_mode & 0o777),
        ("run.sh", 10, 0o755),
    ]
    assert objects.calls[-1] == ("put", "jobs/j/outputs.json")
    assert objects.data["jobs/j/outputs/a b/中.txt"] == b"x"


def test_outputs_of_an_earlier_attempt_are_kept_and_same_ones_not_sent_again(
    objects: MemoryObjects, tmp_path: Path
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder, names in ((first, ("early", "same")), (second, ("same", "late"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
    deliver_outputs(objects, KEYS, 1, first)
    deliver_outputs(objects, KEYS, 2, second)
    assert [f["path"] for f in json.loads(objects.data["jobs/j/outputs.json"])["files"]] == ["early", "late", "same"]
    assert objects.calls.count(("upload", "jobs/j/outputs/same")) == 1
    with pytest.raises(Fenced):
        deliver_outputs(objects, KEYS, 1, first)


def test_outputs_stop_when_the_time_is_up(objects: MemoryObjects, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert deliver_outputs(objects, KEYS, 1, tmp_path, in_time=lambda: False) == ("a",)
    assert "jobs/j/outputs/a" not in objects.data


def test_what_goes_to_the_bucket_and_comes_from_it_is_counted(objects: MemoryObjects, tmp_path: Path) -> None:
    counted, file = Counted(objects), tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    counted.upload_file(file, "a")
    counted.put("b", b"12345")
    with pytest.raises(Conflict):
        counted.put("b", b"12345", if_none_match=True)
    assert (counted.sent_bytes, counted.received_bytes) == (1005, 0), "what was refused is not counted"
    counted.download("a", tmp_path / "back")
    assert counted.get("b") is not None and counted.get("nothing") is None
    assert b"".join(counted.read("a", start=0, length=10).chunks) == b"x" * 10
    assert sorted(counted.list(""))[:2] == [("a", 1000), ("b", 5)]
    counted.delete(["a"])
    assert (counted.sent_bytes, counted.received_bytes) == (1005, 1015)
