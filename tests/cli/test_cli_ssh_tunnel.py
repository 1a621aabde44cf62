"""`ssh` and `tunnel` where no machine is reached: what is refused, with which exit code, and what ssh is given."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.cli import ssh, sshing, tunnel
from cloudtrain.provisioner.errors import CloudtrainError, NotFound
from cloudtrain.provisioner.model import Attempt, Endpoint, EndReason, JobStatus, Phase
from cloudtrain.provisioner.ports import Target
from tests.cli.world import World
from tests.records import OFFERINGS, job, over

ATTEMPT = Attempt(3, OFFERINGS[0].pool, "t", Phase.WORKING, 0.0, instance_id="i-0123456789abcdef0")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"


@pytest.mark.parametrize("command", [["ssh", "digits"], ["ssh", "digits", "--config"], ["tunnel", "digits", "6006"]])
def test_without_a_machine_it_ends_with_3_and_says_what_to_do(world: World, command: list[str]) -> None:
    record = world.add(job(over(1, 60, EndReason.INTERRUPTED)))
    code, out, err = world.run(*command)
    assert (code, out) == (3, "")
    assert f"job {record.job_id} (PENDING) has no machine now: it may get one soon; `cloudtrain show" in err
    world.change(record.job_id, status=JobStatus.SUCCEEDED)
    code, _, err = world.run(*command)
    assert (code, "`cloudtrain logs` shows what it wrote" in err) == (3, True)
    assert len(err.strip().splitlines()) == 1


def test_an_attempt_that_there_never_was(world: World) -> None:
    world.add(job(over(1, 60, EndReason.INTERRUPTED)))
    code, _, err = world.run("ssh", "digits", "--attempt", "7")
    assert (code, "has no attempt 7; `cloudtrain show" in err) == (3, True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["ssh", "digits", "--write"], "--write goes with --config"),
        (["ssh", "digits", "--config", "--", "ls"], "--config runs no command"),
        (["ssh"], "Missing argument 'JOB'"),
        (["tunnel", "digits"], "Missing argument"),
        (["tunnel", "digits", "tensorboard"], "'tensorboard' is no port"),
        (["tunnel", "digits", "0"], "'0' is no port"),
        (["tunnel", "digits", "8888:65536"], "'8888:65536' is no port"),
        (["tunnel", "digits", "0.0.0.0:80:80"], "is no port"),
    ],
)
def test_what_is_refused_with_2(world: World, command: list[str], words: str) -> None:
    world.add()
    code, _, err = world.run(*command)
    assert (code, words in err) == (2, True), err


def test_a_port_that_is_taken_is_named_before_anything_is_asked(world: World) -> None:
    world.add()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = world.run("tunnel", "digits", f"{port}:6006")
    assert code == 2
    assert f"port {port} of this computer is taken: use `cloudtrain tunnel digits {port + 1}:6006`" in err


@pytest.mark.parametrize("command", [["ssh", "digits"], ["tunnel", "digits", "6006"]])
def test_without_an_ssh_client_it_says_so(world: World, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    world.add()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, _, err = world.run(*command)
    assert (code, "no `ssh` on PATH: install OpenSSH's client" in err) == (1, True)


def test_the_entry_means_to_ssh_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "a b%c"
    folder.mkdir()
    target = Target(Endpoint("10.0.0.5", 22), "ubuntu", (KEY,), folder / "key", "ssh -W 10.0.0.5:22 -l me -- bastion")
    (folder / "config").write_text(sshing._entry("digits-1", ATTEMPT, target, folder))
    command = ["ssh", "-G", "-F", str(folder / "config"), "cloudtrain-digits-1"]
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {
        "hostname 10.0.0.5",
        "user ubuntu",
        "port 22",
        "hostkeyalias cloudtrain-digits-1-3",
        "stricthostkeychecking true",
        "identitiesonly yes",
        "forwardagent no",
        f"userknownhostsfile {folder}/known_hosts",
        "globalknownhostsfile /dev/null",
        "proxycommand ssh -W 10.0.0.5:22 -l me -- bastion",
    } <= {line.replace("%%", "%") for line in said}
    assert sshing._known_hosts("digits-1", ATTEMPT, replace(target, host_keys=(KEY, KEY + "x"))) == (
        f"cloudtrain-digits-1-3 {KEY}\ncloudtrain-digits-1-3 {KEY}x\n"
    )


def test_a_login_user_brings_no_line_of_its_own_into_the_configuration(tmp_path: Path) -> None:
    for user in ("ubuntu\n  ProxyCommand id", "a b", "%h"):
        target = Target(Endpoint("10.0.0.5", 22), user, (KEY,), tmp_path / "key")
        with pytest.raises(CloudtrainError, match="names a login user"):
            sshing._entry("digits-1", ATTEMPT, target, tmp_path)


def test_a_folder_that_ssh_can_not_name_is_refused(tmp_path: Path) -> None:
    for name in ('a"b', "a\nb", "${HOME}"):
        with pytest.raises(CloudtrainError, match="set CLOUDTRAIN_HOME"):
            sshing._quoted(tmp_path / name)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), 'exec "${SHELL:-/bin/sh}" -i'),
        (("nvidia-smi | head",), "nvidia-smi | head"),
        (("ls", "a b", "$HOME"), "ls 'a b' '$HOME'"),
    ],
)
def test_the_line_that_the_machine_gets(words: tuple[str, ...], line: str) -> None:
    assert ssh.remote_line(words, None) == f"cd ~/cloudtrain/work 2>/dev/null; {line}"
    with_python = ssh.remote_line(words, "/opt/pytorch")
    assert "[ ! -f /opt/pytorch/bin/activate ] || . /opt/pytorch/bin/activate; " in with_python
    assert with_python.endswith(line)
    assert subprocess.run(["sh", "-n", "-c", with_python], check=False).returncode == 0


def test_the_include_line_comes_once_at_the_top_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, config = tmp_path / "dotfiles", tmp_path / "config"
    real.write_text("Host a\n  User b\n")
    real.chmod(0o644)
    config.symlink_to(real)
    assert ssh._include(config) is True
    assert ssh._include(config) is False
    assert config.is_symlink()
    assert real.read_text() == "Include cloudtrain/*.conf\n\nHost a\n  User b\n"
    assert real.stat().st_mode & 0o777 == 0o644
    fresh = tmp_path / "fresh"
    assert ssh._include(fresh) is True
    assert fresh.stat().st_mode & 0o777 == 0o600


def test_a_configuration_in_another_encoding_keeps_every_byte(tmp_path: Path) -> None:
    config = tmp_path / "config"
    before = b"# caf\xe9\r\nHost a\r\n  User b\r\n"
    config.write_bytes(before)
    assert ssh._include(config) is True
    assert config.read_bytes() == b"Include cloudtrain/*.conf\n\n" + before
    assert ssh._include(config) is False


def test_only_entries_of_jobs_that_are_over_here_are_removed(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = world.add()
    world.change(ended.job_id, status=JobStatus.SUCCEEDED)
    for name in (ended.job_id, ended.spec.name, ended.job_id[:-1], "my-own"):
        (tmp_path / f"{name}.conf").write_text("Host x\n")
    ssh._forget_ended(world.home, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.conf")} == {ended.spec.name, ended.job_id[:-1], "my-own"}


def test_a_tunnel_goes_on_with_the_job_and_ends_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record = world.add()
    answers: list[bool] = [True, False, False, True, False]  # whether there is a machine
    held: list[bool] = []

    def way_to(home: object, job: str) -> str:
        if answers.pop(0):
            return "way"
        if not answers:
            world.change(record.job_id, status=JobStatus.SUCCEEDED)
        raise NotFound("no machine now")

    monkeypatch.setattr(sshing, "way_to", way_to)
    monkeypatch.setattr(tunnel, "_hold", lambda program, way, ports, *, again: held.append(again))
    before = world.at
    code, _, err = world.run("tunnel", "digits", "16006")
    assert (code, held) == (3, [False, True])
    assert err.count("waiting for its next one") == 1
    assert world.at - before == 6.0


def test_ctrl_c_ends_a_tunnel_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add()
    monkeypatch.setattr(sshing, "way_to", lambda home, job: "way")

    def hold(*_: object, again: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tunnel, "_hold", hold)
    code, _, err = world.run("tunnel", "digits", "16006")
    assert (code, "the tunnel is closed" in err) == (0, True)
