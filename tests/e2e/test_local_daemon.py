"""The embedded cloud as a process: found, started once, told apart from stale files, ended in every way."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import CloudtrainError, NotFound, UsageError
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import LocalCloud
from cloudtrain.provisioner.localcloud.resources import image_id, images

MODULE = "cloudtrain.provisioner.localcloud.daemon"


@pytest.fixture
def local_home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "local home"
    yield home
    client.down(home)


def until_dead(pid: int, started: str | None) -> None:
    deadline = time.monotonic() + 10
    while client.process_started(pid) == started and started is not None:
        assert time.monotonic() < deadline, f"process {pid} lives"
        time.sleep(0.02)


# What a trainer is to those who must end it: in a session of its own, deaf to SIGTERM.
TRAIN = "#cloud-config\nruncmd: [\"setsid sh -c 'trap : TERM; echo $$ > pid; while :; do sleep 0.1; done' &\"]\n"


def launch(cloud: LocalCloud, job: str = "job-123456") -> str:
    """A machine that runs, and a process on it; its instance id."""
    ec2 = Clients("local", local_endpoint=cloud.endpoint_url).client("ec2", "us-east-1")
    reply = ec2.run_instances(
        ImageId=image_id(images()[0].ssm_parameter, "us-east-1"),
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        UserData=TRAIN,
        InstanceMarketOptions={"MarketType": "spot"},
        InstanceInitiatedShutdownBehavior="terminate",
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "cloudtrain:job", "Value": job}]}],
    )
    deadline = time.monotonic() + 20
    while True:
        [machine] = client.status(cloud)["machines"]
        if machine["state"] == "running":
            return str(reply["Instances"][0]["InstanceId"])
        assert machine["state"] == "pending", machine
        assert time.monotonic() < deadline
        time.sleep(0.02)


def trainer(local_home: Path, instance_id: str) -> tuple[int, str | None]:
    """The process that runs on the machine: its id, and when it was started."""
    file = local_home / "hosts" / instance_id / "home" / "pid"
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(file.read_text())
    assert client.process_started(pid) is not None
    return pid, client.process_started(pid)


def test_it_is_started_once_found_again_and_ended(local_home: Path) -> None:
    assert client.find(local_home) is None
    cloud = client.ensure_up(local_home)
    assert client.ensure_up(local_home) == cloud == client.find(local_home)
    assert client.status(cloud)["id"] == cloud.id
    assert stat.S_IMODE((local_home / client.DAEMON_FILE).stat().st_mode) == 0o600
    assert client.down(local_home) is True
    assert client.find(local_home) is None
    assert client.down(local_home) is False
    with pytest.raises(NotFound):
        client.status(cloud)


def test_many_who_start_it_at_once_share_one(local_home: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        clouds = set(pool.map(lambda _: client.ensure_up(local_home), range(4)))
    assert len(clouds) == 1
    # A second daemon, still loading, would take the first one's place when that ends.
    words = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert sum(str(local_home) in line and "cloudtrain.provisioner.localcloud.daemon" in line for line in words) == 1


def test_a_killed_one_is_not_found_and_leaves_no_process(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    instance_id = launch(cloud)
    process = trainer(local_home, instance_id)
    started = client.process_started(cloud.pid)
    os.kill(cloud.pid, signal.SIGKILL)
    until_dead(cloud.pid, started)
    until_dead(*process)
    assert client.find(local_home) is None
    again = client.ensure_up(local_home)
    assert again.id != cloud.id
    assert client.status(again)["machines"] == []
    deadline = time.monotonic() + 10
    while [path for path in local_home.iterdir() if path.is_dir()]:  # what its hosts left goes, too
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stale_file_with_a_reused_process_id_is_not_trusted(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    text = json.loads((local_home / client.DAEMON_FILE).read_text())
    (local_home / client.DAEMON_FILE).write_text(json.dumps(text | {"pid": os.getpid()}))
    assert client.find(local_home) is None
    (local_home / client.DAEMON_FILE).write_text(json.dumps(text))
    assert client.find(local_home) == cloud


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "process_started": "1"}'])
def test_a_damaged_file_is_no_cloud(tmp_path: Path, text: str) -> None:
    (tmp_path / client.DAEMON_FILE).write_text(text)
    assert client.find(tmp_path) is None


def test_a_second_daemon_leaves_at_once(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    command = [sys.executable, "-m", MODULE, "--home", str(local_home)]
    assert subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == client.ALREADY_RUNNING
    assert client.find(local_home) == cloud


def test_other_options_than_those_it_runs_with_are_refused(local_home: Path) -> None:
    client.ensure_up(local_home, boot_s=1.0)
    client.ensure_up(local_home)
    with pytest.raises(UsageError, match="--boot 1s"):
        client.ensure_up(local_home, boot_s=2.0)


def test_one_that_can_not_start_says_why_and_where_to_read(local_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(local_home))
    local_home.mkdir()
    (local_home / "werkzeug.py").write_text("raise ImportError('no werkzeug for this test')")
    with pytest.raises(CloudtrainError, match=r"no werkzeug for this test.*daemon\.log"):
        client.ensure_up(local_home)


def test_down_ends_machines_and_their_processes(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    process = trainer(local_home, launch(cloud))
    client.down(local_home)
    assert client.process_started(process[0]) != process[1]
    log = (local_home / client.LOG_FILE).read_text()
    assert f"down: {cloud.id}" in log
    assert "Traceback" not in log


def test_the_users_keys_never_reach_it(local_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-a-real-account")
    monkeypatch.setenv("HUB_TOKEN", "of-a-job")  # as `secrets:` names it; the daemon outlives the launch
    cloud = client.ensure_up(local_home)
    environ = Path(f"/proc/{cloud.pid}/environ")
    if not environ.exists():
        pytest.skip("needs /proc")
    assert b"of-a-real-account" not in environ.read_bytes()
    assert b"of-a-job" not in environ.read_bytes()


def run_daemon(home: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", MODULE, "--home", str(home), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_an_idle_one_leaves(local_home: Path) -> None:
    with run_daemon(local_home, "--idle", "0.1") as daemon:
        assert daemon.wait(timeout=30) == 0
    assert client.find(local_home) is None


def test_one_whose_home_is_gone_leaves(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    started = client.process_started(cloud.pid)
    (local_home / client.DAEMON_FILE).unlink()
    until_dead(cloud.pid, started)


def test_a_whole_interruption_on_a_real_host(local_home: Path) -> None:
    cloud = client.ensure_up(local_home)
    instance_id = launch(cloud)
    process = trainer(local_home, instance_id)
    client.interrupt(cloud, "job", notice_s=0.3)
    deadline = time.monotonic() + 10
    while client.status(cloud)["machines"][0]["state"] != "terminated":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    [machine] = client.status(cloud)["machines"]
    assert (machine["instance_id"], machine["state_reason"]) == (instance_id, "Server.SpotInstanceTermination")
    assert client.process_started(process[0]) != process[1]
