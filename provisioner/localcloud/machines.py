"""The life of the embedded cloud's machines: boot, notice, end. The only place that starts and ends hosts."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.localcloud.hostpython import IMAGES
from cloudtrain.provisioner.localcloud.hosts import Host, HostSpec, start_host
from cloudtrain.provisioner.localcloud.state import (
    PENDING,
    RUNNING,
    SHUTTING_DOWN,
    TERMINATED,
    Interrupt,
    Life,
    LocalState,
    user_data_text,
)
from cloudtrain.provisioner.names import TAG_LOCAL_SSH

if TYPE_CHECKING:
    from cloudtrain.provisioner.localcloud.bastion import Bastion

log = logging.getLogger(__name__)

POLL_S = 0.05
GRACE_S = 1.0
"""From SIGTERM to SIGKILL when a machine ends; the guest's own shutdown is as short on an interruption."""

TAKEN = ("Server.SpotInstanceTermination", "Spot instance termination")
BY_USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
BY_ITSELF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
LOST = ("Server.InternalError", "Internal error")
NO_LAUNCH = ("Server.InternalError", "Internal error on launch")
"""StateReason codes and texts (API_StateReason, 2026-11)."""

_NO_CAPACITY = (
    "instance-terminated-no-capacity",
    "Your Spot Instance was terminated because there is no longer enough capacity in the requested zone.",
)
_SPOT_ENDS = {
    TAKEN[0]: _NO_CAPACITY,
    LOST[0]: ("instance-terminated-by-service", "Your Spot Instance was terminated because of a failure of its host."),
    "Client.InternalError": ("bad-parameters", "A parameter of your Spot request is not valid."),
}
_SPOT_ENDED_BY_USER = (
    "instance-terminated-by-user",
    "Your Spot Instance was terminated from the console or by the API, or shut itself down.",
)
"""Status codes by StateReason code (User Guide, spot-request-status, 2026-11; the one for a bad key is a guess)."""
Starter = Callable[[str, HostSpec], Host]


class Machines:
    """Starts and ends the hosts behind ``state.lives``. Every method may be called from any thread."""

    def __init__(self, state: LocalState, start: Starter = start_host) -> None:
        self.state = state
        self._start = start
        self._monitor = threading.Thread(target=self._watch, name="monitor", daemon=True)
        self.bastion: Bastion | None = None  # of namespace hosts; there once ``start`` has returned

    def start(self) -> None:
        """Begin to watch hosts and requests. Raises CloudtrainError where namespace hosts can't be had."""
        if self.state.options.hosts == "netns":
            self.bastion = _bastion(self.state)
        self._monitor.start()

    def warm(self) -> None:
        """Load what the first host needs, so that it is not slow."""
        if self._start is start_host and self.state.options.hosts == "embedded":
            importlib.import_module("cloudtrain.provisioner.localcloud.host_embedded")

    def close(self) -> None:
        """End every host at once, and the watch."""
        self.state.stop.set()
        self.state.wake.set()
        with self.state.lock:
            lives = list(self.state.lives.values())
            for life in lives:
                life.ending.set()
        if self._monitor.is_alive() and self._monitor is not threading.current_thread():
            self._monitor.join()
        for life in lives:
            life.booted.wait(10)
            if life.host is not None:
                life.host.kill(grace_s=0)
        if self.bastion is not None:
            self.bastion.close()

    def born(self, life: Life) -> None:
        """Take a new instance in (under the lock), and boot it."""
        life.show(PENDING)
        self.state.lives[life.instance_id] = life
        threading.Thread(target=self._boot, args=(life,), name=f"boot {life.instance_id}", daemon=True).start()
        self.state.wake.set()

    def announce(self, life: Life, notice_s: float) -> None:
        """EC2 takes a spot machine back: the notice and the request's status at once, the end after ``notice_s``."""
        with self.state.lock:
            if not life.live or life.taken_at is not None:
                return
            now = self.state.clock()
            life.taken_at = now + notice_s
            if life.spot is not None:
                life.spot.close(*_NO_CAPACITY, now)
        self.state.wake.set()
        log.info("%s: interruption notice, %g s", life.instance_id, notice_s)

    def end(self, life: Life, reason: tuple[str, str], *, grace_s: float = GRACE_S) -> None:
        """Begin a machine's end: shutting-down now, terminated once nothing of its host runs. Repeatable."""
        with self.state.lock:
            if life.state in (SHUTTING_DOWN, TERMINATED):
                return
            code, text = reason
            now = self.state.clock()
            life.show(SHUTTING_DOWN)
            life.machine.state_reason = SimpleNamespace(code=code, message=f"{code}: {text}")
            if life.spot is not None:
                life.spot.close(*_SPOT_ENDS.get(code, _SPOT_ENDED_BY_USER), now)
            life.ending.set()
        log.info("%s: shutting down, %s", life.instance_id, code)
        threading.Thread(
            target=self._finish, args=(life, reason, grace_s), name=f"end {life.instance_id}", daemon=True
        ).start()

    def request(self, interrupt: Interrupt) -> bool:
        """Keep an interruption until it can happen; whether the job has a machine now. Raises LookupError."""
        with self.state.lock:
            found = self.state.of_job(interrupt.job)
            if found and interrupt.notice_s and found[0].spot is None:
                raise LookupError(_NOT_SPOT.format(job=interrupt.job))
            self.state.interrupts.append(interrupt)
        self.state.wake.set()
        return bool(found)

    def _boot(self, life: Life) -> None:
        host: Host | None = None
        failure = life.doom
        try:
            if not life.ending.wait(self.state.options.boot_s) and failure is None:
                host = self._start(self.state.options.hosts, self._spec(life))
        except (CloudtrainError, OSError, ValueError) as error:
            log.error("%s: its host did not start: %s", life.instance_id, error)
            failure = (NO_LAUNCH[0], f"{NO_LAUNCH[1]}: {error}")
        finally:
            with self.state.lock:
                life.host = host
                if host is not None:
                    life.console = host.console
                    if life.state == PENDING:
                        self._show_running(life, host)
            life.booted.set()
        if failure is not None:
            self.end(life, failure)

    def _show_running(self, life: Life, host: Host) -> None:
        address, port = host.endpoint
        if self.bastion is None:
            life.machine.add_tags({TAG_LOCAL_SSH: f"{address}:{port}"})
        for interface in life.machine.nics.values():
            if self.bastion is not None:  # found as on EC2, by its private address; it has no other
                interface.public_ip = None
                interface.private_ip_address = address
                interface.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
            elif interface.public_ip:
                interface.public_ip = address
        life.show(RUNNING)
        log.info("%s: running at %s:%d", life.instance_id, address, port)

    def _spec(self, life: Life) -> HostSpec:
        base = self.state.endpoint_url
        env = {
            "AWS_ENDPOINT_URL": base,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{base}/imds/{life.instance_id}/",
            "AWS_DEFAULT_REGION": life.region,
        }
        kind = life.machine.instance_type
        gpus = next((o.instance.accelerator_count for o in self.state.offerings if o.instance.name == kind), 0)
        root = self.state.home / "hosts" / life.instance_id
        network = self.bastion.network(urlsplit(base).port or 0) if self.bastion is not None else None
        user_data = user_data_text(life.machine.user_data)
        python = IMAGES.get(life.machine.image_id, "")
        return HostSpec(life.instance_id, self.state.id, root, user_data, env, gpus, network, python)

    def _finish(self, life: Life, reason: tuple[str, str], grace_s: float) -> None:
        life.booted.wait()
        try:
            if life.host is not None:
                life.host.kill(grace_s=grace_s)
        except Exception:
            log.exception("%s: its host did not end cleanly", life.instance_id)
        with self.state.lock:
            life.machine.terminate()  # moto's own: volumes and interfaces go, and it names the user as the cause
            life.show(TERMINATED)
            code, text = reason
            life.machine.state_reason = SimpleNamespace(code=code, message=f"{code}: {text}")
            life.machine._reason = f"{code}: {text}"
            life.ended_at = self.state.clock()
        log.info("%s: terminated", life.instance_id)

    def _watch(self) -> None:
        while not self.state.stop.is_set():
            with self.state.lock:
                live = [life for life in self.state.lives.values() if life.live]
                waiting = [i for i in self.state.interrupts if i.refused is None]
            try:
                for life in live:
                    self._look(life)
                for interrupt in waiting:
                    self._try(interrupt)
            except Exception:
                log.exception("the watch stumbled, and goes on")
            if live or waiting:
                self.state.stop.wait(POLL_S)
            else:
                self.state.wake.wait(1.0)
                self.state.wake.clear()

    def _look(self, life: Life) -> None:
        if life.taken_at is not None and self.state.clock() >= life.taken_at:
            self.end(life, TAKEN)
        elif life.host is not None and life.host.poweroff_requested():
            if life.machine.instance_initiated_shutdown_behavior == "terminate":
                self.end(life, BY_ITSELF)
            else:
                self._halt(life)

    def _halt(self, life: Life) -> None:
        """What a power-off does where InstanceInitiatedShutdownBehavior was left at "stop": the volumes live on."""
        with self.state.lock:
            if not life.live or life.host is None:
                return
            life.show("stopping")
            life.machine.state_reason = SimpleNamespace(code=BY_ITSELF[0], message=": ".join(BY_ITSELF))
            host = life.host
        host.kill(grace_s=GRACE_S)
        with self.state.lock:
            life.show("stopped")

    def _try(self, interrupt: Interrupt) -> None:
        try:
            with self.state.lock:
                found = self.state.of_job(interrupt.job)
        except LookupError as error:
            interrupt.refused = str(error)
            return
        ready = [life for life in found if life.taken_at is None and life.host is not None]
        if interrupt.at_step is not None:
            ready = [life for life in ready if _reached(life, interrupt.at_step)]
        if not ready:
            return
        if interrupt.notice_s and any(life.spot is None for life in ready):
            interrupt.refused = _NOT_SPOT.format(job=interrupt.job)
            return
        for life in ready:
            self._interrupt(life, interrupt)
        with self.state.lock:
            self.state.interrupts.remove(interrupt)

    def _interrupt(self, life: Life, interrupt: Interrupt) -> None:
        if interrupt.rebalance:
            life.rebalance_at = self.state.clock()
        if interrupt.notice_s:
            self.announce(life, interrupt.notice_s)
        elif interrupt.notice_s is not None:
            self.end(life, TAKEN if life.spot is not None else LOST, grace_s=0)


def _bastion(state: LocalState) -> Bastion:
    from cloudtrain.provisioner.localcloud.bastion import Bastion  # noqa: PLC0415 - for namespace hosts alone
    from cloudtrain.provisioner.localcloud.host_sshd import find_sshd  # noqa: PLC0415

    sshd = find_sshd()
    if sshd is None:
        raise CloudtrainError("namespace hosts need sshd: install openssh-server")
    return Bastion(state.home / "bastion", state.id, sshd)


_NOT_SPOT = "{job} runs on demand, which EC2 never takes back: use --notice 0s for a machine that is lost"


def _reached(life: Life, step: int) -> bool:
    now = life.host.step() if life.host is not None else None
    return now is not None and now >= step
