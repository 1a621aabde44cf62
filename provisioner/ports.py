"""The ports: every effect goes through one of these. Each has one adapter and one fake; Cloud and ObjectStore also have
a contract suite that runs on both (tests/contract).

Each docstring says how long a call may block and whether it may be repeated. All raise the errors of
``provisioner.errors`` and no library's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Protocol

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.history import Fact
from cloudtrain.provisioner.model import Endpoint, FoundImage, Image, JobRecord, JobStatus, LaunchRequest, Machine
from cloudtrain.provisioner.spec import AWS_DEFAULTS, AwsOptions
from cloudtrain.provisioner.things import StoredObject, Thing


class Clock(Protocol):
    """Time. The only thing that sleeps."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Cloud(Protocol):
    """EC2, for one account. Every call blocks at most 60 s. Calls take effect in the pool's or job's regions."""

    def prepare(self, job_id: str, owner: str, regions: Iterable[str], options: AwsOptions = AWS_DEFAULTS) -> None:
        """Make the job's security groups in each region, open to whom the way to its machines needs alone: the caller's
        address as it is now, its network, or nobody. Idempotent; asked again, it follows a caller who moved."""
        ...

    def find_image(self, image: Image, region: str) -> FoundImage:
        """The AMI that the row's parameter names now, or the user's own one. Idempotent; pin the answer in the attempt.

        Raises PoolUnavailable (no such parameter or image here), UsageError (the image suits no machine of this job),
        AccessError, CloudUnreachable.
        """
        ...

    def price(self, pool: Pool) -> Decimal | None:
        """USD per machine and hour of the pool now; None where the cloud names none. Never zero."""
        ...

    def launch(self, request: LaunchRequest) -> Machine:
        """Start one machine. Idempotent by the attempt's client token: repeat it after CloudUnreachable.

        One RunInstances call, never retried inside. Raises PoolUnavailable, QuotaExceeded, AccessError, AttemptOver,
        CloudUnreachable, CloudGone, UsageError (the request itself is wrong).
        """
        ...

    def machines(self, job_id: str, regions: Iterable[str]) -> tuple[Machine, ...]:
        """Every machine tagged with the job, terminated ones included, found by tag. Eventually consistent:
        a new machine may be missing for a while, and absence is not proof of death."""
        ...

    def terminate(self, region: str, instance_ids: Iterable[str]) -> None:
        """Ask for the end of machines; returning means that it was asked, not that they are gone. Repeat until
        ``machines`` shows them terminated. An unknown id is no error and does not stop the others."""
        ...

    def sweep(self, job_id: str, regions: Iterable[str]) -> tuple[str, ...]:
        """Delete what else carries the job's tag (groups, volumes, interfaces); returns what is still there.
        Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a machine over SSH, with the only host keys that are accepted."""

    endpoint: Endpoint
    user: str
    host_keys: tuple[str, ...]  # "ssh-ed25519 AAAA…", pinned before the first connection
    client_key: Path  # private key file, mode 0600
    proxy_command: str | None = None  # a shell command whose stdin and stdout are the connection to port 22


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a remote command left."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Remote(Protocol):
    """SSH. Connections are kept and reused; every call is bounded by its timeout_s. Raises RemoteError."""

    def run(self, target: Target, command: str, *, stdin: BinaryIO | None = None, timeout_s: float) -> RunResult:
        """Run a shell command, feeding it stdin to its end. A time-out says nothing about the command's fate."""
        ...

    def read(self, target: Target, path: str, *, offset: int, limit: int, timeout_s: float) -> bytes:
        """At most ``limit`` bytes of a file from ``offset``; b"" at its end or where there is no file. ``path`` is
        relative to the login user's home."""
        ...

    def forget(self, target: Target) -> None:
        """Close the connection to the target, if there is one."""
        ...


class ObjectStore(Protocol):
    """One bucket. Calls block at most 60 s per 100 MB. Raises CloudUnreachable, CloudGone, AccessError."""

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object's bytes and its ETag; None where there is none."""
        ...

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write an object; returns its new ETag. With a condition, raises Conflict when it does not hold."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of every object under the prefix."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Write the object to a file, replaced whole. Raises NotFound."""
        ...

    def upload(self, path: Path, key: str) -> None:
        """Write a file, of whatever size, as an object. No condition: for keys that nobody else writes."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in the local store."""

    record: JobRecord
    version: int
    etag: str | None  # of the bucket's copy, as last seen
    wanted: str  # "run" | "stop" | "cancel"

    @property
    def resting(self) -> bool:
        """Whether no controller has anything to do for it: over, or stopped as was asked."""
        status = self.record.status
        return status.final or (status is JobStatus.STOPPED and self.wanted == "stop")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's history."""

    number: int
    at: float
    text: str


class Store(Protocol):
    """The controller's working copy and index. Blocks at most 5 s (another process writes)."""

    def add(self, record: JobRecord) -> None:
        """Store a new job. Raises Conflict where the id, or a live job of that name, exists."""
        ...

    def put(self, record: JobRecord, etag: str) -> None:
        """Store a job as its bucket has it, whatever was known of it here; a stopped or stopping one stays so.
        Raises Conflict where another live job has its name."""
        ...

    def get(self, job_id: str) -> Stored:
        """One job. Raises NotFound."""
        ...

    def wanted(self, job_id: str) -> str:
        """What the person wants of the job, as ``get`` has it too: for asking often. Raises NotFound."""
        ...

    def heads(self) -> dict[str, tuple[int, str]]:
        """Of each job that is not over: its version, and what the person wants of it. For asking often."""
        ...

    def list(self, *, live_only: bool = False) -> tuple[Stored, ...]:
        """All jobs, oldest first."""
        ...

    def save(
        self,
        record: JobRecord,
        *,
        version: int,
        etag: str | None,
        facts: Sequence[Fact] = (),
        durable: bool = True,
    ) -> int:
        """Replace a record by compare-and-set, and with it add the facts that are new; returns the new version. What is
        not ``durable`` waits for no disk, and a computer that loses power may come back without it. Raises Conflict."""
        ...

    def want(self, job_id: str, wanted: str) -> None:
        """Say what the person wants of the job: "run", "stop" or "cancel". Never conflicts; no stop undoes a cancel."""
        ...

    def set_live(self, job_id: str, document: str) -> None:
        """Replace the job's live view (JSON, for ``ls``, ``show`` and the foreground)."""
        ...

    def live(self, job_id: str) -> str | None:
        """The job's live view."""
        ...

    def add_event(self, job_id: str, at: float, text: str) -> None:
        """Append to the job's history."""
        ...

    def events(self, job_id: str, *, after: int = 0) -> tuple[Event, ...]:
        """The job's history after event number ``after``."""
        ...

    def facts(self, job_id: str) -> tuple[Fact, ...]:
        """The job's history for machines, in the order in which it was learnt."""
        ...


class Inventory(Protocol):
    """What one owner's jobs have in an account, wherever it lies: EC2 and S3. Calls look anew each time, block for some
    seconds per thousand things, and may be repeated. They raise AccessError and CloudUnreachable."""

    def regions(self) -> tuple[str, ...]:
        """Every region that is enabled for the account."""
        ...

    def look(self, region: str) -> tuple[tuple[Thing, ...], tuple[str, ...]]:
        """What is there with the owner's tag and a job's, all that is not over; and a line for each kind that may not
        be looked at. Raises RegionDenied where that is so of machines."""
        ...

    def end(self, things: Iterable[Thing]) -> tuple[tuple[str, str], ...]:
        """Ask for their end; returning means that it was asked, not that they are gone: look again. Returns the id of
        each that was refused, and why. What is gone already is no refusal, and none keeps another."""
        ...

    def bucket_region(self, bucket: str) -> str | None:
        """Where a bucket of the account is; None where there is none of that name. Raises AccessError where that can't
        be told."""
        ...

    def uploads(self, bucket: str, region: str) -> tuple[Thing, ...]:
        """The bucket's multipart uploads that are not finished, whoever began them."""
        ...

    def contents(self, bucket: str, region: str) -> tuple[StoredObject, ...]:
        """Every object of the bucket."""
        ...
