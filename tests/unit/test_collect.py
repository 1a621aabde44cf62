"""The way home: every byte checked, nothing outside the results folder, logs completed from the bucket."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.controller.collect import CollectError, collect
from cloudtrain.provisioner.home import log_path
from cloudtrain.provisioner.model import EndReason, JobRecord
from cloudtrain.trainer.contract import Keys
from tests.fakes import FakeObjectStore
from tests.records import job, over


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    return replace(job(over(1, 100, EndReason.SUCCEEDED)), results=str(tmp_path / "results"))


def bucket(record: JobRecord, **outputs: bytes) -> FakeObjectStore:
    objects, keys = FakeObjectStore(), Keys(record.prefix)
    entries = []
    for name, data in outputs.items():
        objects.objects[f"{keys.outputs()}/{name}"] = data
        entries.append({"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "mode": 0o644})
    objects.objects[f"{keys.outputs()}.json"] = json.dumps({"files": entries, "generation": 1}).encode()
    return objects


def test_outputs_come_home_and_a_second_time_costs_no_download(record: JobRecord, tmp_path: Path) -> None:
    objects = bucket(record, **{"model.pt": b"weights", "sub/模型.txt": b"text"})
    assert collect(record, objects, tmp_path / "job") == 2
    assert (tmp_path / "results" / "model.pt").read_bytes() == b"weights"
    assert (tmp_path / "results" / "sub" / "模型.txt").read_bytes() == b"text"
    for key in [key for key in objects.objects if "/outputs/" in key]:
        del objects.objects[key]
    assert collect(record, objects, tmp_path / "job") == 2


def test_a_damaged_output_is_refused_and_not_left_behind(record: JobRecord, tmp_path: Path) -> None:
    objects = bucket(record, **{"model.pt": b"weights"})
    objects.objects[f"{Keys(record.prefix).outputs()}/model.pt"] = b"wEights"
    with pytest.raises(CollectError, match="arrived damaged"):
        collect(record, objects, tmp_path / "job")
    assert not (tmp_path / "results" / "model.pt").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "", ".", "..", "a/..", "a\0b", "//evil"])
def test_no_output_lands_outside_the_results(record: JobRecord, tmp_path: Path, name: str) -> None:
    with pytest.raises(CollectError, match="would land outside"):
        collect(record, bucket(record, **{name: b"x"}), tmp_path / "job")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"files": 3}',
        b'{"files": [3]}',
        b'{"files": [{"path": 3, "sha256": "x"}]}',
        b'{"files": [{"path": ["a"], "sha256": "x"}]}',
        b'{"files": [{"path": "a", "sha256": null}]}',
        b"[" * 100_000,
    ],
)
def test_a_list_of_outputs_that_a_job_has_forged_is_refused_in_one_line(
    record: JobRecord, tmp_path: Path, manifest: bytes
) -> None:
    objects = FakeObjectStore()
    objects.objects[f"{Keys(record.prefix).outputs()}.json"] = manifest
    with pytest.raises(CollectError, match="the list of outputs") as caught:
        collect(record, objects, tmp_path / "job")
    assert "\n" not in str(caught.value)


def test_a_link_in_the_results_folder_leads_no_output_out_of_it(record: JobRecord, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CollectError, match="by a link there"):
        collect(record, bucket(record, **{"sub/x": b"x"}), tmp_path / "job")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_longer_log_wins(record: JobRecord, tmp_path: Path) -> None:
    objects, path = bucket(record), log_path(tmp_path / "job", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\ntw")
    objects.objects[Keys(record.prefix).log(1)] = b"one\ntwo\n"
    collect(record, objects, tmp_path / "job")
    assert path.read_bytes() == (tmp_path / "results" / "logs" / "0001.log").read_bytes() == b"one\ntwo\n"
    objects.objects[Keys(record.prefix).log(1)] = b"one\n"
    collect(record, objects, tmp_path / "job")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_folder_that_can_not_be_written_is_named_with_what_to_do(record: JobRecord, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(CollectError, match=r"can't be written to .*results.* make room"):
        collect(record, bucket(record, **{"model.pt": b"x"}), tmp_path / "job")


@pytest.mark.parametrize("name", ["logs", "logs/0001.log"])
def test_an_output_named_like_our_logs_comes_home_beside_them(record: JobRecord, tmp_path: Path, name: str) -> None:
    objects = bucket(record, **{name: b"the job's own"})
    objects.objects[Keys(record.prefix).log(1)] = b"one\n"
    for _ in range(2):
        assert collect(record, objects, tmp_path / "job") == 1
        assert (tmp_path / "results" / name).read_bytes() == b"the job's own"
        assert (tmp_path / "results" / "attempt-logs" / "0001.log").read_bytes() == b"one\n"
