"""``cloudtrain local``: each command against an embedded cloud in this process."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.cli.local_fault import seconds
from cloudtrain.provisioner.cli.main import main
from cloudtrain.provisioner.controller import losses
from cloudtrain.provisioner.errors import EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.plants import PLANTS
from cloudtrain.provisioner.model import JobStatus
from tests import forms
from tests.moto.local_server import Cloud, serving, tagged, until
from tests.records import job


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud


@pytest.fixture
def cloud(server: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(client, "find", lambda _: server.local)
    yield server
    client.fault_clear(server.local)
    client.plant_clear(server.local)
    server.state.interrupts.clear()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(capsys)


class Runner:
    """Runs one command line; its exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str) -> tuple[int, str, str]:
        code = main(shlex.split(line))
        told = self._capsys.readouterr()
        forms.check(shlex.split(line), told.out)
        return code, told.out, told.err


def test_up_says_where_it_is_and_that_prices_are_simulated(cloud: Cloud, run: Runner) -> None:
    code, out, _ = run("local up")
    assert code == EXIT_OK
    assert f"port {cloud.local.port}" in out
    assert cloud.local.secret not in out
    assert "local, simulated prices" in out


def test_down_asks_before_live_jobs_are_lost(cloud: Cloud, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(Home.from_env().db)
    ended: list[Path] = []
    monkeypatch.setattr(client, "down", ended.append)
    monkeypatch.setattr(losses, "settle", lambda *_: ())
    store.add(replace(job(job_id="lost-ab12cd"), cloud="local", cloud_id=cloud.local.id, status=JobStatus.RUNNING))
    code, _, err = run("local down")
    assert (code, ended) == (EXIT_USAGE, [])
    assert "this would lose lost-ab12cd (RUNNING)" in err and "--yes" in err
    assert run("local down --yes")[0] == EXIT_OK
    assert len(ended) == 1


def test_up_with_other_options_than_it_runs_with_is_refused(cloud: Cloud, run: Runner) -> None:
    code, _, err = run("local up --boot 5s")
    assert (code, "local down" in err) == (EXIT_USAGE, True)


def test_down_where_nothing_runs(home: Path, run: Runner) -> None:
    code, out, _ = run("local down")
    assert (code, "not running" in out) == (EXIT_OK, True)


@pytest.mark.parametrize("line", ["status", "interrupt a", "cutoff a", "fault list", "fault clear", "fault add A B"])
def test_without_a_cloud_each_command_says_how_to_start_one(home: Path, run: Runner, line: str) -> None:
    code, out, err = run(f"local {line}")
    assert (code, out) == (EXIT_NOT_FOUND, "")
    assert "cloudtrain local up" in err


def test_status_shows_machines_interruptions_and_faults(cloud: Cloud, run: Runner) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("seen-ab12cd"))
    cloud.hosts[instance_id].at_step = 7
    run("local interrupt unborn --at-step 3")
    run("local fault add RunInstances InsufficientInstanceCapacity --match zone_id=use1-az6 --times 2")
    code, out, _ = run("local status")
    assert code == EXIT_OK
    line = next(line for line in out.splitlines() if instance_id in line)
    assert line.split()[1:] == ["seen-ab12cd", "g4dn.xlarge", "use1-az4", "spot", "running"]
    assert f"{instance_id}: at step 7" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "waiting to interrupt unborn at step 3" in out
    assert "InsufficientInstanceCapacity\n  zone_id=use1-az6, 2 times; met by 0 calls" in out
    assert "simulated prices" in out
    told = json.loads(run("local status -o json")[1])
    assert [m["step"] for m in told["machines"] if m["instance_id"] == instance_id] == [7]
    assert told["interrupts"] == [{"job": "unborn", "at_step": 3, "refused": None}]
    assert told["faults"] == json.loads(run("local fault list -o json")[1])["faults"]


def test_interrupt_gives_the_notice(cloud: Cloud, run: Runner) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("taken-ab12cd"))
    code, out, _ = run("local interrupt taken --notice 90s")
    assert code == EXIT_OK
    assert "a notice comes now, 1m30s before the machine goes" in out
    until(lambda: cloud.spot_request(instance_id)["State"], lambda state: state == "closed")
    until(lambda: run("local status")[1], lambda out: "taken in 1m" in out)


def test_interrupt_means_the_live_job_of_a_name_and_none_to_come(cloud: Cloud, run: Runner, home: Path) -> None:
    store = SqliteStore(home / "jobs.db")
    store.add(replace(job(job_id="twice-000001"), status=JobStatus.SUCCEEDED))
    code, _, err = run("local interrupt twice-000001")
    assert code == EXIT_USAGE
    assert "job twice-000001 is over already (SUCCEEDED)" in err
    assert cloud.server.state.interrupts == []
    live = job(job_id="twice-000002")
    store.add(replace(live, spec=replace(live.spec, name="twice")))
    run("local interrupt twice --at-step 9")
    assert [i.job for i in cloud.server.state.interrupts] == ["twice-000002"]


def test_interrupt_without_a_machine_waits_and_says_so(cloud: Cloud, run: Runner) -> None:
    _, out, _ = run("local interrupt nobody --at-step 100 --notice 0s")
    assert "the machine is lost at step 100" in out
    assert "once it has a machine (it has none now)" in out


def test_a_recommendation_alone_has_no_notice(cloud: Cloud, run: Runner) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("hinted-ab12cd"))
    _, out, _ = run("local interrupt hinted --rebalance")
    assert "a rebalance is recommended now" in out
    until(lambda: cloud.state.lives[instance_id].rebalance_at, lambda at: at is not None)
    assert cloud.state.lives[instance_id].taken_at is None


def test_cutoff_and_restore(cloud: Cloud, run: Runner) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("severed-ab12cd"))
    assert run("local cutoff severed")[1].startswith(instance_id)
    assert cloud.hosts[instance_id].cut
    code, _, err = run("local cutoff nobody")
    assert (code, "no machine of nobody runs" in err) == (EXIT_NOT_FOUND, True)
    run("local cutoff severed --restore")
    assert not cloud.hosts[instance_id].cut


def test_faults_are_added_listed_and_dropped(cloud: Cloud, run: Runner) -> None:
    _, out, _ = run("local fault add 'Describe*' RequestLimitExceeded --delay 1s --lost --status 500 --message later")
    assert "Describe*  RequestLimitExceeded\n  every time" in out
    assert out.strip() in run("local fault list")[1]
    _, out, _ = run("local fault add '*' RequestLimitExceeded --share 5%")
    assert "*  RequestLimitExceeded\n  5.00% of the calls" in out
    run(f"local fault clear {out.split()[1]}")
    assert run("local fault add A B --share 5")[0] == EXIT_USAGE
    number = run("local fault list")[1].split()[1]
    assert run("local fault clear 999")[0] == EXIT_NOT_FOUND
    assert run(f"local fault clear {number}")[1] == "1 fault dropped\n"
    assert run("local fault list")[1:] == ("", "0 faults; next: `cloudtrain local fault add ACTION CODE`\n")


def test_a_match_without_a_value_is_refused(cloud: Cloud, run: Runner) -> None:
    code, _, err = run("local fault add A B --match zone_id")
    assert (code, "zone_id=use1-az4" in err) == (EXIT_USAGE, True)


@pytest.mark.parametrize(
    ("text", "expected"), [("0s", 0.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("1d", 86400.0)]
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["10", "s", "-1s", "1w", "1 s", ""])
def test_what_is_no_duration_is_refused(cloud: Cloud, run: Runner, text: str) -> None:
    code, _, err = run(f"local interrupt a --notice '{text}'")
    assert (code, "90s" in err) == (EXIT_USAGE, True)


def test_an_account_fault_is_planted_shown_and_taken_away(cloud: Cloud, run: Runner) -> None:
    code, out, err = run("local plant quota-spot-zero --region us-east-1")
    assert code == EXIT_OK
    assert "planted quota-spot-zero in us-east-1" in out
    assert "doctor --cloud local" in err
    assert "planted quota-spot-zero in us-east-1" in run("local status")[1]
    assert run("local plant --clear")[1].startswith("1 fault taken away")
    assert "planted" not in run("local status")[1]


def test_the_list_of_account_faults_fits_a_terminal(home: Path, run: Runner) -> None:
    code, out, _ = run("local plant --list")
    assert code == EXIT_OK
    assert [line.split()[0] for line in out.splitlines()] == list(PLANTS)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nope", "no fault is named 'nope'"),
        ("no-role --region us-east-1", "leave --region away"),
        ("region-off", "add --region"),
        ("", "--list"),
        ("no-role --clear", "--list"),
    ],
)
def test_what_can_t_be_planted_is_refused(cloud: Cloud, run: Runner, line: str, says: str) -> None:
    code, out, err = run(f"local plant {line}")
    assert (code, out) == (EXIT_USAGE, "")
    assert says in err
    assert client.status(cloud.local)["planted"] == []
