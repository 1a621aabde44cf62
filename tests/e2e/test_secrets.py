"""A secret reaches `setup` and `run`, and nothing else: all files, objects, arguments and user data are searched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from tests.e2e.story import Person, counting_job, until

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
            with contextlib.suppress(s3.exceptions.NoSuchKey):  # a checkpoint that was pruned meanwhile
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


# ---- twenty secrets of all kinds, through the whole life of a job

IN_THE_SHELL = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    *("WANDB_API_KEY", "HF_TOKEN", "GITHUB_TOKEN", "PIP_INDEX_URL", "PGPASSWORD"),
)
IN_THE_HOME = (".aws/credentials", ".netrc", ".ssh/id_ed25519", ".git-credentials", ".docker/config.json")


def canary(name: str) -> str:
    return f"{CANARY}-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


class Watch:
    """Everybody's command lines, looked at again and again."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            self.seen.update(arguments())


def key_text(private: str) -> str:
    """A line from the middle of a private key, which stands for it all."""
    return private.strip().splitlines()[2]


def test_twenty_secrets_lie_where_they_belong_and_nowhere_else(tmp_path: Path) -> None:
    """Each is looked for in all that was printed, in every file below the home, every object, tag, user data and
    console, and in every command line that ran meanwhile."""
    home, user = tmp_path / "home", tmp_path / "user"
    home.mkdir()
    shell = {name: canary(name) for name in IN_THE_SHELL} | {"PIP_INDEX_URL": f"https://u:{canary('PIP')}@pypi.test/s"}
    person = Person(home, cwd=tmp_path, extra={**shell, "HOME": str(user), "TOKEN": canary("1"), "SHORT": canary("2")})
    for name in IN_THE_HOME:
        path = user / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"password = {canary(name)}\n")
    job = counting_job(tmp_path, steps=20_000)
    (job.parent / ".git").mkdir()
    (job.parent / ".git/config").write_text(f"url = https://u:{canary('git')}@example.com/r.git\n")
    (tmp_path / "labels").write_text(canary("mounted"))
    with job.open("a") as file:
        file.write(f"secrets: [TOKEN, SHORT]\nenvs: {{NOTE: {canary('envs')}}}\n")
        file.write(f"file_mounts: {{data/labels: {tmp_path / 'labels'}}}\n")
    said = []
    try:
        with Watch() as watch:
            said.append(person.ok("launch", str(job), "--cloud", "local", "--yes", "--detach"))
            until(lambda: (person.rows()[0]["step"] or 0) >= 20, "some steps")
            said.append(person.ok("local", "interrupt", "count", "--notice", "2s"))
            until(lambda: person.rows()[0]["attempt"] == 2 and person.rows()[0]["status"] == "RUNNING", "a resume")
            asks = (
                ("show", "count"),
                ("show", "count", "-o", "json"),
                ("logs", "count"),
                ("ls", "-o", "wide"),
                ("cost",),
            )
            said += [person.run(*words) for words in (*asks, ("adopt", "--cloud", "local"), ("config", "show"))]
            job_dir = next(home.glob("jobs/*"))
            keys = {
                name: json.loads((job_dir / f"{name}.json").read_text())["private"]
                for name in ("client-key", "attempt-1.host-key", "attempt-2.host-key")
            }
            own = next(home.glob("local/hosts/*/rootfs/var/lib/cloudtrain/host-key")).read_text()
            everywhere = bucket_and_user_data(person)
            lies = read_all(home)
            said.append(person.ok("down", "count", "--yes"))
    finally:
        person.leave()
    shown = "".join(s.out + s.err for s in said)
    homeless = [*(canary(name) for name in (*IN_THE_SHELL, *IN_THE_HOME)), canary("PIP"), canary("git")]
    of_keys = [key_text(private) for private in (*keys.values(), own)]
    secrets = [canary("1"), canary("2")]
    assert len({*homeless, *of_keys, *secrets, canary("envs"), canary("mounted")}) >= 20
    for value in (*homeless, *of_keys, *secrets, canary("mounted"), canary("envs")):
        assert value not in shown, value
        assert not any(value in line for line in watch.seen), value
    for value in (*homeless, *secrets, key_text(own)):
        assert value.encode() not in everywhere, value
    for value in homeless:
        assert [path for path, data in lies.items() if value.encode() in data] == [], value
    for value in secrets:
        held = [path.relative_to(home).parts for path, data in lies.items() if value.encode() in data]
        names = {(parts[0], parts[-1]) for parts in held}
        assert names == {("jobs", "secrets.json"), ("local", "secrets.json")}, value
    where = [path.relative_to(home).as_posix() for path, data in lies.items() if key_text(own).encode() in data]
    assert where and all("/rootfs/" in path for path in where), "the machine's own key stays there"
    for name, private in keys.items():
        places = [path for path, data in lies.items() if key_text(private).encode() in data]
        assert places, name
        roots = {path.relative_to(home).parts[0] for path in places}
        assert roots <= {"jobs", "local"}, places
        assert not any(path.stat().st_mode & 0o077 for path in places if path.exists()), places


def read_all(home: Path) -> dict[Path, bytes]:
    """The plain files below a home; those of a machine that goes may be gone."""
    found = {}
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 5_000_000:
                found[path] = path.read_bytes()
    return found
