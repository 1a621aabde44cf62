"""What is known of an AWS account before anything is spent in it, and what the checks say of it. Frozen values, no I/O.

Each fact is the value that was read, or an ``Unread`` that says why it could not be. ``adapters/account_facts.py``
reads them, ``account_checks.py`` and ``region_checks.py`` judge them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cloudtrain.pricing.model import CapacityType, Offering, Pool
from cloudtrain.provisioner.names import INSTANCE_PROFILE
from cloudtrain.provisioner.spec import AwsOptions, FileMount


class Level(StrEnum):
    """What a finding means for a launch."""

    OK = "ok"
    WARN = "warn"  # go on, and know it
    FAIL = "fail"  # what stands in ``where`` can't work


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says about one place. All texts are one line.

    ``pools``: those that are out because of it; a failure that names none is the whole account's.
    """

    check: str
    level: Level
    where: str  # "account", "us-east-1", "us-east-1/use1-az4", "bucket NAME"
    what: str
    fix: str = ""  # a command or a console page, with its region; empty where all is well
    pools: tuple[Pool, ...] = ()


class Why(StrEnum):
    """Why a fact could not be read."""

    DENIED = "denied"  # the caller has no right to it
    UNREACHABLE = "unreachable"  # no answer in time
    NO_CREDENTIALS = "no-credentials"
    EXPIRED = "expired"
    INVALID = "invalid"  # AWS does not know the credentials
    REGION_OFF = "region-off"  # the account has not enabled the region that was asked
    SKEWED = "skewed"  # AWS refuses the request's time
    REFUSED = "refused"  # anything else


@dataclass(frozen=True, slots=True)
class Unread:
    """A fact that could not be read. ``action`` is the IAM action that was tried ("ec2:DescribeSubnets")."""

    why: Why
    action: str
    words: str  # the cloud's own, one line


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller. ``owner`` goes into the owner tag: the same for the same person or role, login after login.

    ``expires_at``: Unix seconds at which the credentials end, as far as they or the login that renews them say so;
    None where they don't end, renew themselves, or don't tell.
    """

    account: str
    arn: str
    owner: str
    expires_at: float | None = None

    @property
    def partition(self) -> str:
        """aws, aws-cn, aws-us-gov, …"""
        return self.arn.split(":")[1]


@dataclass(frozen=True, slots=True)
class MachineRole:
    """The role that machines run as, through their instance profile of the given name."""

    profile: str
    profile_exists: bool
    role: str | None = None  # the role that it holds
    policies: tuple[str, ...] | Unread = ()  # every policy document of the role, as JSON text


@dataclass(frozen=True, slots=True)
class SpotRole:
    """The service-linked role AWSServiceRoleForEC2Spot."""

    exists: bool
    can_be_made: bool | None = None  # by this caller; None: not known


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket for checkpoints, results and records. ``name`` None: there is none of ours."""

    name: str | None
    tried: tuple[str, ...]  # names that were looked for
    expected_region: str
    region: str | None = None
    denied: Unread | None = None  # it exists, and we may not use it (or it is another account's)
    public_access_blocked: bool | Unread = True
    probe: Unread | None = None  # what writing, reading or deleting a small object met


@dataclass(frozen=True, slots=True)
class Egress:
    """Whether this computer's network lets SSH out."""

    address: str  # "host:port"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EbsKey:
    """The KMS key that encrypts a job's volumes in a region. AWS's own key (alias/aws/ebs) needs no grant.

    ``named``: the job names it; else it is the region's default. ``there``: the region has it.
    """

    key_id: str
    customer: bool = False
    named: bool = False
    there: bool = True
    enabled: bool | Unread = True
    spot_may_use: bool | Unread = True  # by a grant or by the key's policy, the spot role


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet that machines may start in."""

    subnet_id: str
    vpc_id: str
    zone_id: str
    free_addresses: int
    route_table_id: str | None = None
    internet: bool | Unread = True  # a default route to an internet gateway
    way_out: bool | Unread = True  # a default route at all


@dataclass(frozen=True, slots=True)
class Network:
    """Where machines of a region may start: its default VPC, or the subnets that were named."""

    vpc_id: str | None  # None: there is no default VPC, and no named subnet lies here
    subnets: tuple[Subnet, ...] = ()
    gateway_id: str | None = None  # an internet gateway of the VPC, where there is one


@dataclass(frozen=True, slots=True)
class Ami:
    """A machine image as EC2 shows it."""

    architecture: str
    root_device: str
    root_gib: int  # of its root snapshot
    state: str = "available"
    user_told: bool = True  # whether it is known who logs in


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """One image that pools of a region would boot."""

    name: str  # the SSM parameter, or the AMI id that the job file names
    instance_types: tuple[str, ...]
    image_id: str | Unread | None  # None: no such parameter
    ami: Ami | Unread | None  # None: no such image


@dataclass(frozen=True, slots=True)
class DryRun:
    """What EC2 answers to the real request with DryRun set. ``code`` "DryRunOperation": it would have been carried
    out."""

    pool: Pool
    code: str
    words: str
    action: str | None = None  # that is not allowed
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """What was read in one region."""

    region: str
    opt_in: str | Unread  # "opt-in-not-required" | "opted-in" | "not-opted-in"
    quotas: tuple[tuple[str, float | Unread], ...]  # quota code, vCPUs
    ebs_key: EbsKey | Unread
    network: Network | Unread
    images: tuple[ImageFacts, ...]
    offered: frozenset[tuple[str, str]] | Unread  # instance type, zone id
    dry_runs: tuple[DryRun, ...] = ()
    denied: tuple[Unread, ...] = ()  # calls that the loop makes while a job runs, and that were refused


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """Everything that was read. ``ahead_s``: this computer's clock minus AWS's."""

    cloud: str
    read_at: float
    caller: Identity | Unread
    home_region: str  # where the bucket belongs, and account-wide calls went
    ahead_s: float | None = None
    egress: Egress | None = None
    address: str | Unread | None = None  # this computer's IPv4 address; None: not asked
    role: MachineRole | Unread | None = None  # None: not asked, as is all else where the credentials don't work
    spot_role: SpotRole | Unread | None = None
    bucket: Bucket | Unread | None = None
    regions: tuple[RegionFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Wants:
    """What will be asked of the account: these pools, and how their machines are made."""

    offerings: tuple[Offering, ...]
    disk_gib: int | None = None
    options: AwsOptions = field(default_factory=AwsOptions)
    max_run_s: float | None = None
    bucket: str | None = None  # the one that the configuration names; None: the account's own
    mounts: tuple[FileMount, ...] = ()

    @property
    def profile(self) -> str:
        """The instance profile that machines get."""
        return self.options.iam_instance_profile or INSTANCE_PROFILE

    @property
    def spot_pools(self) -> tuple[Pool, ...]:
        """The pools that are bought on the spot market."""
        return tuple(o.pool for o in self.offerings if o.pool.capacity_type is CapacityType.SPOT)

    @property
    def regions(self) -> tuple[str, ...]:
        """The pools' regions, each once, in the order of the plan."""
        return tuple(dict.fromkeys(o.pool.region for o in self.offerings))

    def in_region(self, region: str) -> tuple[Offering, ...]:
        """The offerings of one region."""
        return tuple(o for o in self.offerings if o.pool.region == region)

    def pools(self, region: str) -> tuple[Pool, ...]:
        """The pools of one region."""
        return tuple(o.pool for o in self.in_region(region))
