"""file_mounts by the real command: a folder of this computer and a bucket's prefix, on each machine of a job."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import Person, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-mounts")]

BUCKET = "somebodys-images"
BIG = random.Random(4).randbytes((17 << 20) + 5)
OBJECTS = {"set/a.bin": b"a", "set/deep/b.bin": b"bb" * 1000, "set/empty": b"", "settee/no": b"no", "set/big": BIG}

# What each attempt finds. The first then waits to be told to stop.
RUN = """
import hashlib, json, os, stat, sys, time
def listing(root):
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            mode = oct(stat.S_IMODE(info.st_mode))
            if stat.S_ISLNK(info.st_mode):
                what = "-> " + os.readlink(path)
            elif stat.S_ISDIR(info.st_mode):
                what = mode + " folder"
            else:
                with open(path, "rb") as file:
                    what = mode + " " + hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, root)] = what
    return found
root, absolute = os.environ["CLOUDTRAIN_MOUNT_ROOT"], sys.argv[1]
found = {"local": listing(root + absolute), "theirs": listing("images")}
found["file"] = open(os.path.expanduser("~/w.txt")).read()
found["setup"] = open("seen-by-setup").read()
attempt = os.environ["CLOUDTRAIN_ATTEMPT"]
with open(os.path.join(os.environ["CLOUDTRAIN_OUTPUT_DIR"], attempt + ".json"), "w") as file:
    json.dump(found, file)
with open(os.environ["CLOUDTRAIN_PROGRESS"] + ".new", "w") as file:
    json.dump({"step": int(attempt)}, file)
os.rename(os.environ["CLOUDTRAIN_PROGRESS"] + ".new", os.environ["CLOUDTRAIN_PROGRESS"])
while attempt == "1" and not os.path.exists(os.environ["CLOUDTRAIN_NOTICE_FILE"]):
    time.sleep(0.05)
"""


class Story:
    """A person with a folder, a job and a bucket of somebody else's in the embedded cloud."""

    def __init__(self, person: Person, folder: Path) -> None:
        self.person = person
        self.data = folder / "data"
        self.own = folder / "own"  # a path of this computer that the job names as a target
        person.ok("local", "up")
        clients = Clients("local", local_endpoint=person.cloud().endpoint_url)
        self.s3: Any = clients.client("s3", "us-east-1")
        self.s3.create_bucket(Bucket=BUCKET)
        for key, data in OBJECTS.items():
            self.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        work = folder / "work"
        (work / "images").mkdir(parents=True)
        (work / "images/covered").write_text("stays behind")
        (work / "train.py").write_text(RUN)
        (folder / "words.txt").write_text("words")
        self.write_data()
        self.job = folder / "job.yaml"
        self.job.write_text(
            "name: data\n"
            "resources: {accelerators: 'T4:1', use_spot: true, memory: 16+}\n"
            f"workdir: {work}\n"
            "file_mounts:\n"
            f"  {self.own}/set: ./data\n"
            f"  images: s3://{BUCKET}/set\n"
            "  ~/w.txt: words.txt\n"
            f"setup: ls images | sort | tr '\\n' ' ' > seen-by-setup\n"
            f"run: python train.py {self.own}/set\n"
        )

    def write_data(self) -> None:
        for name in [
            "plain",
            "with space",
            "quo'te\"s",
            "new\nline",
            "训练.bin",
            os.fsdecode(b"not-utf8-\xff"),
            "sub/-rf",
        ]:
            (self.data / name).parent.mkdir(parents=True, exist_ok=True)
            (self.data / name).write_bytes(os.fsencode(name) * 100)
        (self.data / "sub").chmod(0o750)
        (self.data / "hollow").mkdir()
        (self.data / "empty").touch()
        (self.data / "run.sh").write_text("#!/bin/sh\n")
        (self.data / "run.sh").chmod(0o755)
        (self.data / "link").symlink_to("sub/-rf")
        (self.data / "skipped.tmp").write_text("x")
        (self.data / ".gitignore").write_text("*.tmp\n")

    def local(self) -> dict[str, str]:
        """What must lie there: as the job lists it."""
        namespace: dict[str, Any] = {}
        exec(RUN.partition("root, absolute")[0], namespace)  # the job's own listing, on this side
        found: dict[str, str] = namespace["listing"](str(self.data))
        return {name: what for name, what in found.items() if not name.endswith(".tmp")}

    def found(self, report: Any, attempt: int) -> dict[str, Any]:
        text = (Path(report["results"]) / f"{attempt}.json").read_text()
        document: dict[str, Any] = json.loads(text)
        return document


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    home = tmp_path / "home"
    home.mkdir()
    person = Person(home)
    try:
        yield Story(person, tmp_path)
    finally:
        person.leave()


def test_data_arrives_digest_equal_and_again_after_a_reclaim(story: Story) -> None:
    person = story.person
    said = person.run("launch", str(story.job), "--cloud", "local", "--yes", "-o", "json")
    assert said.code == 100, "machines may read no bucket but ours"
    assert f"`cloudtrain setup --cloud local --read s3://{BUCKET}/set`" in said.err, "which is said before the launch"
    assert f"`cloudtrain setup --read s3://{BUCKET}/set`" in said.json()["detail"], "and at the end"

    person.ok("setup", "--cloud", "local", "--read", f"s3://{BUCKET}/set", "--yes")
    wanted = story.local()
    assert len(wanted) == 13
    client.interrupt(person.cloud(), "data", at_step=1, notice_s=3)
    launched = person.start("launch", str(story.job), "--cloud", "local", "--yes", "-o", "json")
    launching = "the launch: from here on nothing that is edited here counts"
    until(lambda: launched.poll() is not None or len(person.rows()) == 2, launching)
    (story.data / "plain").write_text("edited after the launch")
    (story.data / "sub/-rf").unlink()
    said = person.wait(launched)
    assert said.code == 0, said
    report = said.json()
    assert [a["end_reason"] for a in report["attempts"]] == ["interrupted", "succeeded"]
    assert all(a["restore_s"] is not None for a in report["attempts"])
    theirs = {
        key.removeprefix("set/"): f"0o644 {hashlib.sha256(data).hexdigest()}"
        for key, data in OBJECTS.items()
        if key.startswith("set/")
    }
    for attempt in (1, 2):
        found = story.found(report, attempt)
        assert found["local"] == wanted
        assert {name: what for name, what in found["theirs"].items() if name != "deep"} == theirs
        assert found["file"] == "words"
        assert found["setup"] == "a.bin big deep empty ", "and `setup` had it before"
    assert not story.own.exists(), "this computer's own path is not touched"
    assert "were there already" in said.err and "left out: images/" in said.err


def test_an_object_that_was_changed_after_the_launch_is_refused_by_name(story: Story) -> None:
    person = story.person
    person.ok("setup", "--cloud", "local", "--read", f"s3://{BUCKET}/set", "--yes")
    launched = person.start("launch", str(story.job), "--cloud", "local", "--yes", "-o", "json")
    until(lambda: launched.poll() is not None or any(job["step"] for job in person.rows()), "a first step")
    assert launched.poll() is None, person.wait(launched)
    story.s3.put_object(Bucket=BUCKET, Key="set/a.bin", Body=b"another")
    client.interrupt(person.cloud(), "data", notice_s=0)
    said = person.wait(launched)
    assert said.code == 100, said
    assert f"s3://{BUCKET}/set/a.bin was changed after the launch" in said.json()["detail"]
    assert person.machines() == []
