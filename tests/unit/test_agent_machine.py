"""The machine under the agent: starting, powering off, measuring, checking, reporting on a full disk, arriving."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.trainer import contract
from cloudtrain.trainer.agent import arrive as arriving
from cloudtrain.trainer.agent.arrive import ArriveError, arrive, lock_holder
from cloudtrain.trainer.agent.host import HostError, LocalHost, SystemdHost, make_host
from cloudtrain.trainer.agent.jobenv import job_environment
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.agent.report import Reporter, last_line, says_disk_full
from cloudtrain.trainer.agent.sampling import Sampler, cpu_times, gpu_percents, memory_percent
from cloudtrain.trainer.contract import AgentConfig, AgentStatus, status_from_json, to_json


class Recorder:
    """Runs nothing; every command "works" unless its first word is in ``failing``."""

    def __init__(self, *failing: str) -> None:
        self.commands: list[list[str]] = []
        self._failing = failing

    def __call__(self, argv: Sequence[str], timeout_s: float) -> int:
        assert timeout_s > 0
        self.commands.append(list(argv))
        return 1 if any(word in argv for word in self._failing) else 0


# ---- host


def test_a_real_machine_starts_the_agent_as_a_unit_of_root(tmp_path: Path) -> None:
    recorder = Recorder()
    env = {"PYTHONPATH": "/a:/d", "PATH": "/bin", "SECRET_TOKEN": "hush", "AWS_SECRET_ACCESS_KEY": "hush"}
    SystemdHost(recorder, root=False).start_agent(["py", "-m", "x"], env, tmp_path, tmp_path / "log")
    (command,) = recorder.commands
    assert command[:4] == ["sudo", "-n", "systemd-run", "--unit=cloudtrain-agent"]
    assert command[-4:] == ["--", "py", "-m", "x"]
    assert "--setenv=PYTHONPATH=/a:/d" in command and "--setenv=PATH=/bin" in command
    assert not any("hush" in word for word in command), "argv is for everybody to read"
    assert {"--property=OOMPolicy=continue", "--property=KillMode=mixed"} <= set(command)
    with pytest.raises(HostError, match="sudo"):
        SystemdHost(Recorder("systemd-run"), root=False).start_agent(["py"], {}, tmp_path, tmp_path / "log")


def test_a_real_machine_goes_off_by_force_if_it_must() -> None:
    recorder = Recorder()
    SystemdHost(recorder, root=True).poweroff()
    asked = [command for command in recorder.commands if command[0] != "sleep"]
    switch = ["systemd-run", "--no-block", "--collect", "--property=DefaultDependencies=no"]
    assert asked[0] == [*switch, "/var/lib/cloudtrain/poweroff", "the job has ended"], "it outlives the shutdown"
    assert asked[1:] == [["systemctl", "poweroff"]], "a machine without the switch"


def test_systemd_is_told_that_the_loop_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        host = SystemdHost(Recorder(), root=True)
        for _ in range(3):
            host.show_life()
        assert systemd.recv(100) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            systemd.recv(100)  # not at every turn
    SystemdHost(Recorder(), root=True).show_life()  # nobody listens: nothing happens
    config = AgentConfig("j", 1, "b", "r", "p", "true")
    assert "NOTIFY_SOCKET" not in job_environment(config, Places(tmp_path), os.environ, 0)


def test_a_local_host_only_leaves_a_file(tmp_path: Path) -> None:
    host = make_host("local", {"CLOUDTRAIN_LOCAL_CONTROL": str(tmp_path)})
    host.poweroff()
    assert [path.name for path in tmp_path.iterdir()] == ["poweroff"]
    assert not host.real
    LocalHost({}).poweroff()  # nobody to ask: nothing happens
    with pytest.raises(ValueError, match="systemd"):
        make_host("cloud", {})


# ---- sampling


def test_cpu_and_memory_from_proc(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    (tmp_path / "stat").write_text("cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 1\n")
    sampler = Sampler(tmp_path)
    assert sampler.sample().cpu_percent is None, "one reading is no rate"
    (tmp_path / "stat").write_text("cpu  125 0 25 950 0 0 0 0 0 0\n")
    sample = sampler.sample()
    assert (sample.cpu_percent, sample.memory_percent) == (50.0, 75.0)
    assert (sample.gpu_percent, sample.gpu_count) == (None, 0)
    assert cpu_times("cpu  1 2 3 4 5 6 7 8 9 10") == (27, 36)
    assert memory_percent("MemTotal: 4 kB\nMemAvailable: 1 kB\n") == 75.0
    (tmp_path / "stat").write_text("")
    assert sampler.sample().cpu_percent is None


def test_gpus_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_percents("90, 1000, 4000\n70, 3000, 4000\n") == (80.0, 50.0, 2)
    assert gpu_percents("[N/A], 1000, 4000\n") == (None, 25.0, 1)
    assert gpu_percents("") == (None, None, 0)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '42, 1, 4'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sample = Sampler().sample()
    assert (sample.gpu_percent, sample.gpu_memory_percent, sample.gpu_count) == (42.0, 25.0, 1)
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert Sampler().sample().gpu_count == 0


# ---- report


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "cloudtrain")
    made.create()
    (made.root / "incoming").mkdir()
    return made


def test_the_status_is_written_when_it_changes_and_every_second(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("cloudtrain.trainer.agent.report.time.monotonic", lambda: now[0])
    reporter = Reporter(places)

    def beat(phase: str, at: float) -> float:
        now[0] = at
        reporter.report(AgentStatus(1, phase, at))
        return status_from_json(places.status.read_bytes()).heartbeat_at

    assert beat("running", 100.0) == 100.0
    assert beat("running", 100.9) == 100.0
    assert beat("saving", 100.9) == 100.9
    assert beat("done", 101.0) == 100.9, "not more than five times a second"
    assert beat("done", 101.2) == 101.2
    assert beat("done", 102.3) == 102.3


def test_a_full_disk_takes_the_ballast_and_the_status_still_appears(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(places)
    reporter.keep_room()
    real = contract.write_atomic

    def full(path: Path, text: str) -> None:
        if places.ballast.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr("cloudtrain.trainer.agent.report.write_atomic", full)
    reporter.report(AgentStatus(1, "running", 5.0))
    assert reporter.disk_full
    assert status_from_json(places.status.read_bytes()).heartbeat_at == 5.0

    def gone(path: Path, text: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("cloudtrain.trainer.agent.report.write_atomic", gone)
    reporter.report(AgentStatus(1, "saving", 6.0), now=True)  # noted, never raised


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", ""),
        (b"one\ntwo\n\n  \n", "two"),
        ("Verlust: 3 €\n".encode(), "Verlust: 3 €"),
        (b"epoch 1\r  50%\r 100%\n", "100%"),
        (b"\x1b[31mred\x1b[0m\n", "[31mred[0m"),
        (b"\xff\xfe broken\n", "\ufffd\ufffd broken"),
        (b"x" * 5000, "x" * 299 + "…"),
    ],
)
def test_the_last_words(tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "log").write_bytes(text)
    assert last_line(tmp_path / "log") == expected


@pytest.mark.parametrize(
    ("text", "secret", "expected"),
    [
        ("token=canary-1234 is wrong", "canary-1234", "token=*** is wrong"),
        ("second-line", "first-line\nsecond-line", "***"),
        ("x" * 65536 + " refused", "x" * 65536, "*** refused"),
        ("the abc", "abc", "the abc"),  # a word like any other
        ("say c\x1banary-1234", "c\x1banary-1234", "say ***"),
    ],
)
def test_the_last_words_hold_no_secret(tmp_path: Path, text: str, secret: str, expected: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log", (secret,)) == expected


def test_a_full_disk_shows_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback\nOSError: [Errno 28] No space left on device: 'x'\n")
    assert says_disk_full(tmp_path / "log")
    assert not says_disk_full(tmp_path / "none")


# ---- arrive


class StartedHost:
    """A host whose agent takes the lock, as the real one does, or dies with a word."""

    notice_poll_s = 1.0
    real = False

    def __init__(self, places: Places, last_words: str | None = None) -> None:
        self.places = places
        self.work_file: Path | None = None
        self.last_words = last_words
        self.started: list[list[str]] = []
        self.lock: Any = None

    def start_agent(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.started.append(list(argv))
        assert env["PYTHONPATH"].split(":")[0] == str(self.places.agent)
        if self.last_words is not None:
            log.write_text(f"Traceback\n{self.last_words}\n")
            return
        self.lock = self.places.lock.open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.lock.write("1\n")
        self.lock.flush()

    def show_life(self) -> None:
        raise AssertionError

    def poweroff(self) -> None:
        raise AssertionError

    def place(self, target: str, data: Path, rootfs: Path) -> None:
        raise AssertionError


def configure(places: Places, generation: int = 1) -> None:
    places.config.write_text(to_json(AgentConfig("j", generation, "b", "r", "p", "true", host="local")))


def test_it_starts_once(places: Places) -> None:
    configure(places)
    host = StartedHost(places)
    assert arrive(places, host) == "started"
    assert arrive(places, host) == "running"
    assert len(host.started) == 1
    assert lock_holder(places) == 1
    configure(places, 2)
    with pytest.raises(ArriveError, match="generation 1 runs here, not of 2"):
        arrive(places, host)
    host.lock.close()
    assert lock_holder(places) is None
    places.status.write_text(to_json(AgentStatus(2, "done", 1.0)))
    assert arrive(places, host) == "finished"
    assert len(host.started) == 1


def test_an_agent_that_does_not_come_up_is_told_with_its_last_words(places: Places) -> None:
    configure(places)
    with pytest.raises(ArriveError, match="did not start: SyntaxError: no"):
        arrive(places, StartedHost(places, "SyntaxError: no"), wait_s=0.05)


def test_a_full_disk_is_one_clear_line(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(places)

    def full(_places: Places) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arriving, "_unpack_workdir", full)
    assert arriving.main(places.root) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["error"].startswith("the machine's disk is full (")
    assert "resources.disk_size" in answer["error"]


@pytest.mark.parametrize("text", [None, "", "[]", '{"job_id": "j"}'])
def test_a_bad_config_is_one_line(places: Places, text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        places.config.write_text(text)
    assert arriving.main(places.root) == 1
    assert "incoming/agent.json" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"step": "7"}',
        '{"step": null}',
        '{"step": true}',
        '{"total_steps": 1.5}',
        '{"loss": "low"}',
        '{"metrics": []}',
        '{"metrics": {"a": "b"}}',
        '{"done": 1}',
    ],
)
def test_a_progress_file_of_any_script_can_do_no_harm(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        contract.progress_from_json(text)
    with pytest.raises((ValueError, TypeError)):
        status_from_json("[]")


def test_a_progress_file_may_say_little_or_more_than_we_know() -> None:
    assert contract.progress_from_json('{"step": 3, "loss": 1, "new": []}') == contract.Progress(step=3, loss=1)
