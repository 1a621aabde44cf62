"""A script of the user's own, in a workdir with everything in it that could get in the way."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.localcloud import client
from tests.e2e.story import Person, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-own-script")]

# What the script writes, and what the test works out for itself: each name with its mode, and its digest or its target.
LISTING = """
import hashlib, json, os, stat
def listing(root):
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                what = "-> " + os.readlink(path)
            elif stat.S_ISDIR(info.st_mode):
                what = "folder"
            else:
                with open(path, "rb") as file:
                    what = hashlib.sha256(file.read()).hexdigest()
            mode = "" if stat.S_ISLNK(info.st_mode) else oct(stat.S_IMODE(info.st_mode))
            found[os.path.relpath(path, root)] = mode + " " + what
    return json.dumps(found, sort_keys=True)
"""

# A name that cloudtrain's own code has too. Whoever takes this one for cloudtrain's, or runs it in place of it, fails.
THEIR_TRAINER = """
import sys
if sys.argv[0] != "train.py":
    raise SystemExit("the user's package was picked up by " + sys.argv[0])
NAME = "the user's own trainer"
"""

TRAIN = (
    LISTING
    + """
here = listing(".")
attempt = os.environ.get("CLOUDTRAIN_ATTEMPT", "0")
if "CLOUDTRAIN_OUTPUT_DIR" in os.environ:
    with open(os.path.join(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "listing-%s.json" % attempt), "w") as file:
        file.write(here)
import subprocess, time
import trainer, trainer.model
import torch
import cloudtrain.trainer
from cloudtrain.trainer import Session

assert attempt == "0" or "/cloudtrain/agent/cloudtrain/" in cloudtrain.trainer.__file__, "not the one that was shipped"
assert trainer.NAME == "the user's own trainer" and trainer.model.WIDTH == 8
assert trainer.__file__ == os.path.abspath("trainer/__init__.py"), trainer.__file__
subprocess.run(["./tools/say it's.sh", "hello"], check=True)
torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Linear(trainer.model.WIDTH, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.rand(120, trainer.model.WIDTH), batch_size=4, shuffle=True)
session = Session(model=model, optimizer=optimizer)
session.resume()
for batch in session.batches(loader, epochs=2):
    loss = (model(batch + 0.1 * torch.rand_like(batch)) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(float(os.environ.get("PACE_S", "0")))
    if session.step(loss=loss): break
session.finish()
print("loss", loss.item().hex())
"""
)

# No Session, no torch, no progress file, no word about signals: whole checkpoints by rename, and one variable.
PLAIN = """
import json, os, shutil, time
place, outputs = os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], os.environ["CLOUDTRAIN_OUTPUT_DIR"]
done = []
if "CLOUDTRAIN_RESUME" in os.environ:
    with open(os.path.join(os.environ["CLOUDTRAIN_RESUME"], "state.json")) as file:
        done = json.load(file)
while len(done) < 40:
    time.sleep(0.1)
    done.append(int(os.environ["CLOUDTRAIN_ATTEMPT"]))
    if len(done) % 5 == 0:
        os.makedirs(os.path.join(place, "tmp"))
        with open(os.path.join(place, "tmp", "state.json"), "w") as file:
            json.dump(done, file)
        os.rename(os.path.join(place, "tmp"), os.path.join(place, "step-%d" % len(done)))
        time.sleep(2.5 if len(done) == 10 else 0)  # left alone for long enough to be taken as whole
with open(os.path.join(outputs, "done.json"), "w") as file:
    json.dump(done, file)
"""


def write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def job_file(folder: Path, name: str, interval: str, pace_s: float = 0) -> Path:
    path = folder / "job.yaml"
    path.write_text(
        f"name: {name}\nresources: {{accelerators: 'T4:1', use_spot: true}}\nworkdir: work dir\nrun: python train.py\n"
        f"envs: {{PACE_S: '{pace_s}'}}\ncheckpoint: {{interval: {interval}}}\n"
    )
    return path


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    someone = Person(home)
    try:
        someone.ok("local", "up")
        yield someone
    finally:
        someone.leave()


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    work = tmp_path / "work dir"
    write(work / "train.py", TRAIN)
    write(work / "trainer" / "__init__.py", THEIR_TRAINER)
    write(work / "trainer" / "model.py", "WIDTH = 8\n", 0o600)
    write(work / "tools" / "say it's.sh", "#!/bin/sh\necho said $1\n", 0o755)
    write(work / "数据" / '训练 "集".bin', bytes(range(256)) * 700, 0o444)
    write(work / "a\nb $HOME `id` *.txt", "line\r\nend without newline")
    write(work / ".hidden" / "empty", "", 0o640)
    (work / "nothing here").mkdir(mode=0o750)
    (work / "-rf").symlink_to('数据/训练 "集".bin')
    (work / "folder link").symlink_to("trainer", target_is_directory=True)
    return work


def listing(root: Path) -> dict[str, str]:
    found = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(root))] = f" -> {path.readlink()}"
            continue
        mode = oct(stat.S_IMODE(path.stat().st_mode))
        what = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(root))] = f"{mode} {what}"
    return found


def undisturbed(workdir: Path, tmp_path: Path) -> str:
    """The last line of the script when it runs by itself, without cloudtrain around it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")}
    copy = tmp_path / "by itself"
    subprocess.run(["cp", "-a", str(workdir), str(copy)], check=True)
    done = subprocess.run([sys.executable, "train.py"], cwd=copy, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def told(person: Person, name: str, key: str) -> int:
    """A number that a machine has in a file of its run folder. Read there: asking the cloud costs the job its CPU."""
    numbers = [0]
    for path in (person.home / "local" / "hosts").glob(f"*/home/cloudtrain/run/{name}"):
        numbers.append(json.loads(path.read_text())[key] or 0)
    return max(numbers)


def test_its_own_packages_and_odd_names_arrive_as_they_were_at_launch(
    person: Person, workdir: Path, tmp_path: Path
) -> None:
    before = listing(workdir)
    job = job_file(tmp_path, "own", "500 steps", pace_s=0.1)
    launch = person.start(
        "launch", str(job), "--cloud", "local", "--yes", "-o", "json", "--into", str(tmp_path / "out")
    )
    until(lambda: told(person, "progress.json", "step") >= 5, "the first steps")
    # From here on the workdir is another one; what was launched is not.
    write(workdir / "train.py", "raise SystemExit('edited after the launch')\n")
    write(workdir / "trainer" / "__init__.py", "raise ImportError('edited after the launch')\n")
    (workdir / "tools" / "say it's.sh").chmod(0o600)
    (workdir / "-rf").unlink()
    write(workdir / "new.txt", "new")
    assert client.interrupt(person.cloud(), "own", notice_s=3)
    said = person.wait(launch)
    assert said.code == 0, said
    report = said.json()
    assert [a["end_reason"] for a in report["attempts"]] == ["interrupted", "succeeded"]
    assert (report["steps"], report["lost_steps"], report["interruptions"]) == (60, 0, 1)
    assert report["attempts"][1]["start_step"] >= 5
    for attempt in (1, 2):
        assert json.loads((tmp_path / "out" / f"listing-{attempt}.json").read_text()) == before
    log = person.ok("logs", report["job"]).out
    assert log.count("said hello") == 2

    # The same script, left alone, without cloudtrain.
    write(workdir / "train.py", TRAIN)
    write(workdir / "trainer" / "__init__.py", THEIR_TRAINER)
    (workdir / "tools" / "say it's.sh").chmod(0o755)
    assert undisturbed(workdir, tmp_path) == log.splitlines()[-1]


def test_a_plain_script_that_renames_its_checkpoints_survives_a_machine_lost_without_notice(
    person: Person, tmp_path: Path
) -> None:
    write(tmp_path / "work dir" / "train.py", PLAIN)
    job = job_file(tmp_path, "plain", "5 steps")
    launch = person.start(
        "launch", str(job), "--cloud", "local", "--yes", "-o", "json", "--into", str(tmp_path / "out")
    )
    until(lambda: told(person, "status.json", "durable_step") >= 10, "a checkpoint in the bucket")
    assert client.interrupt(person.cloud(), "plain", notice_s=0)
    said = person.wait(launch)
    assert said.code == 0, said
    report = said.json()
    assert [a["end_reason"] for a in report["attempts"]] == ["interrupted", "succeeded"]
    start = report["attempts"][1]["start_step"]
    assert start >= 10
    done = json.loads((tmp_path / "out" / "done.json").read_text())
    assert done == [1] * start + [2] * (40 - start), "each step once, by the attempt that the bill names"
    assert person.machines() == []
