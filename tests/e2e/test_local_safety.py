"""What a job on the local cloud does not do to the computer that it runs on, by the real command."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.namespaces import apart, bind
from tests.e2e.story import ROOT, Person
from tests.ssh.hostkit import KINDS, require

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-safety")]

REFUSED = (
    "sudo -n id",
    "sudo systemctl poweroff",
    "su -c id",
    "pkexec id",
    "init 6",
    "systemctl restart ssh",
    "systemctl restart sshd.service",
    "systemctl reboot",
    "systemctl stop ssh",
    "service ssh restart",
    "sshd -D -p 2222",
    "reboot",
    "shutdown",
    "shutdown -r now",
    "shutdown -h +1",
    "systemd-run --user sleep 1",
)
# Not taken from the stand-ins: one that gets lost must end in a trap. Hosts of the kind sshd start the real sshd.
TRAPPED = {line.split()[0] for line in REFUSED} - {"sshd"} | {"poweroff", "halt"}


@dataclass(frozen=True)
class Computer:
    """A folder that stands for the user's computer: whatever appears in it, outside ``state``, was written by us."""

    top: Path
    person: Person

    @property
    def trapped(self) -> str:
        """The calls that reached a command of the computer's own."""
        log = self.top / "trap" / "log"
        return log.read_text() if log.exists() else ""

    def files(self) -> set[str]:
        """Everything there but the state folder, the results and the traps."""
        ours = (self.top / "state", self.top / "results", self.top / "trap")
        return {
            str(path.relative_to(self.top))
            for path in self.top.rglob("*")
            if not path.is_relative_to(ours[0]) and not any(path.is_relative_to(folder) for folder in ours[1:])
        }

    def job(self, name: str, **keys: str) -> Path:
        path = self.top / "desk" / "job.yaml"
        lines = [f"name: {name}", "resources: {accelerators: 'T4:1', use_spot: true}", "workdir: ."]
        for key, script in keys.items():
            lines += [f"{key}: |", *(f"  {line}" for line in script.splitlines())]
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture
def computer() -> Iterator[Computer]:
    # Not below /tmp: for the embedded cloud an empty folder of ours lies over that one.
    top = Path(tempfile.mkdtemp(prefix="cloudtrain-safety-", dir="/var/tmp"))
    for name in ("home", "desk", "tmp", "trap", "state"):
        (top / name).mkdir()
    for name in TRAPPED:
        trap = top / "trap" / name
        trap.write_text(f'#!/bin/sh\necho {name} "$@" >> {top}/trap/log\n')
        trap.chmod(0o755)
    extra = {"HOME": str(top / "home"), "TMPDIR": str(top / "tmp"), "PATH": f"{top / 'trap'}:{os.environ['PATH']}"}
    person = Person(top / "state", cwd=top / "desk", extra=extra)
    try:
        yield Computer(top, person)
    finally:
        person.leave()
        shutil.rmtree(top)


def up(computer: Computer, kind: str) -> None:
    """The embedded cloud, where the traps also come first among the commands of the system, and /tmp is watched."""
    require(kind)
    words: tuple[str, ...] = ()
    if os.geteuid() == 0:
        trap, tmp = computer.top / "trap", computer.top / "tmp"
        words = apart(bind(trap, "/usr/local/sbin"), *_kept_in_tmp(tmp), bind(tmp, "/tmp"))
    person = computer.person
    there = Person(person.home, (*words, *person.command), person.cwd, person.extra)
    there.ok("local", "up", "--hosts", kind)


def _kept_in_tmp(tmp: Path) -> list[str]:
    """Lines that keep this clone and its Python in sight where they lie below /tmp themselves."""
    tops = {path.parts[2] for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)) if path.parts[1] == "tmp"}
    for top in tops:
        (tmp / top).mkdir(exist_ok=True)
    return [bind(Path("/tmp") / top, str(tmp / top)) for top in tops]


def script(commands: tuple[str, ...], report: str) -> str:
    """Shell that runs each command and writes down how it ended and what it said."""
    lines = [f'{line} >out 2>&1; echo "$?|{line}|$(wc -l <out)|$(head -n 1 out)" >>{report}' for line in commands]
    return "\n".join([*lines, "rm out"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_change_the_computer_is_refused_and_nothing_is_written_beside_the_state(
    kind: str, computer: Computer
) -> None:
    up(computer, kind)
    before = computer.files()
    job = computer.job(
        "careless",
        setup=script(REFUSED, "setup.txt") + "\necho $HOME $PWD >where.txt",
        run=script(REFUSED, "run.txt") + '\npython -c "print(1)"\ncp *.txt "$CLOUDTRAIN_OUTPUT_DIR"',
    )
    before.add("desk/job.yaml")
    results = computer.top / "results"
    said = computer.person.ok("launch", str(job), "--cloud", "local", "--yes", "--into", str(results))
    assert "the job's `run` is an ordinary process on this computer, with your rights" in said.err.splitlines()
    assert computer.trapped == ""
    for name in ("setup.txt", "run.txt"):
        answers = [line.split("|") for line in (results / name).read_text().splitlines()]
        assert [line for _, line, _, _ in answers] == list(REFUSED)
        for code, line, lines, first in answers:
            assert (code, lines) == ("1", "1"), (code, line, first)
            assert first.startswith(f"{line.split()[0]}: ")
    hosts = computer.person.home / "local" / "hosts"
    assert all(Path(word).is_relative_to(hosts) for word in (results / "where.txt").read_text().split())
    assert computer.files() == before
    assert computer.person.machines() == []


@pytest.mark.parametrize(("kind", "line"), [("embedded", "shutdown -h now"), ("sshd", "systemctl poweroff")])
def test_a_power_off_ends_the_host_alone(kind: str, line: str, computer: Computer) -> None:
    up(computer, kind)
    job = computer.job("tired", run=f'[ "$CLOUDTRAIN_ATTEMPT" = 2 ] && exit\n{line}\nsleep 600')
    results = computer.top / "results"
    said = computer.person.ok("launch", str(job), "--cloud", "local", "--yes", "-o", "json", "--into", str(results))
    attempts = said.json()["attempts"]
    assert [attempt["end_reason"] for attempt in attempts] == ["machine-lost", "succeeded"]
    assert "Client.InstanceInitiatedShutdown" in attempts[0]["end_detail"]
    assert computer.trapped == ""
    assert computer.person.machines() == []
