"""A secret reaches `setup` and `run`, and nothing else: all files, objects, arguments and user data are searched."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from tests.e2e.story import Person, until

pytestmark = pytest.mark.slow

CANARY = "canary-5b1f"
NASTY = f'{CANARY} it\'s "quoted"\n$HOME `id` 中文\n' + "x" * 65_000
TELL = """
import hashlib, os
for name in ("TOKEN", "SHORT"):
    print(name, hashlib.sha256(os.environb[name.encode()]).hexdigest())
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    person = Person(home, cwd=tmp_path, extra={"TOKEN": NASTY, "SHORT": f"{CANARY}-short"})
    yield person
    person.leave()


def job_file(person: Person, run: str, secrets: str = "[TOKEN, SHORT]") -> Path:
    assert person.cwd is not None
    work = person.cwd / "work"
    work.mkdir(exist_ok=True)
    (work / "tell.py").write_text(TELL)
    path = person.cwd / "job.yaml"
    path.write_text(
        "name: secretive\n"
        "resources: {accelerators: 'T4:1', use_spot: true}\n"
        f"workdir: {work}\n"
        f"secrets: {secrets}\n"
        "setup: python tell.py\n"
        f"run: |\n  {run}\n"
    )
    return path


def where_it_lies(person: Person) -> list[Path]:
    """The files below the home that hold the canary, but for those of a machine's own agent and job."""
    found = []
    for path in person.home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a machine that goes takes its files along
            if path.is_file() and not path.is_symlink() and CANARY.encode() in path.read_bytes():
                found.append(path.relative_to(person.home))
    return found


def arguments() -> list[str]:
    """The command lines of everything that runs here, but for this test's own."""
    lines = []
    for process in psutil.process_iter():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return lines


def bucket_and_user_data(person: Person) -> bytes:
    """Every object of every bucket, keys and all, and the user data, tags and console of every machine."""
    clients = Clients("local", local_endpoint=person.cloud().endpoint_url)
    s3, ec2 = clients.client("s3", "us-east-1"), clients.client("ec2", "us-east-1")
    held = b""
    for bucket in s3.list_buckets()["Buckets"]:
        for entry in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            held += entry["Key"].encode() + s3.get_object(Bucket=bucket["Name"], Key=entry["Key"])["Body"].read()
    for reservation in ec2.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            data = ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
            held += json.dumps([instance, data["UserData"]], default=str).encode()
    return held


def test_a_secret_reaches_the_job_and_nothing_else(person: Person) -> None:
    job = job_file(
        person, 'python tell.py; touch "$CLOUDTRAIN_OUTPUT_DIR/told"; until test -e stop-now; do sleep 0.1; done'
    )
    person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach")
    hosts = person.home / "local" / "hosts"
    until(lambda: any(hosts.glob("*/home/cloudtrain/outputs/told")), "the job's word")
    (machine,) = (path.relative_to(person.home) for path in hosts.glob("*/home/cloudtrain"))
    (kept,) = (path.relative_to(person.home) for path in person.home.glob("jobs/*/secrets.json"))
    assert sorted(where_it_lies(person)) == sorted([kept, machine / "incoming" / "secrets.json"])
    for path in (kept, machine / "incoming" / "secrets.json"):
        assert (person.home / path).stat().st_mode & 0o777 == 0o600
    assert not any(CANARY in line for line in arguments())
    assert CANARY.encode() not in bucket_and_user_data(person)
    (person.home / machine / "work" / "stop-now").touch()
    until(lambda: person.rows()[0]["status"] == "SUCCEEDED", "the end of the job")
    log = person.ok("logs", "secretive").out
    digests = [hashlib.sha256(value.encode()).hexdigest() for value in (NASTY, f"{CANARY}-short")]
    assert [log.count(digest) for digest in digests] == [2, 2], "in setup and in run"
    until(lambda: not (person.home / kept).exists(), "the value to go with its job")
    assert where_it_lies(person) == []
    assert CANARY.encode() not in bucket_and_user_data(person)


def test_a_job_that_prints_its_secret_has_it_in_its_log_alone(person: Person) -> None:
    said = person.run("launch", str(job_file(person, 'echo "bad token $SHORT"; exit 3')), "--cloud", "local", "--yes")
    assert said.code == 100
    assert "bad token ***" in said.err
    assert CANARY not in said.err + said.out
    told = person.ok("show", "secretive").out + person.ok("show", "secretive", "-o", "json").out
    assert "bad token ***" in told and CANARY not in told
    assert {path.name for path in where_it_lies(person)} == {"0001.log"}


def test_a_secret_that_is_not_set_starts_nothing(person: Person) -> None:
    said = person.run("launch", str(job_file(person, "true", "[TOKEN, WANDB_API_KEY]")), "--cloud", "local", "--yes")
    assert said.code == 2
    assert "WANDB_API_KEY is not set in this shell" in said.err
    assert "export WANDB_API_KEY=…" in said.err
    assert person.jobs() == []
    assert where_it_lies(person) == []
    assert person.run("plan", str(job_file(person, "true", "[WANDB_API_KEY]")), "--cloud", "local").code == 0
