"""The supervisor brings data before setup and run, and does not wait for it where it need not."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.trainer.agent.notices import Interruption
from cloudtrain.trainer.agent.objects import ObjectsError
from cloudtrain.trainer.contract import Mount
from tests.unit.agent_stand import Stand, standing


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    with standing(tmp_path, monkeypatch) as made:
        yield made


def words(stand: Stand) -> tuple[Mount, ...]:
    """A mount of one file of seven bytes, below the job's folder."""
    digest = hashlib.sha256(b"content").hexdigest()
    row = {"path": "a", "mode": 0o644, "size": 7, "sha256": digest}
    data = json.dumps({"v": 1, "source": "/data", "single": False, "files": [row]}).encode()
    stand.objects.data |= {"mounts/j/0.json": data, f"files/{digest}": b"content"}
    return (Mount("data", "mounts/j/0.json", hashlib.sha256(data).hexdigest(), 7, 1),)


def slow_files(stand: Stand) -> threading.Event:
    """Files come once the event is set."""
    go = threading.Event()

    def wait(call: str, key: str) -> None:
        if key.startswith("files/"):
            go.wait(20)

    stand.objects.before = wait
    return go


def test_data_is_there_before_setup_and_run(stand: Stand) -> None:
    mounts = words(stand)
    go = slow_files(stand)
    stand.start("cat data/a seen > $CLOUDTRAIN_OUTPUT_DIR/found", setup="cat data/a > seen", mounts=mounts)
    status = stand.until(lambda s: s.phase == "mounting")
    assert (status.mounted_bytes, status.mount_bytes, status.restore_s) == (0, 7, None)
    time.sleep(0.2)
    assert not (stand.places.work / "seen").exists()
    go.set()
    status = stand.end()
    assert (status.phase, status.mounted_bytes) == ("done", 7)
    assert status.restore_s is not None and 0.2 < status.restore_s < 20
    assert (stand.places.outputs / "found").read_bytes() == b"contentcontent"


def test_a_stop_does_not_wait_for_data(stand: Stand) -> None:
    mounts = words(stand)
    go = slow_files(stand)
    stand.start("touch ran", mounts=mounts)
    stand.until(lambda s: s.phase == "mounting")
    stand.watcher.interruption = Interruption("terminate", time.time() + 60)
    status = stand.until(lambda s: s.phase == "stopped", timeout_s=5)
    assert (status.exit_code, status.failure) == (None, None)
    assert not (stand.places.work / "ran").exists()
    go.set()


def test_data_that_can_not_be_brought_fails_the_job_with_the_reason(stand: Stand) -> None:
    mounts = words(stand)
    (stand.places.work / "data").write_text("theirs")
    stand.start("touch ran", mounts=mounts)
    status = stand.end()
    assert (status.phase, status.failure) == ("failed", "job")
    assert status.error is not None and "file_mounts data: " in status.error and "is a file already" in status.error
    assert not (stand.places.work / "ran").exists()


def test_an_outage_while_data_comes_is_said(stand: Stand) -> None:
    mounts = words(stand)

    def down(call: str, key: str) -> None:
        if key.startswith("files/"):
            raise ObjectsError("no route to the bucket")

    stand.objects.before = down
    stand.start("true", mounts=mounts)
    status = stand.until(lambda s: s.phase == "mounting" and s.error is not None)
    assert status.error == "no route to the bucket"
    stand.objects.before = lambda call, key: None
    assert stand.end().phase == "done"
