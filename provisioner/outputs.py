"""The JSON that commands print, as types: what ``docs/schemas`` is made from, and what ``mypy`` holds the code to.

Here of jobs, their plans and their money, and the table of all; of accounts and clouds: ``account_outputs.py``.

Times are ISO 8601 in UTC; ``first_step_at``, which is there to be measured with, is Unix seconds. Money is USD as a
number, durations are seconds, percentages 0 to 100. A value that is not known is null. Pure.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from cloudtrain.provisioner.account_outputs import Checked, Cleared, InBucket, LocalFaults, LocalStatus
from cloudtrain.provisioner.model import JobStatus

# One number for all outputs. It rises when a field goes away or changes what it means: `make docs` refuses to rewrite a
# schema under the old number. A new field is no reason.
SCHEMA_VERSION: Final = 1


class Listed(TypedDict):
    """A job of ``ls``; the names of its fields are fixed by the design."""

    job: str
    name: str
    status: JobStatus
    step: int | None
    total_steps: int | None
    attempt: int | None
    pool: str | None
    capacity_type: str | None
    usd: float
    usd_per_hour: float | None
    started: str


class Listing(TypedDict):
    """``ls``: the newest job first."""

    schema_version: Literal[1]
    jobs: list[Listed]


class Parts(TypedDict):
    """What a cost is made of: machine time, root volumes, public IPv4 addresses, data that crossed regions."""

    machine_usd: float
    volume_usd: float
    address_usd: float
    transfer_usd: float


class Try(Parts):
    """An attempt: one lease of one machine. ``free``: EC2 took it in its first hour, and ``machine_usd`` is 0."""

    pool: str
    capacity_type: str
    started: str | None
    ended: str | None
    end_reason: str | None
    end_detail: str | None
    seconds: float
    usd: float
    free: bool
    usd_per_hour: float
    start_step: int | None
    last_step: int
    lost_steps: int
    lost_steps_exact: bool
    restore_s: float | None


class Job(TypedDict):
    """A whole job: what ``launch`` and ``resume`` end with."""

    schema_version: Literal[1]
    job: str
    name: str
    status: JobStatus
    detail: str | None
    cloud: str
    simulated_prices: bool
    attempts: list[Try]
    steps: int
    total_steps: int | None
    lost_steps: int
    lost_steps_exact: bool
    interruptions: int
    metrics: dict[str, float]
    seconds: float
    usd: float
    home_usd: float
    usd_on_demand: float | None
    savings_pct: float | None
    started: str
    ended: str | None
    deadline: str | None
    late: bool  # past its deadline: it goes on, and ends with exit code 5
    results: str


class Shown(Job):
    """``show``: the whole job, and the moment."""

    phase: str | None
    step: int | None
    loss: float | None
    cpu_percent: float | None
    gpu_percent: float | None
    memory_percent: float | None
    durable_step: int | None
    mounted_bytes: int | None
    mount_bytes: int | None
    usd_per_hour: float | None
    left_s: float | None
    budget_left_usd: float | None  # of the budget; None: it has none
    max_run_left_s: float | None  # of max_run
    attempt: int | None
    pool: str | None
    capacity_type: str | None
    machine_id: str | None
    checks: list[str] | None
    trouble: str | None
    first_step_at: float | None


class Started(TypedDict):
    """``launch --detach`` and ``resume --detach``."""

    schema_version: Literal[1]
    job: str
    status: JobStatus


class Offered(TypedDict):
    """A pool of a plan, with its price and the price's date."""

    pool: str
    instance_type: str
    capacity_type: str
    accelerator: str
    accelerator_count: int
    usd_per_hour: float
    as_of: str


class LeftOut(TypedDict):
    """A machine type that is not in the plan, and why."""

    instance_type: str
    why: str
    reason: str


class SnapshotTaken(TypedDict):
    """What travels to the machine, and what stays behind."""

    files: int
    bytes: int
    omitted: list[str]


class Mounted(TypedDict):
    """Data that is brought to each machine: a target of ``file_mounts``. Zero files with a ``trouble``: not known."""

    target: str
    source: str
    files: int
    bytes: int
    omitted: list[str]
    region: str | None
    trouble: str | None


class DataCost(TypedDict):
    """What all of ``file_mounts`` are expected to cost: seconds and USD, of one machine where that is what moves."""

    restore_s: float | None
    upload_s: float
    transfer_usd: float | None
    transfer_usd_elsewhere: float | None
    storage_usd_per_month: float | None


class AtMost(TypedDict):
    """The worst that a job's limits allow; null where it has no such limit."""

    budget_usd: float | None
    max_run_s: float | None
    max_run_usd: float | None  # max_run on the dearest machine of the plan, at today's prices
    max_wait_s: float | None
    deadline_s: float | None


class Planned(TypedDict):
    """``plan`` and ``launch --dry-run``: ``offerings`` in the order in which they are tried."""

    schema_version: Literal[1]
    name: str
    cloud: str
    simulated_prices: bool
    offerings: list[Offered]
    dropped: list[LeftOut]
    usd_per_hour_on_demand: float | None
    snapshot: SnapshotTaken
    file_mounts: list[Mounted]
    data_cost: DataCost | None
    at_most: AtMost


class TryCost(Parts):
    """What an attempt cost. ``machine_usd``: ``charged_seconds`` at ``usd_per_hour``, or nothing where it was free."""

    attempt: int
    pool: str
    capacity_type: str
    started: str | None
    seconds: float
    charged_seconds: float
    usd_per_hour: float
    usd: float
    why: str


class JobCost(Parts):
    """What a job cost, and the same work on demand, which counts machines alone, as ``savings_pct`` does. ``home_usd``:
    ``home_bytes`` of results brought home over the internet. ``unpriced``: what is in no figure, and why; ``assumed``:
    regions whose volumes are counted at the dearest known rate, for want of their own."""

    job: str
    name: str
    status: JobStatus
    started: str
    simulated_prices: bool
    attempts: list[TryCost]
    seconds: float
    free_seconds: float
    usd: float
    home_usd: float
    home_bytes: int
    unpriced: list[str]
    assumed: list[str]
    usd_on_demand: float | None
    savings_pct: float | None


class TotalCost(Parts):
    """All jobs together. ``usd_on_demand`` and ``savings_pct`` count the jobs that succeeded and have a comparison."""

    jobs: int
    seconds: float
    free_seconds: float
    usd: float
    home_usd: float
    usd_on_demand: float | None
    savings_pct: float | None


class Costs(TypedDict):
    """``cost``: the newest job first."""

    schema_version: Literal[1]
    jobs: list[JobCost]
    total: TotalCost


class Configured(TypedDict):
    """A setting and where it comes from."""

    value: str | None
    origin: str


class Configuration(TypedDict):
    """``config show``."""

    schema_version: Literal[1]
    settings: dict[str, Configured]


class EndedJob(TypedDict):
    """A job that ``stop`` or ``down`` was asked to end. ``done``: it is over, and nothing of it runs."""

    job: str
    status: JobStatus
    done: bool
    machines: int
    usd: float


class Ended(TypedDict):
    """``stop`` and ``down``."""

    schema_version: Literal[1]
    jobs: list[EndedJob]


# Each command with `-o json`, and what it prints then.
OUTPUTS: Final[dict[str, tuple[type, ...]]] = {
    "launch": (Job, Started, Planned),
    "plan": (Planned,),
    "ls": (Listing,),
    "show": (Shown,),
    "stop": (Ended,),
    "resume": (Job, Started),
    "down": (Ended,),
    "adopt": (Started, InBucket, Ended),
    "gc": (Cleared,),
    "cost": (Costs,),
    "doctor": (Checked,),
    "local status": (LocalStatus,),
    "local fault list": (LocalFaults,),
    "config show": (Configuration,),
}
