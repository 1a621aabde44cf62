"""The user's processes: real ones, started, told to stop and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.provisioner.jobfile.data import SKYPILOT_VARIABLES
from cloudtrain.trainer.agent.jobenv import count_gpus, job_environment
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.agent.process import Job, kill_leftovers, start
from cloudtrain.trainer.agent.procfs import Process, members, read_table, stop_targets
from cloudtrain.trainer.contract import AgentConfig
from tests.waiting import until

Begin = Callable[..., Job]

SAVES = """
import multiprocessing, pathlib, signal
def work(queue):
    for number in range(100000):
        queue.put(number)
if __name__ == "__main__":
    queue = multiprocessing.Queue(2)
    workers = [multiprocessing.Process(target=work, args=(queue,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    while not asked:
        queue.get()
        pathlib.Path("ready").touch()
    for _ in range(20):
        queue.get()  # a save that still needs its workers
    pathlib.Path("saved").write_text(str(sum(w.is_alive() for w in workers)))
    for worker in workers:
        worker.kill()
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "cloudtrain")
    made.create()
    return made


@pytest.fixture
def begin(places: Places) -> Iterator[Begin]:
    jobs: list[Job] = []

    def make(command: str, **more: object) -> Job:
        config = AgentConfig("job-7", 1, "b", "r", "jobs/j", command, host="local", **more)  # type: ignore[arg-type]
        base = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        env = job_environment(config, places, base, 0)
        jobs.append(start(config, places, env, "run", command))
        return jobs[-1]

    yield make
    for job in jobs:
        end(job)


def end(job: Job) -> None:
    while job.alive():
        job.kill()
        time.sleep(0.01)


def until_over(job: Job) -> None:
    until(lambda: not job.alive())


def test_three_lines_of_shell_and_what_they_print(begin: Begin, places: Places) -> None:
    job = begin('echo one\ncd /\necho "two $CLOUDTRAIN_JOB_ID" >&2; exit 3')
    until(lambda: not job.alive())
    assert job.exit_code() == 3
    assert places.job_log.read_text() == "one\ntwo job-7\n"


def test_the_images_environment_is_active_where_the_machine_has_it(begin: Begin, places: Places) -> None:
    root = places.root / "it's root"
    venv = root / "opt" / "pytorch"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text("export ACTIVE=yes; only_here() { echo found; }\n")
    for folder, expected in ((root, "yes\nfound\n"), (places.root, "no\n")):
        places.job_log.unlink(missing_ok=True)
        command = 'echo "${ACTIVE:-no}"; if command -v only_here >/dev/null; then only_here; fi'
        until_over(begin(command, venv="/opt/pytorch", envs={"CLOUDTRAIN_ROOT": str(folder)}))
        assert places.job_log.read_text() == expected


def test_a_save_with_living_workers_survives_sigterm(begin: Begin, places: Places) -> None:
    (places.work / "train.py").write_text(SAVES)
    job = begin("echo before\npython train.py\necho after")
    until((places.work / "ready").exists)
    targets = job.terminate()
    assert len(targets) == 1
    until(lambda: not job.alive())
    assert (places.work / "saved").read_text() == "2", "its workers lived while it saved"
    assert job.exit_code() == 0
    assert places.job_log.read_text() == "before\nafter\n", "nor did the shell die before its child had saved"


def test_what_ignores_sigterm_is_killed_and_those_in_other_sessions_too(begin: Begin, places: Places) -> None:
    ignoring = (
        "import signal, time, pathlib; signal.signal(15, signal.SIG_IGN); pathlib.Path('r').touch(); time.sleep(99)"
    )
    (places.work / "ignore.py").write_text(ignoring)
    job = begin("setsid sleep 98 &\npython ignore.py")
    until(lambda: (places.work / "r").exists() and len(job.members()) >= 3)
    job.terminate()
    time.sleep(0.1)
    assert job.alive()
    end(job)
    assert job.exit_code() == -9


def test_an_attempt_lasts_as_long_as_its_group(begin: Begin, places: Places) -> None:
    job = begin("(sleep 0.6; touch late) &")
    until(lambda: job.exit_code() is not None)
    assert job.alive()
    until(lambda: not job.alive())
    assert (places.work / "late").exists()


def test_what_a_dead_agent_left_is_found_by_its_environment(begin: Begin, places: Places) -> None:
    job = begin("setsid sleep 97 & sleep 97")
    until(lambda: len(job.members()) >= 3)
    config = AgentConfig("job-7", 1, "b", "r", "jobs/j", "", host="local")
    assert kill_leftovers(job_environment(config, Places(Path("/elsewhere")), {}, 0)) == 0, (
        "another host's are not ours"
    )
    assert kill_leftovers(job_environment(config, places, {}, 0)) >= 3
    until(lambda: not job.alive())


def process(pid: int, ppid: int, name: str, *argv: str, marked: bool = False, pgid: int = 10) -> Process:
    return Process(pid, ppid, pgid, pgid, name, argv or (name,), marked)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([process(10, 1, "bash"), process(11, 10, "python"), process(12, 11, "python")], (11,)),
        ([process(10, 1, "bash"), process(11, 10, "sh"), process(12, 11, "python"), process(13, 10, "tee")], (12, 13)),
        ([process(10, 1, "python")], (10,)),  # bash replaced itself
        ([process(10, 1, "bash")], (10,)),  # a shell that works by itself
        ([process(11, 1, "python"), process(12, 11, "python")], (11,)),  # the shell is gone
        (
            [
                process(10, 1, "bash"),
                process(11, 10, "torchrun", "/v/bin/python", "/v/bin/torchrun", "train.py"),
                process(12, 11, "python", marked=True, pgid=12),
                process(13, 11, "python", marked=True, pgid=13),
                process(14, 12, "python", marked=True, pgid=12),
            ],
            (12, 13),
        ),
        ([process(10, 1, "bash"), process(11, 10, "python", "python", "-m", "torch.distributed.run")], (11,)),
    ],
)
def test_who_is_told(table: list[Process], expected: tuple[int, ...]) -> None:
    assert stop_targets(table) == expected


def test_members_are_those_of_the_group_and_the_marked(tmp_path: Path) -> None:
    table = (process(10, 1, "bash"), process(20, 1, "x", pgid=20), process(30, 1, "y", pgid=30, marked=True))
    assert [p.pid for p in members(table, 10)] == [10, 30]
    assert [p.pid for p in members(table, 10, excluded=(30,))] == [10]


def test_the_table_reads_names_with_brackets(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c) S 1 5 6 0 -1")
    (tmp_path / "7/cmdline").write_bytes(b"a\0--x\0")
    (tmp_path / "7/environ").write_bytes(b"A=1\0B=2\0")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/stat").write_text("8 (dead) Z 1 5 6 0 -1")
    assert read_table(["A=1", "B=2"], tmp_path) == (Process(7, 1, 5, 6, "a) b (c", ("a", "--x"), True),)
    assert not read_table(["A=1", "B=3"], tmp_path)[0].marked
    assert not read_table([], tmp_path)[0].marked


def test_the_environment_of_the_job(places: Places) -> None:
    config = AgentConfig(
        "job-7", 3, "b", "r", "jobs/j", "", envs={"EPOCHS": "10", "CLOUDTRAIN_JOB_ID": "x", "PYTHONPATH": "/mine"}
    )
    env = job_environment(config, places, {"PATH": "/bin", "PYTHONPATH": "/agents/deps", "CLOUDTRAIN_RESUME": "old"}, 0)
    assert env["CLOUDTRAIN_JOB_ID"] == "job-7"
    assert (env["CLOUDTRAIN_ATTEMPT"], env["EPOCHS"], env["PATH"]) == ("3", "10", "/bin")
    assert env["PYTHONPATH"] == f"{places.agent}:/mine"
    assert env["CLOUDTRAIN_NUM_GPUS_PER_NODE"] == "1"
    assert {name: env[name] for name in SKYPILOT_VARIABLES} == {
        "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_TASK_ID": "job-7",
    }
    assert "CLOUDTRAIN_RESUME" not in env
    assert int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) == 90


def test_the_shipped_package_wins_over_a_workdir_with_a_trainer(begin: Begin, places: Places) -> None:
    (places.agent).mkdir()
    (places.agent / "cloudtrain").symlink_to(Path(__file__).parents[2] / "src" / "cloudtrain")
    (places.work / "trainer").mkdir()
    (places.work / "trainer/__init__.py").write_text("raise SystemExit('the wrong one')\n")
    (places.work / "train.py").write_text("import cloudtrain.trainer.contract as c; print(c.__name__)\n")
    job = begin("python train.py && python -m cloudtrain.trainer --help > help.txt")
    until(lambda: not job.alive())
    assert (job.exit_code(), places.job_log.read_text()) == (0, "cloudtrain.trainer.contract\n")


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 3


def test_the_agent_imports_neither_torch_nor_boto3() -> None:
    check = "import sys, cloudtrain.trainer.agent.__main__, cloudtrain.trainer.agent.supervisor\n"
    check += "print(sorted({'torch', 'boto3', 'botocore', 'http.client', 'ssl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
