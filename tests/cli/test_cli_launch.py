"""`cloudtrain launch` before and after the start: plan, refusals, asking, following, results, exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.provisioner.account.facts import Wants
from cloudtrain.provisioner.cli import account, attend
from cloudtrain.provisioner.cli import follow as following
from cloudtrain.provisioner.errors import AccessError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import launching
from cloudtrain.provisioner.launch.access import Access
from cloudtrain.provisioner.launch.launching import Prepared
from cloudtrain.provisioner.launch.preflight import Verdict
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from cloudtrain.provisioner.shipping.snapshot import Snapshot
from cloudtrain.trainer.contract import Mount
from tests.records import job, over

from .world import World, succeeded

JOB_FILE = """
name: digits
resources: {accelerators: "T4:1", use_spot: true, memory: 16+}
workdir: .
run: python train.py
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)\n")
    (work / ".git").mkdir()
    path = work / "job.yaml"
    path.write_text(JOB_FILE)
    return path


@pytest.fixture(autouse=True)
def no_processes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`submit` stores the job and starts nothing; `warm` does nothing; no account is asked."""

    def submit(
        prepared: Prepared, shot: Snapshot, access: Access, mounts: tuple[Mount, ...] = (), *, home: Home
    ) -> str:
        world.add(
            replace(job(job_id=prepared.job_id), spec=prepared.spec, cloud="local", results=str(prepared.results))
        )
        return prepared.job_id

    monkeypatch.setattr(launching, "submit", submit)
    monkeypatch.setattr(launching, "warm", lambda home, cloud: None)
    access = SimpleNamespace(entry=SimpleNamespace(identity=SimpleNamespace(expires_at=None)))
    monkeypatch.setattr(account, "open_checked", lambda cloud, home, wants: (Verdict(wants.offerings, ()), access))


def the_job(world: World) -> str:
    (stored,) = world.store.list()
    return stored.record.job_id


def ends(**changes: object) -> Callable[[World], None]:
    def step(world: World) -> None:
        job_id = the_job(world)
        record = replace(succeeded(world.store.get(job_id).record, world.at), **changes)  # type: ignore[arg-type]
        stored = world.store.get(job_id)
        world.store.save(record, version=stored.version, etag=None)

    return step


def test_dry_run_shows_the_plan_and_leaves_nothing(world: World, job_file: Path) -> None:
    code, out, err = world.run("launch", job_file, "--dry-run")
    assert code == 0
    assert "Plan for digits (AWS prices of 20" in out
    assert "g4dn.xlarge" in out
    assert "other types left out (accelerator" in out
    assert "workdir: 2 files" in out
    assert "left out: .git/" in out
    assert "nothing was started" in err
    assert max(map(len, out.splitlines())) <= 80
    assert world.store.list() == ()
    assert list((world.home.root / "jobs").iterdir()) == []


def test_a_plan_says_what_the_default_for_memory_leaves_out(world: World, job_file: Path) -> None:
    reason = "g4dn.xlarge: memory 16 GiB < 24 GiB needed (1.5x GPU memory); or set `memory`"
    assert reason not in world.run("launch", job_file, "--dry-run")[1]
    job_file.write_text(JOB_FILE.replace(", memory: 16+", ""))
    _, out, _ = world.run("launch", job_file, "--dry-run")
    assert reason in out
    assert max(map(len, out.splitlines())) <= 80


def test_dry_run_as_json_is_one_object(world: World, job_file: Path) -> None:
    code, out, _ = world.run("launch", job_file, "--dry-run", "--cloud", "local", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["offerings"][0]["pool"].startswith("local/")
    assert found["simulated_prices"] is True
    assert found["snapshot"]["files"] == 2


def test_launch_follows_to_results_and_bill(world: World, job_file: Path, tmp_path: Path) -> None:
    world.script = [
        lambda w: w.store.add_event(the_job(w), w.at, "attempt 1: asking\x1b[31m"),
        lambda w: w.live(the_job(w), phase="running", step=140, total_steps=900, loss=0.5, cpu_percent=98.2, usd=0.01),
        *[lambda w: None] * 60,
        ends(),
    ]
    code, out, err = world.run("launch", job_file, "--cloud", "local", "--yes", "--into", tmp_path / "got")
    assert code == 0
    assert "local, simulated prices" in err
    assert "with your rights" in err
    assert "attempt 1: asking\\x1b[31m" in err  # nothing from a machine steers the terminal
    assert err.count("step 140/900  loss 0.5  cpu 98%  $0.0100") == 1  # said once, not at every look
    assert out.startswith(f"results: {tmp_path / 'got'}\nBill for digits-")
    assert "free" in out
    assert "900 steps, 0 lost, 1 interruption" in out
    assert "accuracy 0.9811, loss 0.01235" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert "next: `cloudtrain show digits-" in err


def test_json_comes_last_and_alone(world: World, job_file: Path) -> None:
    world.script = [ends()]
    code, out, _ = world.run("launch", job_file, "--cloud", "local", "--yes", "-o", "json")
    found = json.loads(out)  # nothing else on stdout
    assert code == 0
    assert (found["status"], found["steps"], found["interruptions"]) == ("SUCCEEDED", 900, 1)
    assert found["job"] == the_job(world)


@pytest.mark.parametrize(
    ("status", "outcome", "code", "then"),
    [
        (JobStatus.FAILED, EndReason.JOB_FAILED, 100, "logs"),
        (JobStatus.FAILED, EndReason.NO_CAPACITY, 4, "resume"),
        (JobStatus.FAILED, EndReason.CLOUD_LOST, 1, "logs"),
        (JobStatus.CANCELLED, EndReason.CANCELLED, 103, "logs"),
    ],
)
def test_the_exit_code_tells_how_the_job_ended(
    world: World, job_file: Path, status: JobStatus, outcome: EndReason, code: int, then: str
) -> None:
    world.script = [ends(status=status, outcome=outcome, detail="exit 1: see the log")]
    got, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert got == code
    assert f"{status}: exit 1: see the log" in err
    assert f"next: `cloudtrain {then} digits-" in err


def test_detach_says_the_id_and_how_to_go_on(world: World, job_file: Path) -> None:
    code, out, err = world.run("launch", job_file, "--cloud", "local", "--yes", "--detach")
    assert (code, out) == (0, f"{the_job(world)}\n")
    assert "cloudtrain logs -f" in err
    assert "cloudtrain down" in err


def test_detach_as_json(world: World, job_file: Path) -> None:
    code, out, _ = world.run("launch", job_file, "--cloud", "local", "--yes", "--detach", "-o", "json")
    assert (code, json.loads(out)) == (0, {"schema_version": 1, "job": the_job(world), "status": "PENDING"})


def test_the_local_cloud_is_refused_where_there_is_no_process_table(
    world: World, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "PROCESS_TABLE", tmp_path / "none")
    code, out, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert (code, out) == (1, "")
    assert "needs Linux" in err
    assert world.store.list() == ()


def test_without_an_account_nothing_happens(world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cloud: str, home: Home, wants: Wants) -> Access:
        raise AccessError("no credentials: `aws configure`")

    monkeypatch.setattr(account, "open_checked", refuse)
    code, out, err = world.run("launch", job_file, "--yes")
    assert (code, out) == (6, "")
    assert "no credentials" in err
    assert world.store.list() == ()


def test_without_a_terminal_it_needs_yes(world: World, job_file: Path) -> None:
    code, _, err = world.run("launch", job_file, "--cloud", "local")
    assert code == 2
    assert "add --yes" in err
    assert world.store.list() == ()


def test_a_missing_job_file_is_not_found(world: World) -> None:
    code, _, err = world.run("launch", "nowhere.yaml", "--dry-run")
    assert code == 3
    assert "nowhere.yaml" in err


@pytest.mark.parametrize(("answer", "started"), [("y\n", True), ("\n", True), ("n\n", False)])
def test_on_a_terminal_it_asks(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch, answer: str, started: bool
) -> None:
    terminal(monkeypatch, answer)
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--detach")
    assert code == 0
    assert "Start it? [Y/n]" in err
    assert bool(world.store.list()) is started
    assert bool(list((world.home.root / "jobs").iterdir())) is started  # the snapshot goes with the decision


def terminal(monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    """A person at stdin, typing."""
    import io

    typed = io.StringIO(answers)
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)


def test_a_live_name_is_not_launched_again(world: World, job_file: Path) -> None:
    world.add()
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 2
    assert "named 'digits' is PENDING: `cloudtrain logs -f" in err


def test_a_name_that_another_computers_job_has_is_refused_with_adopt(world: World, job_file: Path) -> None:
    record = world.add()
    world.change(record.job_id, driver="elsewhere")
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 2
    assert f"driven from another computer: `cloudtrain adopt {record.job_id}`" in err
    assert "cloudtrain down" not in err


def test_a_stopped_jobs_name_is_taken_too_and_resume_is_named(world: World, job_file: Path) -> None:
    job_id = world.add().job_id
    world.change(job_id, status=JobStatus.STOPPED, outcome=EndReason.STOPPED)
    world.store.want(job_id, "stop")
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 2
    assert f"is STOPPED: go on with it: `cloudtrain resume {job_id}`" in err


def interrupt(world: World) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_the_job_running_and_says_so(world: World, job_file: Path) -> None:
    world.script = [interrupt]
    code, out, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    job_id = the_job(world)
    assert (code, out) == (130, "")
    price = "$/hour or so (local, simulated prices) once it has a machine"
    assert re.search(rf"job {job_id} goes on by itself at 0\.\d+ {re.escape(price)};", err)
    assert f"`cloudtrain logs -f {job_id}` follows, `cloudtrain down {job_id}` ends it" in err
    assert world.store.get(job_id).wanted == "run"


@pytest.mark.parametrize(("stop", "code", "wanted"), [(True, 101, "stop"), (False, 130, "run")])
def test_ctrl_c_on_a_terminal_asks(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch, stop: bool, code: int, wanted: str
) -> None:
    monkeypatch.setattr(attend, "_stop_wanted", lambda record: stop)
    world.script = [
        lambda w: w.store.add_event(the_job(w), w.at, "first"),
        lambda w: None,
        interrupt,
        ends(status=JobStatus.STOPPED, outcome=EndReason.STOPPED),
    ]
    got, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert got == code
    assert world.store.get(the_job(world)).wanted == wanted
    assert err.count("first") == 1  # the second look does not tell the story again


def test_a_second_ctrl_c_leaves_at_once(world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "_stop_wanted", lambda record: True)
    world.script = [interrupt, interrupt]
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 130
    assert "goes on stopping by itself" in err


@pytest.mark.parametrize(
    ("answer", "code", "wanted"), [("stop", 101, "stop"), ("detach", 130, "run"), ("", 130, "run")]
)
def test_ctrl_c_is_asked_about_with_what_the_machine_costs(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, wanted: str
) -> None:
    terminal(monkeypatch, f"{answer}\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    running = replace(over(1, 0, EndReason.SUCCEEDED), phase=Phase.WORKING, ended_at=None, end_reason=None)
    world.script = [
        lambda w: w.change(the_job(w), attempts=(running,), status=JobStatus.RUNNING),
        interrupt,
        ends(status=JobStatus.STOPPED, outcome=EndReason.STOPPED),
    ]
    got, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert (got, world.store.get(the_job(world)).wanted) == (code, wanted)
    said = " ".join(err.split())  # a terminal's lines are broken to fit
    asked, last = (
        "goes on by itself and costs 0.3600 $/hour (local, simulated prices)",
        said.rpartition("job digits-")[2],
    )
    assert asked in said
    assert ("goes on by itself at 0.3600 $/hour" if code == 130 else "cloudtrain resume") in last


def test_ctrl_c_right_after_the_start_does_not_leave_silently(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = launching.submit

    def submit(
        prepared: Prepared, shot: Snapshot, access: Access, mounts: tuple[Mount, ...] = (), *, home: Home
    ) -> str:
        real(prepared, shot, access, mounts, home=home)
        raise KeyboardInterrupt

    monkeypatch.setattr(launching, "submit", submit)
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 130
    assert "goes on by itself" in err
    assert (world.home.root / "jobs" / the_job(world) / "snapshot.tar").exists()


def test_ctrl_c_between_the_start_and_the_following_does_not_leave_silently(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attend, "_attended", interrupted)
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 130
    assert f"job {the_job(world)} goes on by itself" in err


def test_a_controller_that_died_is_brought_back_while_following(world: World, job_file: Path) -> None:
    def dies(world: World) -> None:
        world.controller_lives = False

    world.script = [dies, *[lambda w: None] * 40, ends()]
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 0
    assert world.started_controllers == 1
    assert err.count("the controller was not running; it is started again") == 1


def test_a_controller_that_never_stays_up_ends_the_following(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(world: World) -> None:
        world.controller_lives = False

    world.script = [dies] * 1000
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 1
    assert "the controller does not stay up" in err
    assert "controller.log" in err


def test_a_job_that_another_computer_took_over_is_not_followed(world: World, job_file: Path) -> None:
    world.script = [lambda w: w.change(the_job(w), driver="elsewhere")]
    code, _, err = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 1
    assert "driven from another computer" in err


def test_the_live_line_redraws_and_keeps_events() -> None:
    import io

    from rich.console import Console

    from cloudtrain.provisioner.cli.liveline import live_line

    out = io.StringIO()
    with live_line(Console(file=out, force_terminal=True, width=40, no_color=True)) as line:
        line.now("RUNNING  step 1/9 " + "x" * 80, 0.0)
        line.event("12:00:00 [bold]attempt 1[/bold]: asked")
    text = out.getvalue()
    assert "12:00:00 [bold]attempt 1[/bold]: asked" in text  # shown as it is, not as markup
    assert "…" in text  # one line, cut at the edge
    assert following.POLL_S <= 0.5


def test_over_is_over_even_with_nothing_collected(world: World, job_file: Path) -> None:
    world.script = [ends(status=JobStatus.FAILED, outcome=EndReason.NO_CAPACITY, attempts=(), collected=False)]
    code, out, _ = world.run("launch", job_file, "--cloud", "local", "--yes")
    assert code == 4
    assert "results:" not in out
    assert "total $0.00" in out


def test_a_bill_shows_each_attempt(world: World, job_file: Path) -> None:
    attempts = (
        over(1, 4000, EndReason.INTERRUPTED, steps=(0, 300)),
        over(2, 30, EndReason.SUCCEEDED, steps=(260, 900)),
        *(replace(over(n, 0, EndReason.NO_CAPACITY, steps=(0, 0)), running_at=None, start_step=None) for n in (3, 4)),
    )
    world.script = [ends(attempts=attempts)]
    _, out, _ = world.run("launch", job_file, "--cloud", "local", "--yes")
    rows = [line.split() for line in out.splitlines() if line.startswith("use1-")]
    assert rows == [
        ["use1-az1", "g4dn.xlarge", "spot", "interrupted", "1h06m", "0.4000", "40+"],  # it went without a word
        ["use1-az2", "g4dn.xlarge", "spot", "succeeded", "30s", "0.0060", "0"],
    ]
    assert "2 attempts got no machine (no-capacity 2)" in out
    assert "40+ lost" in out and "+: and what a machine that went without a word" in out
