"""What must hold on a booted machine. Each scenario returns one line with the figures that were seen."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.provisioner.adapters import userdata
from cloudtrain.provisioner.adapters.keys import change_command, offer_command, offered
from cloudtrain.provisioner.adapters.userdata import extend_command
from tests.faults.deadman.box import HANG, USER, Box

FAR_S = 7 * 86400.0
NEVER_S = 3600  # between two rounds of the watch: in these scenarios the timer must do it alone
QUICK_S = 2  # 25 rounds are 50 s: longer than the half minute between two marks of the agent's
LATE_S = 30.0  # a machine may take so long to shut down
FORCE_S = 15


_constants = threading.Lock()


@dataclass(frozen=True)
class Bench:
    """Where machines are made. ``check_s``, ``force_s``: two waits of the user data, shorter than in earnest."""

    tree: Path
    folder: Path
    check_s: int
    force_s: int = FORCE_S

    @contextmanager
    def box(self, name: str, *, boot_s: float, hard_s: float = FAR_S, by_socket: bool = False) -> Iterator[Box]:
        """A machine that boots; gone at the end. Deadlines in seconds from now; ``by_socket``: systemd listens for
        sshd."""
        made = self._made(name, boot_s, hard_s)
        try:
            if by_socket:
                made.listen_by_socket()
            made.power_on()
            yield made
        except AssertionError as error:
            raise AssertionError(f"{error}; its console ends: {made.words()}") from error
        finally:
            made.destroy()

    def _made(self, name: str, boot_s: float, hard_s: float) -> Box:
        with _constants, pytest.MonkeyPatch.context() as patch:
            patch.setattr(userdata, "CHECK_S", self.check_s)
            patch.setattr(userdata, "FORCE_S", self.force_s)
            now = time.time()
            return Box(self.tree, self.folder / name, boot=now + boot_s, hard=now + hard_s)


def fires(bench: Bench) -> str:
    """Nobody comes: the boot deadline ends it, by the timer alone."""
    with bench.box("fires", boot_s=60) as box:
        at = int(box.began + 60)
        box.until(lambda: box.deadline() is not None and box.timers() != [], "the timer is armed")
        armed_s = time.time() - box.began
        assert box.timers() == [box.deadline()], (box.timers(), box.deadline())
        late_s = box.until_off(60 + LATE_S) - at
        assert 0 <= late_s < LATE_S, f"off {late_s:.1f} s after the deadline"
        return f"armed {armed_s:.1f} s after power-on, off {late_s:.1f} s after the deadline"


def survives_reboot(bench: Bench) -> str:
    """A reboot forgets every timer; the same absolute time is armed again and fires."""
    with bench.box("reboot", boot_s=100) as box:
        box.until_reachable()
        before = box.timers()
        at = box.deadline()
        box.reboot()
        box.until(lambda: box.timers() != [], "the timer is armed again")
        again_s = time.time() - box.began
        assert box.timers() == before and box.deadline() == at, (before, box.timers(), at, box.deadline())
        late_s = box.until_off(100 + LATE_S) - (at or 0)
        assert 0 <= late_s < LATE_S, f"off {late_s:.1f} s after the deadline"
        return f"armed again {again_s:.1f} s after power-on for the same second, off {late_s:.1f} s after it"


def extends(bench: Bench) -> str:
    """The login user moves the deadline over SSH: past the first one, over a reboot, never past the hard one."""
    with bench.box("extends", boot_s=70, hard_s=150) as box:
        box.until_reachable()
        first, hard = int(box.began + 70), int(box.began + 150)
        moved = box.ssh(extend_command(first + 40))
        assert moved.returncode == 0, moved.stderr.decode()
        assert box.deadline() == first + 40 and box.timers() == [first + 40], (box.deadline(), box.timers(), first)
        box.reboot()
        box.until(lambda: box.timers() == [first + 40], "armed again for the extended time")
        box.until_reachable()
        box.stays_on(max(0.0, first + 5 - time.time()), "its deadline had been moved")
        assert box.ssh(extend_command(hard + 9999)).returncode == 0
        assert box.timers() in ([hard], [hard - 1], [hard + 1]), (box.timers(), hard)
        late_s = box.until_off(150 + LATE_S) - (box.began + 150)
        assert -2 <= late_s < LATE_S, f"off {late_s:.1f} s after the hard deadline"
        return f"on past its first deadline and a reboot, off {late_s:.1f} s after the hard one"


def full_disk_keeps_deadline(bench: Bench) -> str:
    """What can't be written down does not move the deadline, and the caller is told."""
    with bench.box("full", boot_s=600) as box:
        box.until_reachable()
        at = box.deadline()
        box.root_run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt")
        box.root_run("cp", "-a", "/var/lib/cloudtrain/.", "/mnt/")
        box.root_run("mount", "--bind", "/mnt", "/var/lib/cloudtrain")
        box.root_run("sh", "-c", "dd if=/dev/zero of=/mnt/filler bs=1k; :")
        before = box.timers()
        told = box.ssh(extend_command(time.time() + 3000))
        assert told.returncode != 0 and b"the deadline stays as it was" in told.stderr, told
        assert box.deadline() == at and box.timers() == before, (box.deadline(), at, box.timers())
        words = [line for line in told.stderr.decode().splitlines() if "resolve host" not in line]
        return f"refused: {' | '.join(words)}"


def hung_poweroff_is_forced(bench: Bench) -> str:
    """A unit that never stops holds up the shutdown; force ends it."""
    with bench.box("hung", boot_s=75) as box:
        box.until_reachable()
        unit = box.root / "etc/systemd/system/hang.service"
        unit.write_text(HANG)
        box.root_run("systemctl", "daemon-reload")
        box.root_run("systemctl", "start", "hang.service")
        assert box.root_run("systemctl", "is-active", "hang.service").strip() == "active"
        late_s = box.until_off(75 + FORCE_S + LATE_S) - (box.began + 75)
        assert FORCE_S - 2 <= late_s < FORCE_S + LATE_S, f"off {late_s:.1f} s after the deadline"
        return f"held up by a unit, forced {late_s:.1f} s after the deadline (patience {FORCE_S} s)"


def lost_timer(bench: Bench) -> str:
    """The watch needs no timer: stopped, with every unit of the kind, it ends the machine all the same."""
    with bench.box("lost", boot_s=75) as box:
        box.until(lambda: box.timers() != [] and box.watches(), "timer and watch are there")
        box.root_run("systemctl", "stop", "cloudtrain-deadline-*.timer")
        assert box.timers() == []
        work = box.root_run("sh", "-c", "while sleep 5; do date >/run/cloudtrain/work; done >/dev/null 2>&1 &")
        late_s = box.until_off(75 + LATE_S) - (box.began + 75)
        assert 0 <= late_s < LATE_S, f"off {late_s:.1f} s after the deadline{work}"
        return f"its timer was stopped, off {late_s:.1f} s after the deadline"


def never_started(bench: Bench) -> str:
    """No agent comes; the deadline is days away."""
    with bench.box("never", boot_s=FAR_S) as box:
        box.until(box.watches, "the watch is kept")
        began = time.time()
        took_s = box.until_off(userdata.STILL_CHECKS * QUICK_S + 20 + LATE_S) - began
        return f"off {took_s:.1f} s after the watch began ({userdata.STILL_CHECKS} rounds of {QUICK_S} s)"


def killed_agent_comes_back_and_a_frozen_one_ends_it(bench: Bench) -> str:
    """A machine whose agent lives stays; SIGKILL brings another; one that stands still ends the machine."""
    window_s = userdata.STILL_CHECKS * QUICK_S
    with bench.box("dead", boot_s=FAR_S) as box:
        box.until_reachable()
        box.ship("sleep 100000")
        box.until(lambda: _phase(box) == "running", "the job runs")
        box.stays_on(1.5 * window_s, "its job runs")
        first = box.agent_pid()
        box.root_run("kill", "-KILL", first)
        box.until(lambda: box.agent_pid() not in ("", "0", first) and _phase(box) == "running", "another agent")
        box.stays_on(1.2 * window_s, "its job runs again")
        box.root_run("kill", f"-{signal.SIGSTOP.value}", box.agent_pid())
        frozen = time.time()
        took_s = box.until_off(window_s + 120 + LATE_S) - frozen
        return f"on for {2.7 * window_s:.0f} s of quiet work, off {took_s:.1f} s after its agent froze"


def notice_does_not_trigger_it(bench: Bench) -> str:
    """EC2 announces an interruption: the job saves, and the machine waits to be taken."""
    with bench.box("notice", boot_s=FAR_S) as box:
        box.until_reachable()
        box.ship('trap "exit 0" TERM; sleep 100000 & wait')
        box.until(lambda: _phase(box) == "running", "the job runs")
        box.notice(20)
        box.until(lambda: _phase(box) == "stopped", "it has saved", 60)
        box.stays_on(80, "of a notice")
        return "saved and stopped, still on 80 s later, to be taken by EC2"


def done(bench: Bench) -> str:
    """The job ends: everything is in the bucket, then the machine goes, though the deadline is days away."""
    with bench.box("done", boot_s=FAR_S) as box:
        box.until_reachable()
        extended = box.ssh(extend_command(time.time() + FAR_S))
        assert extended.returncode == 0, extended.stderr
        box.ship(f'id -un; test "$(id -un)" = {USER}; echo x > $CLOUDTRAIN_OUTPUT_DIR/x; sleep 3')
        began = time.time()
        took_s = box.until_off(90) - began
        status = box.status()
        assert status is not None and status.phase == "done", status
        return f"off {took_s:.1f} s after a job of 3 s was sent"


def changes_its_host_key_by_socket(bench: Bench) -> str:
    """Where systemd listens for sshd, as on Ubuntu 24.04, it serves with the machine's own key at once."""
    with bench.box("by-socket", boot_s=900, by_socket=True) as box:
        box.until_reachable()
        assert box.root_run("systemctl", "is-active", "ssh.socket").strip() == "active"
        own = offered(box.ssh(offer_command()).stdout.decode())
        began = time.monotonic()
        changed = box.ssh(change_command(own))
        assert changed.returncode == 0, changed.stderr.decode()
        box.pin(own)
        served = box.ssh("true")
        assert served.returncode == 0, served.stderr.decode()
        assert box.root_run("systemctl", "is-active", "ssh.service").strip() == "active"
        return f"served with its own key {time.monotonic() - began:.1f} s after it was told to"


# The longest first. Each with the seconds between two rounds of its watch.
SCENARIOS: dict[Callable[[Bench], str], int] = {
    killed_agent_comes_back_and_a_frozen_one_ends_it: QUICK_S,
    notice_does_not_trigger_it: QUICK_S,
    extends: NEVER_S,
    survives_reboot: NEVER_S,
    hung_poweroff_is_forced: NEVER_S,
    lost_timer: QUICK_S,
    fires: NEVER_S,
    never_started: QUICK_S,
    done: QUICK_S,
    changes_its_host_key_by_socket: NEVER_S,
    full_disk_keeps_deadline: NEVER_S,
}


def _phase(box: Box) -> str | None:
    status = box.status()
    return status.phase if status is not None else None
