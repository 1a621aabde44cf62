"""The bundle: what travels, byte for byte, and that the libraries in it stand alone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.shipping import bundle as shipping
from cloudtrain.provisioner.shipping.bundle import bundle, ship_command
from cloudtrain.provisioner.shipping.snapshot import take
from cloudtrain.trainer.agent.unpack import read_manifest, unpack
from cloudtrain.trainer.contract import AgentConfig, config_from_json

CONFIG = AgentConfig(
    "digits-1", 2, "bucket", "us-east-1", "jobs/digits-1", "echo 'hé'\npython train.py", envs={"K": "数"}
)


def received(tmp_path: Path, snapshot_dir: Path | None = None, *, with_deps: bool = False) -> Path:
    """What a machine's own tar makes of the stream."""
    home = tmp_path / "machine"
    home.mkdir()
    with bundle(CONFIG, snapshot_dir, with_deps=with_deps) as stream:
        data = stream.read()
    subprocess.run(["tar", "-xf", "-"], cwd=home, input=data, check=True, capture_output=True)
    return home


def test_the_agent_arrives_whole_and_without_litter(tmp_path: Path) -> None:
    home = received(tmp_path)
    got = {str(p.relative_to(home / "agent")): p.read_bytes() for p in (home / "agent").rglob("*") if p.is_file()}
    package = Path(cloudtrain.__file__).parent
    want = {
        f"cloudtrain/trainer/{p.relative_to(package / 'trainer')}": p.read_bytes()
        for p in (package / "trainer").glob("**/*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert got == {**want, "cloudtrain/__init__.py": (package / "__init__.py").read_bytes()}
    assert "cloudtrain/trainer/agent/bootstrap.py" in got
    assert not (home / "deps").exists()


def test_the_config_arrives_as_it_is_and_is_nobody_elses_business(tmp_path: Path) -> None:
    path = received(tmp_path) / "incoming" / "agent.json"
    assert config_from_json(path.read_text(encoding="utf-8")) == CONFIG
    assert path.stat().st_mode & 0o777 == 0o600


def test_secrets_arrive_as_they_are_and_only_when_there_are_some(tmp_path: Path) -> None:
    values = {"TOKEN": 'it\'s "quoted"\nand 中文 \udcff', "LONG": "x" * 65536}
    home = tmp_path / "machine"
    home.mkdir()
    with bundle(CONFIG, None, values, with_deps=False) as stream:
        subprocess.run(["tar", "-xf", "-"], cwd=home, input=stream.read(), check=True)
    path = home / "incoming" / "secrets.json"
    assert json.loads(path.read_bytes()) == values
    assert path.stat().st_mode & 0o777 == 0o600
    with bundle(CONFIG, None, {}, with_deps=False) as stream:
        assert b"incoming/secrets.json" not in stream.read()


def test_the_snapshot_arrives_and_the_machine_can_verify_and_unpack_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "中文 dir").mkdir(parents=True)
    (work / "中文 dir" / "it's.py").write_bytes(b"x" * 1000)
    (work / "run").write_bytes(b"")
    (work / "run").chmod(0o755)
    (work / "link").symlink_to("run")
    shot = take(work, tmp_path / "job")
    home = received(tmp_path, tmp_path / "job")
    tar = home / "incoming" / "snapshot.tar"
    assert hashlib.sha256(tar.read_bytes()).hexdigest() == shot.sha256
    unpack(tar, read_manifest(home / "incoming" / "snapshot.json"), tmp_path / "out")
    assert (tmp_path / "out" / "中文 dir" / "it's.py").read_bytes() == b"x" * 1000
    assert (tmp_path / "out" / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "link").readlink() == Path("run")


def test_no_workdir_no_snapshot(tmp_path: Path) -> None:
    assert [p.name for p in (received(tmp_path) / "incoming").iterdir()] == ["agent.json"]


def test_a_lost_snapshot_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CloudtrainError, match=r"snapshot\.json is missing, so job digits-1 can't be started again"):
        bundle(CONFIG, tmp_path, with_deps=False)


def test_a_stream_is_read_in_any_bites_and_twice_the_same(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "f").write_bytes(b"y" * 100_000)
    take(tmp_path / "w", tmp_path / "job")
    with (
        bundle(CONFIG, tmp_path / "job", with_deps=False) as one,
        bundle(CONFIG, tmp_path / "job", with_deps=False) as two,
    ):
        bites = b"".join(iter(lambda: one.read(777), b""))
        assert bites == two.read()
    with tarfile.open(tmp_path / "job" / "snapshot.tar") as tar:
        assert tar.getnames() == ["f"]


USE_S3 = """
import json, sys
sys.path.insert(0, sys.argv[1])
import boto3
session = boto3.Session("a", "b", region_name="us-east-1")
s3 = session.client("s3", endpoint_url=sys.argv[2])
s3.create_bucket(Bucket="bucket")
s3.put_object(Bucket="bucket", Key="k", Body=b"hello", IfNoneMatch="*")
body = s3.get_object(Bucket="bucket", Key="k")["Body"].read().decode()
account = session.client("sts", endpoint_url=sys.argv[2]).get_caller_identity()["Account"]
regional = boto3.Session("a", "b", region_name="eu-west-1").client("s3").meta.endpoint_url
outside = [name for name, m in sys.modules.items() if "site-packages" in (getattr(m, "__file__", None) or "")]
print(json.dumps([body, account, regional, outside]))
"""


def test_the_libraries_stand_alone_and_reach_s3(tmp_path: Path) -> None:
    from moto.server import ThreadedMotoServer

    home = received(tmp_path, with_deps=True)
    assert sum(p.stat().st_size for p in (home / "deps").rglob("*") if p.is_file()) < 8 << 20
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        command = [sys.executable, "-I", "-S", "-c", USE_S3, str(home / "deps"), f"http://{host}:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["hello", "123456789012", "https://s3.eu-west-1.amazonaws.com", []]


def test_static_parts_are_built_once() -> None:
    assert shipping._agent_code() is shipping._agent_code()
    assert shipping._libraries() is shipping._libraries()


# ---- which Python runs the agent


def machine_with(tmp_path: Path, pythons: dict[str, str]) -> Path:
    """A home with these programs in ``bin`` (a version, or "broken"), and a bootstrap that says who runs it."""
    home = tmp_path / "machine"
    script = home / "cloudtrain/agent/cloudtrain/trainer/agent/bootstrap.py"
    script.parent.mkdir(parents=True)
    script.write_text('from __future__ import annotations\nimport os, sys\nprint(os.environ["WHO"])\nsys.exit(1)\n')
    for name, version in pythons.items():
        path = home / name if "/" in name else home / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pretend = f"import sys; sys.version_info = tuple(map(int, {version!r}.split('.')))"
        run = f'WHO="{name}" exec {sys.executable} -c "{pretend}; exec(sys.argv[1])" "$2"'
        path.write_text(f"#!/bin/sh\n{'exit 127' if version == 'broken' else run}\n")
        path.chmod(0o755)
    (home / "bin").mkdir(exist_ok=True)
    for tool in ("tar", "mkdir"):
        (home / "bin" / tool).symlink_to(shutil.which(tool) or "")
    return home


def arrival(home: Path, venv: str | None = "/opt/pytorch", **env: str) -> tuple[int, str]:
    """Exit code and last line of what the machine's sh makes of the command."""
    done = subprocess.run(
        ["/bin/sh", "-c", ship_command(venv)],
        cwd=home,
        env={"PATH": str(home / "bin"), "CLOUDTRAIN_ROOT": str(home)} | env,
        input=bytes(10240),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == b""
    return done.returncode, done.stdout.decode().strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"opt/pytorch/bin/python": "3.12", "python3": "3.12"}, "opt/pytorch/bin/python"),
        ({"python3": "3.10", "python": "3.12"}, "python3"),
        ({"python3": "3.9", "python3.12": "3.12"}, "python3.12"),  # Amazon Linux 2023
        ({"opt/pytorch/bin/python": "3.9", "python3": "2.7", "python3.11": "3.11"}, "python3.11"),
        ({"python3": "broken", "python": "3.13"}, "python"),
        ({"my env/bin/python": "3.11", "python3": "3.12"}, "python3"),
    ],
)
def test_the_agent_runs_on_the_first_python_that_is_new_enough(
    tmp_path: Path, pythons: dict[str, str], chosen: str
) -> None:
    assert arrival(machine_with(tmp_path, pythons)) == (1, chosen)


def test_an_active_environment_comes_before_the_systems_python(tmp_path: Path) -> None:
    home = machine_with(tmp_path, {"venv/bin/python": "3.11", "conda/bin/python": "3.11", "python3": "3.12"})
    assert arrival(home, VIRTUAL_ENV=str(home / "venv")) == (1, "venv/bin/python")
    assert arrival(home, CONDA_PREFIX=str(home / "conda")) == (1, "conda/bin/python")


@pytest.mark.parametrize(
    ("pythons", "found"),
    [({"python3": "3.9", "python": "2.7"}, "python3 is 3.9, python is 2.7"), ({"python3": "broken"}, "none was found")],
)
def test_an_image_without_a_new_python_is_told_with_what_to_choose(
    tmp_path: Path, pythons: dict[str, str], found: str
) -> None:
    code, line = arrival(machine_with(tmp_path, pythons))
    answer = json.loads(line)
    assert (code, answer["ok"], answer["image"]) == (1, False, True)
    assert f"3.10 or later, which the agent needs: {found}; choose another image" in answer["error"]


def test_a_venv_with_a_blank_in_its_name(tmp_path: Path) -> None:
    home = machine_with(tmp_path, {"opt/my env/bin/python": "3.12"})
    assert arrival(home, "/opt/my env") == (1, "opt/my env/bin/python")
