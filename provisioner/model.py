"""The words of the provisioner: jobs, attempts, machines, and what was seen of them. Frozen values, no I/O.

Times are Unix seconds (UTC), named ``_at``; durations end in ``_s``. Everything here encodes with msgspec.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from cloudtrain.pricing.model import Offering, Pool, Rates
from cloudtrain.provisioner.names import CONTROL
from cloudtrain.provisioner.spec import AWS_DEFAULTS, AwsOptions, JobSpec
from cloudtrain.trainer.contract import AgentStatus, Mount


class JobStatus(StrEnum):
    """What ``ls`` shows."""

    PENDING = "PENDING"
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the job by itself."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)

    @property
    def resting(self) -> bool:
        """Whether nothing happens to it until somebody says so: final, or stopped and resumable."""
        return self.final or self is JobStatus.STOPPED


class Phase(StrEnum):
    """Where an attempt stands."""

    CLAIMED = "claimed"  # durable intent; a machine may or may not exist yet
    BOOTING = "booting"  # the instance id is known; not yet reachable
    WORKING = "working"  # the agent was started
    ENDING = "ending"  # terminate is repeated until the machine is seen gone
    ENDED = "ended"


class EndReason(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    JOB_FAILED = "job-failed"
    INTERRUPTED = "interrupted"  # EC2 took the spot machine
    MACHINE_LOST = "machine-lost"  # the machine went away for another reason
    NO_CAPACITY = "no-capacity"  # the launch was refused; nothing ran
    QUOTA = "quota"  # the launch was refused by a service quota; nothing ran
    DENIED = "denied"  # the region is off for the account, or the caller may not use it; nothing ran
    BOOT_TIMEOUT = "boot-timeout"
    AGENT_LOST = "agent-lost"  # the machine lives, the agent does not answer
    MACHINE_UNFIT = "machine-unfit"  # the agent's machine check failed
    IMAGE_UNFIT = "image-unfit"  # it failed on something that every machine of that image has, or lacks
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # the person stopped it; `resume` goes on
    MAX_RUN = "max-run"
    BUDGET = "budget"  # its money is spent, or the rest pays for nothing that would get it on
    TOO_DEAR = "too-dear"  # the pool's price rose above max_hourly_cost: saved, and on to another pool
    PREEMPTIONS = "preemptions"  # EC2 took its machines more often than recovery.max_preemptions allows
    CLOUD_LOST = "cloud-lost"  # the embedded cloud died
    REFUSED = "refused"  # credentials, permission, quota or the request itself: no other pool would help
    FENCED = "fenced"  # a newer generation exists: it gave up by itself


class MachineState(StrEnum):
    """EC2's instance states."""

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a machine's SSH server listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PricePoint:
    """The pool's price from ``at`` on, in USD per machine and hour."""

    at: float
    usd_per_hour: Decimal


@dataclass(frozen=True, slots=True)
class Attempt:
    """One lease of a machine for a job: one pool, one client token, one generation."""

    generation: int
    pool: Pool
    client_token: str
    phase: Phase
    claimed_at: float
    prices: tuple[PricePoint, ...] = ()  # what was paid, from when; first entry: the price at launch
    image_id: str | None = None  # this and the next three: the image as it was found, pinned
    root_device: str | None = None
    root_gib: int | None = None  # the least that its root volume may have
    login_user: str | None = None
    launch_asked_at: float | None = None  # RunInstances was called, or is about to be
    unknown_launches: int = 0  # how often the launch had no answer
    retry_at: float | None = None  # it is not asked again before
    given_up: EndReason | None = None  # it is not asked again at all; a machine that it may have made is looked for
    instance_id: str | None = None
    spot_request_id: str | None = None
    launched_at: float | None = None  # its machine was made: volume and address are paid from here on
    running_at: float | None = None  # first seen running: billing starts
    started_at: float | None = None  # the agent was started
    unseen_since: float | None = None  # the cloud's list has lacked the machine from here on
    notice_at: float | None = None  # when we learnt of the interruption
    handed_over: bool = False  # final checkpoint durable after a notice: the next generation may launch
    leave: EndReason | None = None  # it is to save and go for this reason; the job goes on, or ends with it
    admitted_at: float | None = None  # our address was admitted again, for want of an answer
    restarted_at: float | None = None  # its agent stood still and was started again
    saving_since: float | None = None  # its run has ended, and it brings what it has to the bucket
    stop_asked_at: float | None = None  # we began to ask the agent to save and stop
    stop_heard_at: float | None = None  # the request lies on the machine
    ending_at: float | None = None  # terminate was first asked
    ended_at: float | None = None  # first seen shutting down or gone: billing ends
    gone_at: float | None = None  # nothing of its machine is left: its volume is paid until here
    end_reason: EndReason | None = None
    end_detail: str | None = None  # the cloud's or the agent's own words, one line
    ended_by_cloud: bool = False  # EC2 took it (decides the free first hour)
    start_step: int | None = None  # the step it resumed from; None while its agent has not said
    last_step: int = 0
    durable_step: int | None = None
    run_seconds: float = 0.0
    restore_s: float | None = None  # what its machine took to get data and checkpoint; None while it has not
    mounted_bytes: int = 0  # of file_mounts, what its machine has fetched
    received_bytes: int = 0  # from the job's bucket beside them: the checkpoint
    sent_bytes: int = 0  # to the job's bucket: checkpoints, outputs, logs


@dataclass(frozen=True, slots=True)
class Avoid:
    """A pool that is not tried again before ``until_at``, and why."""

    pool: Pool
    until_at: float
    why: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's record: the object beside its checkpoints, changed by compare-and-set; SQLite holds a working copy."""

    job_id: str
    spec: JobSpec
    owner: str
    results: str  # the folder on the launching computer that results come home to
    driver: str  # the id of the CLOUDTRAIN_HOME whose controller drives this job
    cloud: str  # "aws" | "local"
    cloud_id: str | None  # the embedded cloud's id; None on AWS
    bucket: str
    region: str  # of the bucket
    offerings: tuple[Offering, ...]  # the plan as it was confirmed, cheapest first
    created_at: float
    snapshot_sha256: str | None = None
    mounts: tuple[Mount, ...] = ()  # what file_mounts were at launch: the same for every attempt
    snapshot_kept: bool = False  # in the bucket too, so that another computer can take the job over
    status: JobStatus = JobStatus.PENDING
    revision: int = 0
    generation: int = 0
    attempts: tuple[Attempt, ...] = ()
    avoid: tuple[Avoid, ...] = ()
    failures: int = 0
    preemptions: int = 0
    late_at: float | None = None  # its deadline was seen to have passed; it goes on
    outcome: EndReason | None = None  # set once the job needs no further attempt
    detail: str | None = None  # one line for the person
    collected: bool = False  # results and logs are home
    collect_trouble: str | None = None  # why they are not, in one line
    closing_tries: int = 0  # how often bringing home or sweeping did not work
    swept: bool = False  # group, keys: nothing of the job is left in the cloud
    finished_at: float | None = None
    let_go_at: float | None = None  # in an old copy alone: another computer drives the job since, and knows the rest
    total_steps: int | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    on_demand_usd_per_hour: Decimal | None = None  # the cheapest on-demand price that fits, at launch
    rates: tuple[Rates, ...] = ()  # what each region of the job charges beside machines, as it was at launch
    home_bytes: int = 0  # of results, what has been brought home over the internet

    @property
    def regions(self) -> tuple[str, ...]:
        """Where something of the job may be: an attempt makes nothing before it has found its image. A region that
        refused even that would refuse to be looked at, too."""
        return tuple(sorted({a.pool.region for a in self.attempts if a.image_id is not None}))

    @property
    def prefix(self) -> str:
        """Where the job's objects lie in its bucket."""
        return f"jobs/{self.job_id}"

    @property
    def control(self) -> str:
        """Where the record, the snapshot and the SSH keys lie in its bucket: a machine's role has no right there."""
        return f"{CONTROL}{self.job_id}"


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance as the cloud shows it now."""

    instance_id: str
    job_id: str
    generation: int
    client_token: str
    state: MachineState
    launched_at: float
    endpoint: Endpoint | None = None  # where everybody reaches it
    private: Endpoint | None = None  # where its own network reaches it
    state_reason: str | None = None  # e.g. "Server.SpotInstanceTermination"
    state_message: str | None = None
    spot_request_id: str | None = None
    spot_status: str | None = None  # e.g. "fulfilled", "instance-terminated-no-capacity"

    @property
    def addressed(self) -> bool:
        """Whether it has an address; which of them is used depends on the job."""
        return self.endpoint is not None or self.private is not None

    @property
    def gone(self) -> bool:
        """Terminated, as the cloud itself says."""
        return self.state is MachineState.TERMINATED

    @property
    def taken_by_cloud(self) -> bool:
        """EC2 ended it, or has said that it will within two minutes (UG spot-request-status, note on closed; by an
        experiment: AWS FIS, with which an interruption is tried out; read 2026-11)."""
        by_cloud = {
            "instance-terminated-by-experiment",
            "instance-terminated-no-capacity",
            "instance-terminated-by-price",
            "instance-terminated-by-service",
            "marked-for-termination",
        }
        return self.state_reason == "Server.SpotInstanceTermination" or self.spot_status in by_cloud


@dataclass(frozen=True, slots=True)
class Observed:
    """What one pass saw. ``machines`` is None when the cloud could not be asked: then nothing is concluded."""

    machines: tuple[Machine, ...] | None
    reports: tuple[AgentStatus, ...] = ()  # the newest of each generation, over SSH or from the bucket
    silent_s: tuple[tuple[int, float], ...] = ()  # generation, seconds that its status was read and did not change
    unanswered_s: tuple[tuple[int, float], ...] = ()  # generation, seconds without an answer over SSH
    unreachable_s: tuple[tuple[int, float], ...] = ()  # generation, seconds without an answer over SSH or a beat
    words_unknown: tuple[int, ...] = ()  # generations whose last words could not be looked up in the bucket
    looked_at: float | None = None  # when this controller last looked before; None: it has not
    wanted: str = "run"  # "run" | "stop" | "cancel"
    cloud_gone: bool = False

    def machine(self, attempt: Attempt) -> Machine | None:
        """The attempt's own machine where its id is known, else the oldest of its generation that is not gone."""
        mine = [m for m in self.machines or () if m.generation == attempt.generation]
        mine.sort(key=lambda m: (m.instance_id != attempt.instance_id, m.gone, m.launched_at, m.instance_id))
        if attempt.instance_id is not None:
            mine = [m for m in mine if m.instance_id == attempt.instance_id]
        return mine[0] if mine else None

    def report(self, generation: int) -> AgentStatus | None:
        """What the agent of a generation last said."""
        return next((r for r in self.reports if r.generation == generation), None)


@dataclass(frozen=True, slots=True)
class Image:
    """What a machine boots and how to live in it: a row of the reviewed table, or the user's own image."""

    ssm_parameter: str  # names the AMI; "" where ``own_id`` does
    login_user: str  # "" where only the image's name can tell
    root_device: str
    root_gib: int  # the least that we give its root volume
    architecture: str
    venv: str | None  # the virtual environment that holds its Python and torch; looked for, not relied upon
    scratch: str | None  # where its fastest local disk is mounted, on types that have one
    agent_brings_boto3: bool  # ship our pure-Python boto3 beside the agent
    own_id: str | None = None  # the user's own image (resources.aws.image_id)


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image as the cloud shows it in one region."""

    image_id: str
    name: str
    root_device: str
    root_gib: int  # of its root snapshot: a smaller volume is refused
    architecture: str
    login_user: str  # the row's, or what the name tells


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything RunInstances needs, resolved. The same request with the same token is the same machine."""

    job_id: str
    owner: str
    attempt: Attempt
    image: Image
    image_id: str
    disk_gib: int
    user_data: str
    instance_profile: str
    options: AwsOptions = AWS_DEFAULTS
    bucket: str = ""  # where the job's record is
