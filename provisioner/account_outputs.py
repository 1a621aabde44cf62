"""The JSON of commands that look at an account or a local cloud, as types. The rules are those of ``outputs.py``."""

from __future__ import annotations

from typing import Literal, TypedDict

from cloudtrain.provisioner.model import JobStatus


class Found(TypedDict):
    """What one check of ``doctor`` says about one place; ``fix`` is empty where all is well."""

    check: str
    level: str  # "ok" | "warn" | "fail"
    where: str
    what: str
    fix: str


class Checked(TypedDict):
    """``doctor``."""

    schema_version: Literal[1]
    cloud: str
    regions: list[str]
    findings: list[Found]


class Kept(TypedDict):
    """A job in the account's bucket. ``here``: this computer drives it."""

    job: str
    name: str
    status: JobStatus
    here: bool
    started: str


class InBucket(TypedDict):
    """``adopt`` without a JOB."""

    schema_version: Literal[1]
    bucket: str
    jobs: list[Kept]


class Leftover(TypedDict):
    """Something that jobs left. ``end``: no live job owns it; ``left``: why it is still there, where it was to end."""

    id: str
    kind: str
    what: str
    region: str
    job: str | None
    usd_per_hour: float | None
    end: bool
    why: str
    left: str | None


class StaleData(TypedDict):
    """A job's objects in a bucket. ``end``: they may go."""

    bucket: str
    job: str
    objects: int
    bytes: int
    usd_per_month: float | None
    end: bool
    why: str


class Cleared(TypedDict):
    """``gc``: as it was found. What it costs counts the things that are to end."""

    schema_version: Literal[1]
    cloud: str
    simulated_prices: bool
    dry_run: bool
    things: list[Leftover]
    usd_per_hour: float
    usd_per_month: float
    data: list[StaleData]
    unused_files: int
    unused_bytes: int
    troubles: list[str]


class LocalMachine(TypedDict):
    """A machine of the local cloud. ``taken_in_s``: seconds until it is taken away, where that is decided."""

    instance_id: str
    job: str | None
    instance_type: str
    zone_id: str
    capacity_type: str
    state: str
    state_reason: str | None
    step: int | None
    taken_in_s: float | None


class LocalInterrupt(TypedDict):
    """An interruption that was asked for and waits, or that the local cloud refused."""

    job: str
    at_step: int | None
    refused: str | None


class LocalFault(TypedDict):
    """An error that is injected into calls of the API. ``times`` is null for every time."""

    id: int
    action: str
    code: str
    match: dict[str, str]
    times: int | None
    met: int


class LocalPlanted(TypedDict):
    """A fault of the account that is planted; without a region it is in all."""

    name: str
    region: str | None


class LocalStatus(TypedDict):
    """``local status``."""

    schema_version: Literal[1]
    port: int
    pid: int
    hosts: str
    machines: list[LocalMachine]
    interrupts: list[LocalInterrupt]
    faults: list[LocalFault]
    planted: list[LocalPlanted]


class LocalFaults(TypedDict):
    """``local fault list``."""

    schema_version: Literal[1]
    faults: list[LocalFault]
