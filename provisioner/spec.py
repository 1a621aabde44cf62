"""What a person asks for: a job file, read and checked. Frozen values, no I/O. Everything here encodes with msgspec.

Durations end in ``_s``: seconds. Money is USD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Interval:
    """How often a checkpoint is due: every so many seconds, or every so many steps. Exactly one is set."""

    seconds: float | None = None
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.steps}steps" if self.steps is not None else f"{self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class Resources:
    """One machine that would do: what picks its pools. ``accelerators`` keeps the grammar's text ("T4:1")."""

    accelerators: str | None = None
    use_spot: bool = False
    infra: tuple[str, ...] = ()  # "aws/us-east-1"; empty: everywhere
    instance_type: str | None = None
    cpus: str | None = None  # "8" exactly, "8+" at least
    memory: str | None = None  # GiB, same form
    max_hourly_cost_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """``resources.aws``: how the machine is made and reached, whichever pool gives it."""

    image_id: str | None = None  # the user's own image, instead of the reviewed table's
    ssh_user: str | None = None  # who logs in there
    subnet_ids: tuple[str, ...] = ()  # empty: the default VPC's subnets
    public_ip: bool = True
    ssh_proxy: str | None = None  # "USER@BASTION[:PORT]" | "ssm" | "instance-connect"; None: straight to the machine
    iam_instance_profile: str | None = None  # instead of the one that `setup` makes
    volume_throughput: int | None = None  # MiB/s of the gp3 root volume
    kms_key: str | None = None  # of the root volume: a key's ARN, or "alias/NAME", which each region has; None: default


AWS_DEFAULTS = AwsOptions()


@dataclass(frozen=True, slots=True)
class Recovery:
    """``recovery``: how often a job is picked up again. Machines that break are neither: see ``decide.limits``."""

    max_failures: int = 0  # how often a run that failed by itself starts again from its last checkpoint
    max_preemptions: int | None = None  # None: unlimited; an interruption never counts as a failure


@dataclass(frozen=True, slots=True)
class FileMount:
    """Data that must lie at ``target`` on the machine. ``source``: "s3://bucket/prefix", or an absolute local path."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job file, checked.

    ``resources`` holds at least one alternative: any of them, or, where ``resources_ordered``, the first wanted most.
    """

    name: str
    run: str
    resources: tuple[Resources, ...]
    resources_ordered: bool = False
    disk_size_gib: int | None = None
    aws: AwsOptions = AwsOptions()
    workdir: str | None = None  # absolute
    file_mounts: tuple[FileMount, ...] = ()
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # names alone; the values never enter a record
    setup: str | None = None
    checkpoint_interval: Interval = field(default_factory=lambda: Interval(seconds=600))
    checkpoint_keep: int = 3
    deadline_s: float | None = None  # from the launch on
    budget_usd: Decimal | None = None  # for all attempts together
    max_run_s: float | None = None  # paid machine time, all attempts together
    max_wait_s: float | None = None  # without a machine, each time; None: 0 at launch, a day in recovery
    recovery: Recovery = Recovery()
