"""The stand-in commands of a local host: what they ask of the cloud, what they refuse, what they never touch."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.localcloud import hostfiles, shims
from cloudtrain.provisioner.localcloud.hosts import HostSpec
from tests.ssh.hostkit import KINDS, Rig, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are tested with /proc")

FUTURE = "2099-01-01 00:00:00 UTC"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "control"
    (folder / "timers").mkdir(parents=True)
    monkeypatch.setenv("CLOUDTRAIN_LOCAL_CONTROL", str(folder))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "poweroff",
        "poweroff -f",
        "halt",
        "shutdown now",
        "shutdown -h now",
        "shutdown -P +0",
        "systemctl poweroff",
        "systemctl --no-block poweroff",
        "systemctl --force --force halt",
        "init 0",
        "telinit 0",
    ],
)
def test_power_off(line: str, control: Path) -> None:
    assert shims.main(line.split()) == 0
    assert (control / "poweroff").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sudo id", "a local host has no sudo"),
        ("sudo -n systemctl poweroff", "a local host has no sudo"),
        ("su -c id", "a local host has no su"),
        ("doas id", "a local host has no doas"),
        ("pkexec id", "a local host has no pkexec"),
        ("init 6", "has no runlevels"),
        ("telinit", "has no runlevels"),
        ("sshd -D", "a local host has no sshd"),
        ("service ssh restart", "a local host has no service"),
        ("systemctl reload nginx", "'systemctl reload nginx' was not run"),
        ("systemctl reload ssh nginx", "has no systemd"),
        ("systemctl restart sshd", "has no systemd"),
        ("systemctl stop ssh", "has no systemd"),
        ("systemctl stop", "has no systemd"),
        ("systemctl", "has no systemd"),
        ("systemctl reboot", "not restarted"),
        ("systemctl stop dead-man.timer", "unit dead-man.timer is not loaded"),
        ("systemctl stop ../../x.timer", "is no name for a unit"),
        ("reboot", "not restarted"),
        ("shutdown -r now", "not restarted"),
        ("shutdown -c", "not restarted"),
        ("shutdown", "use 'shutdown now'"),
        ("shutdown -h +60", "use 'shutdown now'"),
        ("systemd-run --unit=agent --collect python agent.py", "start a detached process with setsid"),
        ("systemd-run --user sleep 1", "--user is not supported"),
        ("systemd-run --unit", "--unit needs a value"),
        ("systemd-run --on-calendar=hourly --unit=x poweroff", "a local host takes 'YYYY-MM-DD HH:MM:SS UTC'"),
        ("systemd-run --on-calendar=2099-01-01 --unit=x poweroff", "a local host takes"),
    ],
)
def test_refused_with_one_line(line: str, why: str, control: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shims.main(line.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(line.split(maxsplit=1)[0] + ": ")
    assert why in said
    assert said.count("\n") == 1
    assert [path.name for path in control.rglob("*")] == ["timers"]


def _arm(*more: str, calendar: str = FUTURE, unit: str = "dead-man") -> int:
    return shims.main(["systemd-run", f"--unit={unit}", f"--on-calendar={calendar}", *more])


def test_a_timer_is_armed_stopped_and_armed_again(control: Path) -> None:
    files = hostfiles.HostFiles(control.parent)
    assert _arm("--timer-property=AccuracySec=1s", "--no-block", "--", "/bin/sh", "-c", "systemctl poweroff") == 0
    assert json.loads((control / "timers" / "dead-man.json").read_text())["on_calendar"] == FUTURE
    assert files.timers() == {"dead-man": 4070908800.0}  # date -u -d '2099-01-01' +%s
    assert not files.poweroff_requested()
    assert _arm("poweroff") == 1, "as systemd: the unit is there"
    assert shims.main(["systemctl", "stop", "dead-man.timer"]) == 0
    assert files.timers() == {}
    assert _arm("poweroff", unit="dead-man.timer") == 0
    assert shims.main(["systemd-run", "--unit", "b", "--on-calendar", FUTURE, "-p", "Type=oneshot", "poweroff"]) == 0
    assert set(files.timers()) == {"dead-man", "b"}


@pytest.mark.parametrize(
    ("calendar", "why"),
    [
        ("2020-01-01 00:00:00 UTC", "would never fire"),
        ("2099-02-30 00:00:00 UTC", "a local host takes"),
        ("2099-01-01 00:00:00", "a local host takes"),
        ("2099-01-01T00:00:00 UTC", "a local host takes"),
        ("2099-01-01 00:00 UTC", "a local host takes"),
        ("", "a local host takes"),
    ],
)
def test_a_time_that_systemd_would_read_otherwise(
    calendar: str, why: str, control: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _arm("poweroff", calendar=calendar) == 1
    assert why in capsys.readouterr().err
    assert not list(control.glob("timers/*"))


def test_a_timer_that_does_something_else_is_refused(control: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _arm("rm", "-rf", "/tmp/x") == 1
    assert "'rm -rf /tmp/x' was not armed" in capsys.readouterr().err


def test_a_timer_is_due_at_its_time(control: Path) -> None:
    files = hostfiles.HostFiles(control.parent)
    for at, due in [(time.time() + 60, False), (time.time() - 1, True)]:
        (control / "timers" / "x.json").write_text(json.dumps({"at": at}))
        assert files.poweroff_requested() is due
    for junk in ("", "{}", "[]", '{"at": "soon"}'):
        (control / "timers" / "x.json").write_text(junk)
        assert not files.poweroff_requested()


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of commands with the real names, which record that they were run. It stands for the real machine."""
    folder = tmp_path / "real machine"
    folder.mkdir()
    for name in shims.COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> "{folder}/ran"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("name", ["python", "poweroff", "systemctl"])
def test_no_host_where_a_stand_in_cannot_be_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a file system mounted noexec. A shell would go on to the real command.
    runnable = shutil.which

    def which(command: str, path: str) -> str | None:
        return f"/usr/sbin/{name}" if command == name else runnable(command, path=path)

    monkeypatch.setattr(shutil, "which", which)
    with pytest.raises(UsageError, match=r"programs cannot be run from .*/host/home: set CLOUDTRAIN_LOCAL_HOME"):
        hostfiles.create(HostSpec("i-1", "cloud", tmp_path / "host", ""))
    assert list((tmp_path / "host").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_reaches_the_real_machine(
    kind: str, tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kind)
    monkeypatch.setattr(hostfiles, "_SYSTEM_PATH", f"{trap}:{hostfiles._SYSTEM_PATH}")
    made = Rig(kind, tmp_path / "host")
    try:
        control = made.root / "control"
        client = made.connect()
        for name in shims.COMMANDS:
            found = made.run(f"command -v {name}", client=client).out.strip()
            assert found == f"{made.root}/home/bin/{name}"
        for line in ("sudo poweroff", "service ssh stop", "sshd -t", "reboot", "systemctl restart ssh"):
            answer = made.run(line, client=client)
            assert answer.code == 1
            assert answer.err.count("\n") == 1
        # As a script of the job would call it, and one level down in another interpreter.
        python = "import subprocess; print(subprocess.run(['sudo', 'true']).returncode)"
        assert made.run(f'python -c "{python}"', client=client).out == "1\n"
        assert not made.host.poweroff_requested()
        for line in ("poweroff", "halt", "shutdown -h now", "systemctl poweroff"):
            assert made.run(line, client=client).code == 0
            assert made.host.poweroff_requested()
            (control / "poweroff").unlink()
        assert made.run(f"systemd-run --unit=x --on-calendar='{FUTURE}' poweroff", client=client).code == 0
        assert (control / "timers" / "x.json").exists()
        assert not made.host.poweroff_requested()
        assert not (trap / "ran").exists(), (trap / "ran").read_text()
        # The trap works: without the stand-ins the real one is what runs.
        made.run(
            f"rm ~/bin/poweroff; [ \"$(command -v poweroff)\" = '{trap}/poweroff' ] && poweroff now", client=client
        )
        assert (trap / "ran").read_text() == "poweroff now\n"
    finally:
        made.close()
