"""What the embedded cloud knows beyond moto: the life of each machine, its spot request, and what was asked for.

moto holds the resources (instances, volumes, groups, buckets); this holds time: when an instance is to be seen, when it
ends and why. All of it is in memory and dies with the daemon.
"""

from __future__ import annotations

import base64
import gzip
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloudtrain.pricing.model import Offering
from cloudtrain.provisioner.localcloud.faults import Faults
from cloudtrain.provisioner.localcloud.hosts import Host
from cloudtrain.provisioner.localcloud.market import Market
from cloudtrain.provisioner.localcloud.planted import Planted
from cloudtrain.provisioner.names import INSTANCE_PROFILE, TAG_JOB

ROLE = INSTANCE_PROFILE  # role and profile share one name
"""The role, and the instance profile, that exist from the start."""

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = "pending", "running", "shutting-down", "terminated"
STATE_CODES = {PENDING: 0, RUNNING: 16, SHUTTING_DOWN: 32, TERMINATED: 48, "stopping": 64, "stopped": 80}
"""EC2's instance states (API_InstanceState, 2026-11)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the cloud behaves. Durations in seconds."""

    hosts: str = "embedded"
    boot_s: float = 0.0
    hide_s: float = 0.2  # a new id is not found for so long (eventual consistency)
    keep_s: float = 3600.0  # a terminated instance stays listed for so long (DescribeInstances: "usually" one hour)
    idle_s: float = 1800.0  # without a live machine and a call for so long, the daemon leaves
    seed: int = 0
    account: str = "ready"  # as after `cloudtrain setup`; "empty": nothing of ours exists

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class SpotStatus:
    """A spot request's life (User Guide, spot-request-status, 2026-11)."""

    id: str
    state: str = "active"
    code: str = "fulfilled"
    message: str = "Your Spot request is fulfilled."
    created_at: float = 0.0
    updated_at: float = 0.0

    def close(self, code: str, message: str, at: float) -> None:
        """End it; the first cause stays."""
        if self.state in ("active", "cancelled") and not self.code.startswith("instance-terminated"):
            self.state, self.code, self.message, self.updated_at = "closed", code, message, at


@dataclass(slots=True)
class Life:
    """One instance, from its launch on. ``machine`` is moto's own object for it."""

    instance_id: str
    machine: Any
    region: str
    zone_id: str
    created_at: float
    visible_at: float
    spot: SpotStatus | None = None
    doom: tuple[str, str] | None = None  # the StateReason of a machine that can't boot
    host: Host | None = None
    console: str = ""
    rebalance_at: float | None = None
    taken_at: float | None = None  # when the interruption that was announced takes effect
    ended_at: float | None = None
    ending: threading.Event = field(default_factory=threading.Event)
    booted: threading.Event = field(default_factory=threading.Event)  # the boot is over, whatever came of it
    imds_tokens: dict[str, float] = field(default_factory=dict)  # token -> valid until

    @property
    def state(self) -> str:
        """EC2's name for where it stands."""
        return str(self.machine._state.name)

    @property
    def live(self) -> bool:
        """Neither on its way out nor gone."""
        return self.state in (PENDING, RUNNING)

    def tags(self) -> dict[str, str]:
        """Its tags."""
        return {tag["key"]: tag["value"] for tag in self.machine.get_tags()}

    def show(self, state: str) -> None:
        """Let DescribeInstances say so."""
        self.machine._state.name = state
        self.machine._state.code = STATE_CODES[state]


@dataclass(slots=True)
class Launched:
    """What one client token made."""

    fingerprint: str
    reservation: Any
    instance_ids: tuple[str, ...]


@dataclass(slots=True)
class Interrupt:
    """An interruption that somebody asked for. It waits for the job's machine, and for the step."""

    job: str
    at_step: int | None
    notice_s: float | None  # None: no interruption, only the rebalance recommendation
    rebalance: bool
    refused: str | None = None

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class LocalState:
    """The whole of it. ``lock`` guards every field, and moto's instances with them."""

    id: str
    home: Path
    options: Options
    offerings: tuple[Offering, ...]
    clock: Callable[[], float]
    endpoint_url: str = ""
    secret: str = ""  # whoever knows it may use the cloud; it is part of endpoint_url
    lock: threading.RLock = field(default_factory=threading.RLock)
    wake: threading.Event = field(default_factory=threading.Event)  # the monitor has something to look at
    stop: threading.Event = field(default_factory=threading.Event)  # the daemon is to leave
    lives: dict[str, Life] = field(default_factory=dict)
    launched: dict[tuple[str, str, str], Launched] = field(default_factory=dict)  # region, zone id or "", token
    interrupts: list[Interrupt] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    last_call_at: float = 0.0
    market: Market = field(init=False)
    planted: Planted = field(init=False)

    def __post_init__(self) -> None:
        gpu_types = frozenset(o.instance.name for o in self.offerings if o.instance.accelerator_count)
        self.planted = Planted(gpu_types)
        self.market = Market(self.offerings, seed=self.options.seed)
        self.last_call_at = self.clock()

    def visible(self, instance_id: str) -> bool:
        """Whether the API shows the instance now: not too new, not gone for too long."""
        life = self.lives.get(instance_id)
        if life is None:
            return True  # being made, under the lock
        now = self.clock()
        return now >= life.visible_at and (life.ended_at is None or now < life.ended_at + self.options.keep_s)

    def of_job(self, job: str) -> list[Life]:
        """The live machines that a word names: a job's id, a unique beginning of one, or a job's name.

        Raises LookupError where a beginning names two jobs.
        """
        jobs = [(life, life.tags().get(TAG_JOB, "")) for life in self.lives.values() if life.live]
        same = [life for life, job_id in jobs if job in (job_id, job_id.rpartition("-")[0])]  # NAME-abc123
        begins = {job_id for _, job_id in jobs if job_id.startswith(job)}
        if not same and len(begins) > 1:
            raise LookupError(f"{job!r} begins the ids of {len(begins)} jobs: {', '.join(sorted(begins))}")
        return same or [life for life, job_id in jobs if job_id in begins]


def moment(at: float) -> datetime:
    """A Unix time as the API's objects want it."""
    return datetime.fromtimestamp(at, UTC)


def stamp(at: float) -> str:
    """A Unix time as the metadata service writes it: 2026-11-30T08:42:30Z."""
    return moment(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def user_data_text(user_data: Any) -> str:
    """The user data as cloud-init reads it: from base64, gzip undone. "" where there is none."""
    if user_data is None:
        return ""
    raw = base64.b64decode(str(user_data))
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return raw.decode(errors="replace")
