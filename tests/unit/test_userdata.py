from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cloudtrain.provisioner.adapters.userdata import MAX_BYTES, cloud_config, extend_command
from cloudtrain.provisioner.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "user_data.yaml"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
FAR = 4_000_000_000
NOW = 1_800_000_000


def config(*, boot: float = FAR, hard: float | None = None, client: str = "ssh-ed25519 AAAAclient job") -> str:
    return cloud_config(
        client_public_key=client,
        host_private_key=PRIVATE,
        host_public_key="ssh-ed25519 AAAAhost job",
        boot_deadline_at=boot,
        hard_deadline_at=hard,
    )


def test_golden() -> None:
    assert config(hard=FAR + 86_400) == GOLDEN.read_text(encoding="utf-8")


def test_what_cloud_init_reads() -> None:
    text = config()
    assert text.startswith("#cloud-config\n")
    read = yaml.safe_load(text)
    assert list(read) == ["bootcmd", "ssh_deletekeys", "ssh_keys", "ssh_authorized_keys"]
    assert read["ssh_deletekeys"] is True
    assert read["ssh_keys"] == {"ed25519_private": PRIVATE, "ed25519_public": "ssh-ed25519 AAAAhost job"}
    assert read["ssh_authorized_keys"] == ["ssh-ed25519 AAAAclient job"]
    assert "/var/lib/cloudtrain/arm" in read["bootcmd"][0].replace("$dir", "/var/lib/cloudtrain")
    assert "apt-daily.timer" in read["bootcmd"][1]


def test_more_than_16_kib_is_refused() -> None:
    assert len(config(client="k" * 8000).encode()) <= MAX_BYTES
    with pytest.raises(UsageError, match="16384"):
        config(client="k" * MAX_BYTES)


class Machine:
    """The scripts on a root folder of their own, with stand-ins for every command that could touch this computer.

    Its clock stands at ``set_clock``, and moves by what is slept. ``each_sleep`` is shell that runs whenever it slept.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.bin = root, root / "bin"
        self.bin.mkdir()
        date, sh = shutil.which("date"), shutil.which("sh")
        self._script("systemd-run", f'echo "systemd-run $*" >>"{root}/calls"')
        self._script("systemctl", f'echo "systemctl $*" >>"{root}/calls"')
        self._script("sudo", f'echo "sudo $*" >>"{root}/calls"')
        self._script(
            "sleep",
            f'echo "sleep $*" >>"{root}/calls"\n'
            f'echo $(($(cat "{root}/clock") + $1)) >"{root}/clock.new" && mv "{root}/clock.new" "{root}/clock"\n'
            f'[ ! -e "{root}/each-sleep" ] || {sh} "{root}/each-sleep"',
        )
        self._script("date", f'if [ "$*" = +%s ]; then cat "{root}/clock"; else exec {date} "$@"; fi')
        for name in ("sh", "bash", "cat", "mkdir", "mv", "rm", "chmod", "id", "sed", "cksum", "sync"):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.set_clock(NOW)

    def _script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f'#!/bin/sh\n{text}\n[ ! -e "{self.root}/fail-{name}" ]\n')
        (self.bin / name).chmod(0o755)

    def set_clock(self, at: float) -> None:
        (self.root / "clock").write_text(f"{int(at)}\n")

    @property
    def clock(self) -> int:
        return int((self.root / "clock").read_text())

    def each_sleep(self, script: str) -> None:
        (self.root / "each-sleep").write_text(script)

    def watch(self) -> int:
        """Keep the watch until it ends the machine; returns how many seconds that took by the machine's clock."""
        began = self.clock
        done = self.run(f'exec "{self.folder}/watch"')
        assert (done.returncode, self.calls()[-1]) == (0, "systemctl --no-block poweroff"), done
        return self.clock - began

    @property
    def folder(self) -> Path:
        return self.root / "var/lib/cloudtrain"

    @property
    def work(self) -> Path:
        return self.root / "run/cloudtrain/work"

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "CLOUDTRAIN_ROOT": str(self.root)}
        return subprocess.run(["sh", "-c", script], env=env, text=True, capture_output=True, timeout=20)

    def boot(self, text: str) -> subprocess.CompletedProcess[str]:
        return self.run("\n".join(yaml.safe_load(text)["bootcmd"]))

    def timers(self) -> list[str]:
        return [call for call in self.calls("systemd-run") if "--on-calendar" in call]

    def calls(self, name: str = "") -> list[str]:
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(name)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def unit_of(call: str) -> str:
    return next(word for word in call.split() if word.startswith("--unit=")).removeprefix("--unit=")


def test_the_switch_is_the_first_thing_that_happens(machine: Machine) -> None:
    assert machine.boot(config()).returncode == 0
    first, watch, second = machine.calls()
    assert first.startswith("systemd-run --no-block --unit=cloudtrain-deadline-")
    assert "--on-calendar=2096-10-02 07:06:40 UTC" in first
    assert first.count("DefaultDependencies=no") == 2
    assert first.endswith(f"{machine.folder}/poweroff")
    assert watch.startswith("systemd-run --no-block --unit=cloudtrain-watch-")
    assert "--property=Restart=always" in watch and watch.endswith(f"{machine.folder}/watch")
    assert second.startswith("systemctl mask apt-daily.timer")


def test_extended_over_ssh_the_new_timer_stands_before_the_old_one_goes(machine: Machine) -> None:
    machine.boot(config())
    (old,) = machine.timers()
    assert machine.run(extend_command(FAR + 60.9)).returncode == 0
    new, stop = machine.calls()[-2:]
    assert "--on-calendar=2096-10-02 07:07:40 UTC" in new
    assert stop == f"systemctl stop {unit_of(old)}.timer"
    assert unit_of(new) != unit_of(old)
    assert not machine.calls("sudo")


def test_the_next_boot_keeps_the_extended_time(machine: Machine) -> None:
    machine.boot(config())
    machine.run(extend_command(FAR + 60))
    machine.boot(config())
    assert "07:07:40 UTC" in machine.timers()[-1]


def test_nothing_goes_past_the_hard_deadline(machine: Machine) -> None:
    machine.boot(config(hard=FAR + 120))
    machine.run(extend_command(FAR + 9999))
    assert "--on-calendar=2096-10-02 07:08:40 UTC" in machine.timers()[-1]


@pytest.mark.parametrize("text", ["", "soon", "12 34", "-5"])
def test_a_deadline_file_that_is_no_time_is_ignored(machine: Machine, text: str) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "deadline").write_text(text)
    done = machine.boot(config())
    assert "--on-calendar=2096-10-02 07:06:40 UTC" in machine.timers()[0]
    assert "ignored" in done.stderr


def test_a_deadline_that_has_passed_powers_off_at_once(machine: Machine) -> None:
    machine.boot(config(boot=NOW - 1))  # systemd would never fire such a timer
    assert machine.calls()[0] == "systemctl --no-block poweroff"
    assert not machine.timers()


def test_a_machine_that_cannot_arm_its_switch_does_not_run(machine: Machine) -> None:
    (machine.root / "fail-systemd-run").touch()
    machine.boot(config())
    assert machine.calls()[:2] == [machine.timers()[0], "systemctl --no-block poweroff"]


def test_an_extension_that_fails_says_so_and_leaves_the_old_timer(machine: Machine) -> None:
    machine.boot(config())
    (machine.root / "fail-systemd-run").touch()
    done = machine.run(extend_command(FAR + 60))
    assert done.returncode != 0 and "the deadline stays as it was" in done.stderr
    assert not machine.calls("systemctl stop")
    (machine.root / "fail-systemd-run").unlink()
    machine.boot(config())
    assert "07:06:40 UTC" in machine.timers()[-1], "nor does the next boot know of it"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_the_earlier_deadline_and_says_so(machine: Machine) -> None:
    machine.boot(config())
    (machine.folder / "deadline.new").symlink_to("/dev/full")
    done = machine.run(extend_command(FAR + 60))
    assert done.returncode != 0
    assert "the deadline stays as it was" in done.stderr.splitlines()[-1]
    assert len(machine.timers()) == 1 and not machine.calls("systemctl stop")
    assert machine.run(f'"{machine.folder}/arm" show').stdout == f"{FAR}\n"
    assert machine.run(extend_command(FAR + 60)).returncode == 0, "once there is room again"
    assert machine.run(f'"{machine.folder}/arm" show').stdout == f"{FAR + 60}\n"


@pytest.mark.parametrize("text", ["soon", "12x", "-5", "9" * 30])
def test_a_time_that_is_none_moves_nothing(machine: Machine, text: str) -> None:
    machine.boot(config())
    assert machine.run(f'"{machine.folder}/arm" {text}').returncode != 0
    assert machine.run(f'"{machine.folder}/arm" show').stdout == f"{FAR}\n"


# ---- the watch, by the machine's own clock


def test_a_machine_whose_agent_never_started_ends_within_half_an_hour(machine: Machine) -> None:
    machine.boot(config())
    assert machine.watch() == 26 * 60


def test_work_keeps_it_and_half_an_hour_after_the_last_it_ends(machine: Machine) -> None:
    machine.boot(config())
    machine.each_sleep(f'n=$(cat "{machine.root}/clock"); [ $n -gt {NOW + 2400} ] || echo $n >"{machine.work}"')
    assert machine.watch() == 2400 + 25 * 60
    assert machine.calls("systemctl") == [machine.calls("systemctl")[0], "systemctl --no-block poweroff"]


def test_a_job_that_trains_under_an_agent_that_is_stuck_keeps_it_too(machine: Machine) -> None:
    machine.boot(config())
    progress = machine.root / "pro gress.json"
    machine.work.write_text(f"1 2.0\n{progress}\n")
    machine.each_sleep(f'n=$(cat "{machine.root}/clock"); [ $n -gt {NOW + 2400} ] || echo $n >"{progress}"')
    assert machine.watch() == 2400 + 25 * 60


def test_a_clock_that_was_wrong_at_boot_and_jumps_ends_no_work(machine: Machine) -> None:
    machine.set_clock(0)  # 1970, until time synchronisation comes
    machine.boot(config(boot=NOW + 2400))
    assert "--on-calendar=2027-01-15 08:40:00 UTC" in machine.timers()[0]
    clock = machine.root / "clock"
    machine.each_sleep(
        f'echo x >>"{machine.work}"; n=$(cat "{clock}")\n'
        f'if [ $n -eq 600 ]; then echo {NOW} >"{clock}"; fi\n'  # forward by decades
        f'if [ $n -eq {NOW + 600} ]; then echo {NOW - 1200} >"{clock}"; echo >"{machine.root}/each-sleep"; fi\n'  # back
    )
    machine.run(f'"{machine.folder}/watch"')
    assert clock.read_text() == f"{NOW + 300}\n", "25 minutes after the last work"
    machine.each_sleep(f'echo x >>"{machine.work}"')
    machine.run(f'"{machine.folder}/watch"')
    assert NOW + 2400 <= machine.clock < NOW + 2460, "at the deadline, by the right time"


def test_the_watch_ends_it_at_the_deadline_whatever_became_of_the_timer(machine: Machine) -> None:
    machine.boot(config(boot=NOW + 600, hard=NOW + 1800))
    machine.each_sleep(f'echo x >>"{machine.work}"')
    machine.run(extend_command(NOW + 9999))
    assert machine.watch() == 1800


def test_a_clock_that_stands_in_1970_for_good_still_ends_what_does_nothing(machine: Machine) -> None:
    machine.set_clock(0)
    machine.boot(config())
    assert machine.watch() == 26 * 60


def test_apt_timers_are_no_reason_not_to_boot(machine: Machine) -> None:
    (machine.root / "fail-systemctl").touch()
    assert machine.boot(config()).returncode == 0


def test_on_a_real_machine_the_login_user_goes_through_sudo() -> None:
    assert 'sudo -n "$arm" 5' in extend_command(5)


def test_poweroff_is_forced_when_it_hangs_but_never_on_a_local_host(machine: Machine, tmp_path: Path) -> None:
    machine.boot(config())
    script = machine.folder / "poweroff"
    machine.run(str(script))
    assert machine.calls()[-1] == "systemctl --no-block poweroff"
    trigger = tmp_path / "sysrq-trigger"
    text = script.read_text()
    assert text.count("/proc/sysrq-trigger") == 1
    real = text.replace("/proc/sysrq-trigger", str(trigger)).replace("CLOUDTRAIN_", "NOT_SET_")
    real = real.replace("sleep 60", "exit 0")  # else it goes on until the machine is off
    before = len(machine.calls())
    machine.run(real)
    assert machine.calls()[before] == "systemctl --no-block poweroff"
    assert sorted(machine.calls()[before + 1 :]) == ["sleep 10", "sleep 120", "systemctl --force --force poweroff"]
    assert trigger.read_text() == "o\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to check syntax")
def test_the_scripts_are_valid_shell(machine: Machine) -> None:
    machine.boot(config())
    scripts = [*yaml.safe_load(config())["bootcmd"], extend_command(1)]
    scripts += [(machine.folder / name).read_text() for name in ("arm", "watch", "poweroff")]
    for script in scripts:
        for shell in ("bash", "sh"):
            checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
    assert os.access(machine.folder / "arm", os.X_OK)
