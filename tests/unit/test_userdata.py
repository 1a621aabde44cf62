from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from cloudtrain.provisioner.adapters.userdata import MAX_BYTES, cloud_config, extend_command
from cloudtrain.provisioner.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "user_data.yaml"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
FAR = 4_000_000_000


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
    """The scripts on a root folder of their own, with stand-ins for every command that could touch this computer."""

    def __init__(self, root: Path, *, local: bool = True) -> None:
        self.root, self.bin, self.local = root, root / "bin", local
        self.bin.mkdir()
        for name in ("systemd-run", "systemctl", "sudo", "sleep", "poweroff"):
            script = self.bin / name
            script.write_text(f'#!/bin/sh\necho "{name} $*" >>"{root}/calls"\n[ ! -e "{root}/fail-{name}" ]\n')
            script.chmod(0o755)
        for name in ("sh", "bash", "cat", "mkdir", "mv", "chmod", "date", "id"):
            (self.bin / name).symlink_to(shutil.which(name) or name)

    @property
    def folder(self) -> Path:
        return self.root / "var/lib/cloudtrain"

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "CLOUDTRAIN_ROOT": str(self.root), "CLOUDTRAIN_LOCAL_INSTANCE": "i-1"}
        return subprocess.run(["sh", "-c", script], env=env, text=True, capture_output=True, timeout=20)

    def boot(self, text: str) -> subprocess.CompletedProcess[str]:
        return self.run("\n".join(yaml.safe_load(text)["bootcmd"]))

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
    first, second = machine.calls()
    assert first.startswith("systemd-run --no-block --unit=cloudtrain-deadline-")
    assert "--on-calendar=2096-10-02 07:06:40 UTC" in first
    assert first.count("DefaultDependencies=no") == 2
    assert first.endswith(f"{machine.folder}/poweroff")
    assert second.startswith("systemctl mask apt-daily.timer")


def test_extended_over_ssh_the_new_timer_stands_before_the_old_one_goes(machine: Machine) -> None:
    machine.boot(config())
    (old,) = machine.calls("systemd-run")
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
    assert "07:07:40 UTC" in machine.calls("systemd-run")[-1]


def test_nothing_goes_past_the_hard_deadline(machine: Machine) -> None:
    machine.boot(config(hard=FAR + 120))
    machine.run(extend_command(FAR + 9999))
    assert "--on-calendar=2096-10-02 07:08:40 UTC" in machine.calls("systemd-run")[-1]


@pytest.mark.parametrize("text", ["", "soon", "12 34", "-5"])
def test_a_deadline_file_that_is_no_time_is_ignored(machine: Machine, text: str) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "deadline").write_text(text)
    done = machine.boot(config())
    assert "--on-calendar=2096-10-02 07:06:40 UTC" in machine.calls("systemd-run")[0]
    assert "ignored" in done.stderr


def test_a_deadline_that_has_passed_powers_off_at_once(machine: Machine) -> None:
    machine.boot(config(boot=time.time() - 1))  # systemd would never fire such a timer
    assert machine.calls()[0] == "systemctl --no-block poweroff"
    assert not machine.calls("systemd-run")


def test_a_machine_that_cannot_arm_its_switch_does_not_run(machine: Machine) -> None:
    (machine.root / "fail-systemd-run").touch()
    machine.boot(config())
    assert machine.calls()[:2] == [machine.calls("systemd-run")[0], "systemctl --no-block poweroff"]


def test_an_extension_that_fails_says_so_and_leaves_the_old_timer(machine: Machine) -> None:
    machine.boot(config())
    (machine.root / "fail-systemd-run").touch()
    assert machine.run(extend_command(FAR + 60)).returncode != 0
    assert not machine.calls("systemctl stop")


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
    before = len(machine.calls())
    machine.run(real)
    assert machine.calls()[before] == "systemctl --no-block poweroff"
    assert sorted(machine.calls()[before + 1 :]) == ["sleep 10", "sleep 60", "systemctl --force --force poweroff"]
    assert trigger.read_text() == "o\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to check syntax")
def test_the_scripts_are_valid_shell(machine: Machine) -> None:
    machine.boot(config())
    scripts = [*yaml.safe_load(config())["bootcmd"], extend_command(1)]
    scripts += [(machine.folder / name).read_text() for name in ("arm", "poweroff")]
    for script in scripts:
        for shell in ("bash", "sh"):
            checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
    assert os.access(machine.folder / "arm", os.X_OK)
