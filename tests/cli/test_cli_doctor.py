"""``doctor``: failures first with their fix, 80 columns, exit codes; and how ``launch`` says the same findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.account.facts import AccountFacts, Finding, Unread, Wants, Why
from cloudtrain.provisioner.account.findings import fail, ok, warn
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.cli import account, opening
from cloudtrain.provisioner.cli.doctor import wrapped
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import launching, preflight
from cloudtrain.provisioner.launch.preflight import Ground

from .world import World

COMMAND = (
    "`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-3819A6DF --desired-value 4"
    " --region us-east-1`"
)
GOOD = ok("clock", "account", "this computer's clock agrees with AWS's")
POOR = warn("expiry", "account", "the credentials end soon", "`aws sso login`")
BAD = fail("quota", "us-east-1", "quota 'All G and VT Spot Instance Requests' is 0 vCPUs, 4 needed", COMMAND)


class Account:
    """The findings to come, and what was asked."""

    def __init__(self) -> None:
        self.findings: tuple[Finding, ...] = (GOOD,)
        self.wants: Wants | None = None

    def examine(self, ground: Ground, wants: Wants) -> tuple[AccountFacts, tuple[Finding, ...]]:
        self.wants = wants
        return AccountFacts("aws", 0.0, Unread(Why.REFUSED, "", ""), ground.region), self.findings

    @property
    def asked(self) -> set[tuple[str, str]]:
        assert self.wants is not None
        return {(o.pool.region, o.pool.capacity_type.value) for o in self.wants.offerings}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Account:
    found = Account()
    monkeypatch.setattr(preflight, "examine", found.examine)
    monkeypatch.setattr(account, "ground", lambda cloud, home: Ground(Clients("aws"), "us-west-2"))
    return found


def test_a_sound_account(world: World, there: Account) -> None:
    code, out, err = world.run("doctor")
    assert (code, out) == (0, "ok    clock: this computer's clock agrees with AWS's\n")
    assert "0 failures, 0 warnings, 1 ok in us-west-2" in err
    assert "next: `cloudtrain launch JOB.yaml`" in err


def test_failures_come_first_with_their_fix_and_exit_with_6(world: World, there: Account) -> None:
    there.findings = (GOOD, POOR, BAD)
    code, out, err = world.run("doctor")
    assert code == 6
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line[:1].strip()] == ["FAIL", "warn", "ok"]
    assert max(map(len, lines)) <= 80
    assert "fix: `aws sso login`" in out
    assert "1 failure, 1 warning, 1 ok" in err


def test_a_command_that_is_wrapped_can_be_copied() -> None:
    lines = wrapped(f"      fix: {COMMAND}, or the console")
    text = "\n".join(lines)
    copied = text[text.index("`") + 1 : text.rindex("`")]
    assert copied.replace("\\\n", " ").split() == COMMAND.strip("`").split()
    assert all(line.endswith(" \\") for line in copied.splitlines()[:-1])
    assert max(map(len, lines)) <= 80


@given(
    st.lists(st.text("abcdef-./:'", min_size=1, max_size=30), min_size=1, max_size=40),
    st.lists(st.text("xyz,;", min_size=1, max_size=12), max_size=10),
)
def test_whatever_is_wrapped_loses_no_word(command: list[str], prose: list[str]) -> None:
    text = " ".join(["      fix:", *prose, f"`{' '.join(command)}`", *prose])
    lines = wrapped(text)
    assert all(len(line) <= 80 for line in lines)
    assert "\n".join(lines).replace(" \\\n", "\n").split() == text.split()
    copied = "\n".join(lines).split("`")[1]
    assert copied.replace("\\\n", " ").split() == command


def test_json(world: World, there: Account) -> None:
    there.findings = (BAD,)
    code, out, _ = world.run("doctor", "-o", "json")
    told = json.loads(out)
    assert code == 6
    assert (told["schema_version"], told["cloud"], told["regions"]) == (1, "aws", ["us-west-2"])
    assert told["findings"] == [
        {"check": "quota", "level": "fail", "where": "us-east-1", "what": BAD.what, "fix": COMMAND}
    ]


def test_without_a_job_both_markets_of_the_default_region(world: World, there: Account) -> None:
    world.run("doctor")
    assert there.asked == {("us-west-2", "spot"), ("us-west-2", "on-demand")}


def test_flags_say_what_is_looked_at(world: World, there: Account) -> None:
    world.run("doctor", "--gpu", "H100:8", "--spot", "--region", "us-east-1", "--region", "us-east-2")
    assert there.asked == {("us-east-1", "spot"), ("us-east-2", "spot")}


def test_a_job_file_says_it_too(world: World, there: Account, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: j\nresources: {accelerators: 'T4:1', infra: aws/us-east-1, disk_size: 300}\nrun: 'true'\n")
    world.run("doctor", path)
    assert there.asked == {("us-east-1", "on-demand")}
    assert there.wants is not None
    assert there.wants.disk_gib == 300


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--region", "us-est-1"], 2, "did you mean us-east-1?"),
        (["--gpu", "T44:1"], 2, "T4"),
        (["nowhere.yaml"], 3, "nowhere.yaml"),
        (["--cloud", "moon"], 2, "moon"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    world: World, there: Account, arguments: list[str], code: int, words: str
) -> None:
    got, out, err = world.run("doctor", *arguments)
    assert (got, out, there.wants) == (code, "", None)
    assert words in err


# ---- launch


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launching, "warm", lambda home, cloud: None)
    path = tmp_path / "job.yaml"
    path.write_text("name: j\nresources: {accelerators: 'T4:1', use_spot: true, memory: 16+}\nrun: 'true'\n")
    return path


def test_a_launch_is_refused_with_every_reason_in_a_line(world: World, there: Account, job_file: Path) -> None:
    other = fail("bucket", "us-east-1", "there is no bucket", "`cloudtrain setup --region us-east-1`")
    there.findings = (GOOD, BAD, other)
    code, out, err = world.run("launch", job_file, "--yes")
    assert (code, out) == (6, "")
    lines = err.splitlines()
    assert f"fails: us-east-1: {BAD.what}; fix: {COMMAND}" in lines
    assert "fails: us-east-1: there is no bucket; fix: `cloudtrain setup --region us-east-1`" in lines
    assert lines[-1].startswith("cloudtrain: nothing was started: the checks above fail")
    assert world.store.list() == ()
    assert not any((Home.from_env().root / "jobs").iterdir())


def test_the_same_trouble_in_many_regions_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    opening._say(tuple(fail("quota", f"region-{n}", "is 0 vCPUs", "ask") for n in range(9)))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:-1]] == ["region-0", "region-1", "region-2"]
    assert lines[-1] == "… and 6 more of quota: `cloudtrain doctor --region REGION` shows them"
