"""The change to a host key of the machine's own, on real SSH servers: who dies at any point finds the machine again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.adapters.keys import change_command, ed25519_pair, offer_command, offered
from cloudtrain.provisioner.adapters.ssh import ParamikoRemote
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.attempt_files import AttemptFiles
from cloudtrain.provisioner.controller.host_keys import KeyRefused, change_host_key
from cloudtrain.provisioner.controller.journal import DrivenElsewhere
from cloudtrain.provisioner.controller.reach import Reach
from cloudtrain.provisioner.errors import RemoteError
from cloudtrain.provisioner.localcloud.hosts import Host, HostSpec, start_host
from cloudtrain.provisioner.model import Attempt, Endpoint, JobRecord, Machine, MachineState, Phase
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.ports import RunResult, Target
from tests.fakes import FakeClock, FakeCloud, FakeObjectStore
from tests.records import OFFERINGS, job
from tests.ssh.hostkit import KINDS, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts read /proc")


class Crash(BaseException):
    """The controller dies here."""


class Dying(ParamikoRemote):
    """A connection whose user dies before or after its n-th moment: two for each command, one for each record kept."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at, self.moments = at, 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.at:
            raise Crash

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        self.moment()
        result = super().run(target, command, stdin=stdin, timeout_s=timeout_s)
        self.moment()
        return result


@dataclass
class Story:
    """One machine of one attempt, and the computers that drive it, one after the other."""

    record: JobRecord
    attempt: Attempt
    machine: Machine
    objects: FakeObjectStore
    job_dir: Path

    def reach(self, remote: ParamikoRemote, job_dir: Path | None = None) -> Reach:
        """As a new controller sees it: nothing remembered but what is on this computer."""
        folder, clock = job_dir or self.job_dir, FakeClock()
        files = AttemptFiles(folder, self.record)
        return Reach(FakeCloud(clock), remote, self.objects, clock, files, folder)

    def change(self, remote: ParamikoRemote, job_dir: Path | None = None) -> None:
        change_host_key(self.reach(remote, job_dir), self.record, self.attempt, self.machine)

    def target(self, remote: ParamikoRemote) -> Target:
        return self.reach(remote).target(self.attempt, self.machine)


@pytest.fixture(params=KINDS)
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Story]]:
    require(request.param)
    hosts: list[Host] = []
    local = tuple(replace(o, pool=replace(o.pool, cloud="local")) for o in OFFERINGS)

    def start() -> Story:
        folder = tmp_path / str(len(hosts))
        (folder / "job").mkdir(parents=True)
        pool: Pool = local[0].pool
        record = replace(job(), cloud="local", offerings=local)
        attempt = Attempt(1, pool, "token-1", Phase.BOOTING, 4_000_000_000.0, image_id="ami-1")
        record = replace(record, attempts=(attempt,), generation=1)
        objects = FakeObjectStore()
        objects.put(record_key(record.job_id), encode(record))
        files = AttemptFiles(folder / "job", record)
        data = files.user_data(attempt, 4_000_100_000.0)
        host = start_host(request.param, HostSpec(f"i-{id(folder)}", "cloud-1", folder / "host", data))
        hosts.append(host)
        machine = Machine(
            "i-1", record.job_id, 1, "token-1", MachineState.RUNNING, 0.0, endpoint=Endpoint(*host.endpoint)
        )
        takeover.keep_attempt(record, 1, objects, folder / "job")
        return Story(record, attempt, machine, objects, folder / "job")

    yield start
    for host in hosts:
        host.kill(grace_s=0)


def test_after_the_first_session_the_machine_serves_with_a_key_of_its_own(begin: Callable[[], Story]) -> None:
    story, remote = begin(), ParamikoRemote()
    (thrown_in,) = story.target(remote).host_keys
    story.change(remote)
    (own,) = story.target(remote).host_keys
    assert own != thrown_in
    assert remote.run(story.target(remote), "echo it", timeout_s=20).stdout == b"it\n"
    with pytest.raises(RemoteError, match="not the one pinned"):
        remote.run(replace(story.target(remote), host_keys=(thrown_in,)), "true", timeout_s=20)
    kept = story.job_dir / "attempt-1.accepted-keys.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    host = story.job_dir.parent / "host/rootfs"
    assert (host / "etc/ssh/ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    assert (host / "var/lib/cloudtrain/host-key").stat().st_mode & 0o777 == 0o600
    there = (host / "etc/ssh/ssh_host_ed25519_key").read_text()
    assert there not in "".join(p.read_text() for p in story.job_dir.rglob("*") if p.is_file()), "it stays there"
    before = dict(story.objects.objects)
    story.change(remote)  # nothing more to do
    assert story.objects.objects == before
    remote.close()


def test_a_session_that_is_open_goes_on(begin: Callable[[], Story]) -> None:
    story, early, late = begin(), ParamikoRemote(), ParamikoRemote()
    target = story.target(early)
    assert early.run(target, "true", timeout_s=20).exit_code == 0
    story.change(late)
    assert early.run(target, "true", timeout_s=20).exit_code == 0, "on the connection that was there"
    early.close()
    late.close()


def test_who_dies_between_any_two_steps_still_reaches_the_machine(
    begin: Callable[[], Story], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Dying()
    real = AttemptFiles.accept
    remote = whole

    def accept(self: AttemptFiles, *arguments: Any) -> None:
        real(self, *arguments)
        remote.moment()

    monkeypatch.setattr(AttemptFiles, "accept", accept)
    begin().change(whole)
    whole.close()
    assert whole.moments == 8  # three commands and two records
    story = begin()
    for at in range(1, whole.moments + 1):
        story = story if at % 4 else begin()  # most begin where the one before has died
        remote = Dying(at)
        with contextlib.suppress(Crash):
            story.change(remote)
        remote.close()
        fresh = ParamikoRemote()
        assert fresh.run(story.target(fresh), "echo it", timeout_s=20).stdout == b"it\n", f"died at {at}"
        second = tmp_path / f"second-{at}"
        second.mkdir()
        takeover.fetch_keys(story.record, story.objects, second)
        there = story.reach(fresh, second).target(story.attempt, story.machine)
        assert fresh.run(there, "echo it", timeout_s=20).stdout == b"it\n", f"adopted after a death at {at}"
        fresh.close()
    last = ParamikoRemote()
    story.change(last)
    assert len(story.target(last).host_keys) == 1
    last.close()


def test_who_lost_the_job_to_another_computer_changes_nothing(begin: Callable[[], Story]) -> None:
    story, remote = begin(), ParamikoRemote()
    key = record_key(story.record.job_id)
    story.objects.put(key, encode(replace(story.record, driver="another-home")))
    with pytest.raises(DrivenElsewhere):
        story.change(remote)
    fresh = ParamikoRemote()
    thrown_in = story.target(fresh).host_keys[0]
    assert fresh.run(replace(story.target(fresh), host_keys=(thrown_in,)), "true", timeout_s=20).exit_code == 0
    for one in (remote, fresh):
        one.close()


def test_a_machine_that_names_no_key_is_refused(begin: Callable[[], Story], monkeypatch: pytest.MonkeyPatch) -> None:
    story, remote = begin(), ParamikoRemote()
    answers = {"ssh-keygen": RunResult(0, b"ssh-rsa AAAA", b"")}
    real = remote.run

    def run(target: Target, command: str, **rest: Any) -> RunResult:
        return next((a for word, a in answers.items() if word in command), None) or real(target, command, **rest)

    monkeypatch.setattr(remote, "run", run)
    with pytest.raises(KeyRefused, match="names no host key of its own"):
        story.change(remote)
    answers["ssh-keygen"] = RunResult(127, b"", b"sh: 1: ssh-keygen: not found\n")
    with pytest.raises(KeyRefused, match="can't change its SSH host key: sh: 1: ssh-keygen: not found"):
        story.change(remote)
    remote.close()


def test_another_key_than_the_offered_one_is_not_put_in_place(tmp_path: Path) -> None:
    env = {"CLOUDTRAIN_ROOT": str(tmp_path), "PATH": "/usr/bin:/bin"}
    (tmp_path / "etc/ssh").mkdir(parents=True)
    says = subprocess.run(["sh", "-c", offer_command()], env=env, capture_output=True, text=True, check=True).stdout
    again = subprocess.run(["sh", "-c", offer_command()], env=env, capture_output=True, text=True, check=True).stdout
    assert says == again and says.strip() == offered(says)
    other = change_command(ed25519_pair("x").public)
    done = subprocess.run(["sh", "-c", other], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "it offered another host key before\n")
    assert list((tmp_path / "etc/ssh").iterdir()) == []


@pytest.mark.parametrize(
    ("units", "calls"),
    [
        ("ssh.socket ssh.service", ["restart ssh"]),  # Ubuntu from 22.10 on: systemd listens
        ("ssh.service", ["reload ssh"]),  # Debian, Ubuntu 22.04
        ("sshd.service", ["reload ssh", "reload sshd"]),  # Amazon Linux, Fedora
    ],
)
def test_sshd_is_told_in_the_way_of_its_system(tmp_path: Path, units: str, calls: list[str]) -> None:
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin/systemctl"
    fake.write_text(f"""#!/bin/sh
units="{units}"
if [ "$1" = --quiet ]; then case " $units " in *" $3 "*) exit 0 ;; *) exit 3 ;; esac; fi
echo "$1 $2" >>"{tmp_path}/calls"
case " $units " in *" $2.service "*) exit 0 ;; *) exit 5 ;; esac
""")
    fake.chmod(0o755)
    env = {"CLOUDTRAIN_ROOT": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    says = subprocess.run(["sh", "-c", offer_command()], env=env, capture_output=True, text=True, check=True).stdout
    subprocess.run(["sh", "-c", change_command(says)], env=env, check=True)
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").read_text() == says


@pytest.mark.parametrize("bad", ["", "ssh-ed25519 short", "ssh-rsa " + "A" * 68, '"; touch x; "', "\x00"])
def test_only_a_key_enters_the_command(bad: str) -> None:
    with pytest.raises(ValueError, match="no ed25519 host key"):
        change_command(bad)
