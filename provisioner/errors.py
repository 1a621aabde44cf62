"""The error tree and the exit codes. The CLI prints ``str(error)`` as one line and exits with ``exit_code``; the codes
that no class has say how a job ended (``report.exit_code``).

CloudtrainError              1   something failed that has no class of its own
├── UsageError               2   a wrong job file, flag or value; refused before anything is spent
├── NotFound                 3   no such job, file or instance
├── NoCapacity               4   no offering fits, or no pool had capacity
├── AccessError              6   credentials, permission or quota
│   └── QuotaExceeded        6
├── CloudError               1   the cloud refused one call
│   ├── PoolUnavailable      4   this pool, for minutes
│   └── AttemptOver          1   the client token is spent: a new attempt
├── CloudUnreachable         1   no answer, throttled, or time-out: the result is unknown, ask again
├── CloudGone                1   the embedded cloud died; its machines and objects are gone
├── RemoteError              1   SSH failed; says nothing about the machine
└── Conflict                 1   a compare-and-set lost
"""

from __future__ import annotations

from enum import StrEnum

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_NO_CAPACITY = 4
EXIT_LIMIT = 5
EXIT_ACCESS = 6
EXIT_JOB_FAILED = 100
EXIT_NOT_FINISHED = 101
EXIT_CANCELLED = 103
EXIT_INTERRUPTED = 130


class Scope(StrEnum):
    """How far an error reaches: what is left alone after one of it, for a while."""

    NONE = "none"  # nothing: the same call is made again
    POOL = "pool"  # the type in that zone and market
    PLACE = "type and zone"  # the type in that zone, in every market
    SUBNET = "subnet"  # the zone, whatever the type: its subnet has no address left
    QUOTA = "quota"  # every pool of the region whose vCPUs the same quota counts
    IMAGE = "image"  # every pool of the region that boots the same image
    REGION = "region"
    REQUEST = "request"  # the job: every pool would be asked the same
    ACCOUNT = "account"
    RESOURCE = "resource"  # that one machine, group, bucket or object


class CloudtrainError(Exception):
    """One line for the person: what happened, where, and what to do next."""

    exit_code = EXIT_ERROR


class UsageError(CloudtrainError):
    """Bad input, refused before anything is spent."""

    exit_code = EXIT_USAGE


class NotFound(CloudtrainError):
    """The thing that was named does not exist."""

    exit_code = EXIT_NOT_FOUND


class NoCapacity(CloudtrainError):
    """No offering fits the job, or none had capacity."""

    exit_code = EXIT_NO_CAPACITY


class AccessError(CloudtrainError):
    """Credentials, permission or quota."""

    exit_code = EXIT_ACCESS


class RegionDenied(AccessError):
    """Refused in one region: it is off for the account, or the caller may not use it. Another region may say yes.
    ``lasting``: it will be so for hours."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class QuotaExceeded(AccessError):
    """A service quota: of a family's vCPUs in one market and region (Scope.QUOTA), or of the region."""

    def __init__(self, message: str, *, code: str, scope: Scope = Scope.QUOTA) -> None:
        super().__init__(message)
        self.code = code
        self.scope = scope


class CloudError(CloudtrainError):
    """The cloud refused one call. ``code`` is the cloud's own."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class PoolUnavailable(CloudError):
    """This pool can't give a machine now, and ``scope`` says which others can't either. ``lasting``: nor within hours,
    as an unknown code, which is tried once in each pool."""

    exit_code = EXIT_NO_CAPACITY

    def __init__(self, message: str, *, code: str, scope: Scope = Scope.POOL, lasting: bool = False) -> None:
        super().__init__(message, code=code)
        self.scope = scope
        self.lasting = lasting


class AttemptOver(CloudError):
    """The attempt's client token is spent or was used with other parameters: look up by tag, then a new attempt."""


class CloudUnreachable(CloudtrainError):
    """No answer, throttled, or a time-out. Whether the call took effect is unknown: repeat it with the same token.

    ``broken``: the cloud answered with a fault of its own, which is repeated a few times and then costs the pool.
    ``throttled``: it answered that it is asked too often.
    """

    def __init__(self, message: str, *, broken: bool = False, throttled: bool = False) -> None:
        super().__init__(message)
        self.broken = broken
        self.throttled = throttled


class CloudGone(CloudtrainError):
    """The embedded cloud that held this job's machines and objects is dead. Nothing of it can come back."""


class RemoteError(CloudtrainError):
    """SSH could not be used. Says nothing about whether the machine lives."""


class Conflict(CloudtrainError):
    """A compare-and-set lost: somebody else wrote first. Read again."""
