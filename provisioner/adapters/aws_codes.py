"""AWS's error codes, as data: what each means to us, how far it reaches, and what the person can do.

Sources: the EC2 API's error-code page and each service's model (botocore 1.44), read 2026-11; which codes mean "no
capacity here" also after Karpenter (karpenter-provider-aws pkg/errors) and ParallelCluster, which run on real AWS.
docs/errors.md is made from this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from cloudtrain.provisioner.account.quotas import UPGRADE, on_free_plan
from cloudtrain.provisioner.errors import Scope


class Kind(StrEnum):
    """What an error means to us."""

    POOL = "pool"  # PoolUnavailable: another pool
    QUOTA = "quota"  # QuotaExceeded
    ACCESS = "access"  # AccessError
    REGION = "region"  # RegionDenied
    OVER = "over"  # AttemptOver: the token is spent
    UNKNOWN = "unknown"  # CloudUnreachable: ask again, with the same token
    REQUEST = "request"  # UsageError: the request is wrong, and will be wrong next time
    MISSING = "missing"  # NotFound
    CONFLICT = "conflict"  # Conflict: a condition did not hold
    REFUSED = "refused"  # CloudError: this call on this resource


@dataclass(frozen=True, slots=True)
class Row:
    """What a code means. ``scope``: what is left alone after one of it; ``status``: the HTTP status that it comes with.

    ``advice``: what the person can do; empty: nothing, the program goes on by itself. ``lasting``: it will be so for
    hours. ``broken``: AWS's own fault, repeated a few times with the same token. ``throttled``: it is asked too often.
    """

    kind: Kind
    scope: Scope
    status: int = 400
    advice: str = ""
    lasting: bool = False
    broken: bool = False
    throttled: bool = False


ASK_QUOTA = "ask for more in the Service Quotas console, or use another region or family"
REFRESH = "refresh your credentials (for example `aws sso login`) and repeat"
RIGHTS = "ask your administrator for this permission"
OFF = (
    "enable the region for the account (`aws account enable-region --region-name REGION`) or leave it out of `infra`; "
    f"where the other regions say so too, {REFRESH}"
)
CLOCK = "this computer's clock is off: set it, then repeat"
BUG = "the request was refused as wrong; please report this line"
SETUP = "check that it exists and that this account may use it"
SPOT_ROLE = "have an administrator run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`"

_CAPACITY = Row(Kind.POOL, Scope.POOL, 500)
_HOSTS = Row(Kind.POOL, Scope.PLACE, 500)  # of the type in the zone, whichever market
_IMAGE = Row(Kind.POOL, Scope.IMAGE, lasting=True)
_FAMILY = Row(Kind.QUOTA, Scope.QUOTA, advice=ASK_QUOTA)
_REGION_QUOTA = Row(Kind.QUOTA, Scope.REGION, advice=ASK_QUOTA)
_THROTTLED = Row(Kind.UNKNOWN, Scope.NONE, throttled=True)
_THROTTLED_503 = Row(Kind.UNKNOWN, Scope.NONE, 503, throttled=True)
_BROKEN = Row(Kind.UNKNOWN, Scope.NONE, 500, broken=True)
_UNAVAILABLE = Row(Kind.UNKNOWN, Scope.NONE, 503, broken=True)
_TOO_NEW = Row(Kind.UNKNOWN, Scope.NONE)
_WRONG = Row(Kind.REQUEST, Scope.REQUEST, advice=BUG)
_EXPIRED = Row(Kind.ACCESS, Scope.ACCOUNT, advice=REFRESH)
_UNKNOWN_KEY = Row(Kind.ACCESS, Scope.ACCOUNT, 403, REFRESH)
_GONE = Row(Kind.MISSING, Scope.RESOURCE)
_GONE_404 = Row(Kind.MISSING, Scope.RESOURCE, 404)
_LOST_RACE = Row(Kind.CONFLICT, Scope.RESOURCE, 412)

ROWS: dict[str, Row] = {
    # No capacity. EC2 counts these among its "server errors", so they come with HTTP 500.
    "InsufficientInstanceCapacity": _CAPACITY,
    "UnfulfillableCapacity": _CAPACITY,
    "InsufficientCapacity": _CAPACITY,
    "InsufficientHostCapacity": _HOSTS,
    "InsufficientReservedInstanceCapacity": _HOSTS,
    "ReservationCapacityExceeded": Row(Kind.POOL, Scope.PLACE),
    "InsufficientVolumeCapacity": Row(Kind.POOL, Scope.SUBNET, 500),  # the zone has no room for the root volume
    "SpotMaxPriceTooLow": Row(Kind.POOL, Scope.POOL),
    "InsufficientFreeAddressesInSubnet": Row(Kind.POOL, Scope.SUBNET),
    "InsufficientAddressCapacity": Row(Kind.POOL, Scope.REGION, 500),
    # What a place does not have, and will not have in an hour.
    "Unsupported": Row(Kind.POOL, Scope.PLACE, lasting=True),  # the type in this zone
    "UnsupportedOperation": Row(Kind.POOL, Scope.PLACE, lasting=True),
    "InvalidInstanceType.NotFound": Row(Kind.POOL, Scope.PLACE, lasting=True),
    "InvalidSubnetID.NotFound": Row(Kind.POOL, Scope.SUBNET),
    "InvalidAMIID.NotFound": _IMAGE,
    "InvalidAMIID.Unavailable": Row(Kind.POOL, Scope.IMAGE),  # it is being made
    "InvalidAMIID.Malformed": _IMAGE,
    "ParameterNotFound": _IMAGE,  # SSM: no such image line in this region
    # Quotas. One that counts a family's vCPUs leaves every other family alone.
    "MaxSpotInstanceCountExceeded": _FAMILY,
    "VcpuLimitExceeded": _FAMILY,
    "InstanceLimitExceeded": _FAMILY,
    "MaxFleetCountExceeded": _REGION_QUOTA,
    "MaxSpotFleetRequestCountExceeded": _REGION_QUOTA,
    "VolumeLimitExceeded": _REGION_QUOTA,
    "MaxIOPSLimitExceeded": _REGION_QUOTA,
    "NetworkInterfaceLimitExceeded": _REGION_QUOTA,
    "SecurityGroupLimitExceeded": Row(
        Kind.QUOTA, Scope.REGION, advice="delete unused security groups in this region, or ask for more"
    ),
    # Throttled: whether the call took effect is unknown.
    "RequestLimitExceeded": _THROTTLED_503,
    "EC2ThrottledException": _THROTTLED_503,
    "SlowDown": _THROTTLED_503,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    "TooManyRequestsException": Row(Kind.UNKNOWN, Scope.NONE, 429, throttled=True),
    # Broken off by AWS: whether the call took effect is unknown, too.
    "RequestTimeout": Row(Kind.UNKNOWN, Scope.NONE),
    "ConditionalRequestConflict": Row(Kind.UNKNOWN, Scope.NONE, 409),
    "OperationAborted": Row(Kind.UNKNOWN, Scope.NONE, 409),
    # Broken on AWS's side: whether the call took effect is unknown, too.
    "InternalError": _BROKEN,
    "InternalFailure": _BROKEN,
    "ServiceUnavailable": _UNAVAILABLE,
    "Unavailable": _UNAVAILABLE,
    # Made a moment ago and not visible everywhere yet: the same launch again finds it, or finds it made anew.
    "InvalidGroup.NotFound": _TOO_NEW,
    "InvalidSecurityGroupID.NotFound": _TOO_NEW,
    "InvalidGroup.Duplicate": _TOO_NEW,
    # The client token: spent, or used with other parameters. The machine is looked up by its tag before a new attempt.
    "IdempotentInstanceTerminated": Row(Kind.OVER, Scope.NONE),
    "IdempotentParameterMismatch": Row(Kind.OVER, Scope.NONE),
    # The request itself.
    "InvalidParameterValue": _WRONG,
    "InvalidParameterCombination": _WRONG,
    "InvalidParameter": _WRONG,
    "MissingParameter": _WRONG,
    "UnknownParameter": _WRONG,
    "ValidationError": _WRONG,
    "ValidationException": _WRONG,
    "InvalidUserData.Malformed": _WRONG,
    "InvalidKeyPair.NotFound": _WRONG,  # a launch names none: the key travels in user data
    "InvalidBlockDeviceMapping": Row(Kind.REQUEST, Scope.REQUEST, advice="set a larger disk_size"),
    "InvalidBucketName": Row(Kind.REQUEST, Scope.REQUEST, advice="name another bucket"),
    # Who we are, and what we may do.
    # In a region that is off, EC2 says AuthFailure (401, "not able to validate the provided credentials") and SSM
    # UnrecognizedClientException, as with keys that it does not know (turbot/steampipe-plugin-aws#75, 2021-02;
    # aws-toolkit-azure-devops#510, 2023-03). Organizations deny whole regions with UnauthorizedOperation.
    "UnauthorizedOperation": Row(Kind.REGION, Scope.REGION, 403, RIGHTS),
    "AccessDenied": Row(Kind.ACCESS, Scope.ACCOUNT, 403, RIGHTS),
    "AccessDeniedException": Row(Kind.REGION, Scope.REGION, 400, RIGHTS),
    "AllAccessDisabled": Row(Kind.ACCESS, Scope.ACCOUNT, 403, RIGHTS),
    "403": Row(Kind.ACCESS, Scope.ACCOUNT, 403, RIGHTS),
    # S3's answers to HEAD have no body, so no code: 400 is an expired session (aws/aws-sdk-js#2219, 2018-08).
    "400": _EXPIRED,
    "AuthFailure": Row(Kind.REGION, Scope.REGION, 401, OFF),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Row(Kind.ACCESS, Scope.ACCOUNT, 403, SPOT_ROLE),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "InvalidClientTokenId": _UNKNOWN_KEY,
    "UnrecognizedClientException": Row(Kind.REGION, Scope.REGION, 400, OFF),
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "SignatureDoesNotMatch": _UNKNOWN_KEY,
    "InvalidToken": _EXPIRED,
    "RequestTimeTooSkewed": Row(Kind.ACCESS, Scope.ACCOUNT, 403, CLOCK),
    "OptInRequired": Row(Kind.REGION, Scope.REGION, 401, OFF, lasting=True),
    "RegionDisabledException": Row(Kind.REGION, Scope.REGION, 403, OFF, lasting=True),
    "PendingVerification": Row(
        Kind.REGION, Scope.REGION, 400, "AWS is still checking the account: try again in some hours", lasting=True
    ),
    "Blocked": Row(Kind.ACCESS, Scope.ACCOUNT, 400, "the account is blocked: see AWS's mail to its owner"),
    "AccountDisabled": Row(Kind.ACCESS, Scope.ACCOUNT, 400, "the account is disabled: contact AWS support"),
    "InvalidIamInstanceProfileArn.NotFound": Row(Kind.ACCESS, Scope.ACCOUNT, 400, SETUP),
    "NoSuchEntity": Row(Kind.ACCESS, Scope.ACCOUNT, 404, SETUP),
    # Things that are not there, and conditions that did not hold.
    "InvalidInstanceID.NotFound": _GONE,
    "InvalidInstanceID.Malformed": _GONE,
    "InvalidVolume.NotFound": _GONE,
    "InvalidNetworkInterfaceID.NotFound": _GONE,
    "InvalidSpotInstanceRequestID.NotFound": _GONE,
    "NoSuchUpload": _GONE_404,
    "NoSuchBucket": Row(Kind.ACCESS, Scope.ACCOUNT, 404, SETUP),
    "NoSuchKey": _GONE_404,
    "404": _GONE_404,
    "PreconditionFailed": _LOST_RACE,
    "412": _LOST_RACE,
    # This resource, now.
    "OperationNotPermitted": Row(
        Kind.REFUSED, Scope.RESOURCE, advice="is termination protection on? Switch it off in the EC2 console"
    ),
    "IncorrectInstanceState": Row(Kind.REFUSED, Scope.RESOURCE),
    "DependencyViolation": Row(Kind.REFUSED, Scope.RESOURCE),
    "InvalidGroup.InUse": Row(Kind.REFUSED, Scope.RESOURCE),
    "InvalidNetworkInterface.InUse": Row(Kind.REFUSED, Scope.RESOURCE),
    "VolumeInUse": Row(Kind.REFUSED, Scope.RESOURCE),
}

UNKNOWN_LAUNCH = Row(Kind.POOL, Scope.POOL, advice="this code is unknown here; the pool is not asked again today")
UNKNOWN_CALL = Row(Kind.REFUSED, Scope.RESOURCE, advice="this code is unknown here; it is not tried again")
"""A code that nobody has met: a launch tries each other pool once, and any other call is refused."""

NO_BUCKET = ("404", "NoSuchBucket", "NotFound")
"""How S3 says that there is no such bucket: a HEAD's answer has no body, so no code of its own."""

_TYPE_UNKNOWN = re.compile(r"invalid value '[^']*' for instancetype", re.IGNORECASE)


def names_profile(code: str, message: str) -> bool:
    """Whether EC2 refuses a launch for its instance profile: one that is not there, or that it does not know yet."""
    return code == "InvalidParameterValue" and "iaminstanceprofile" in message.replace(" ", "").lower()


def row(code: str, status: int = 400, message: str = "") -> Row | None:
    """What a code means; None for one that nobody has met: it is tried once and never looped on."""
    if names_profile(code, message):
        return Row(Kind.ACCESS, Scope.ACCOUNT, 400, SETUP)
    if code == "InvalidParameterValue" and _TYPE_UNKNOWN.search(message):  # a type that one zone lacks: Unsupported
        return Row(Kind.POOL, Scope.PLACE, lasting=True)
    if code == "InvalidParameterCombination" and on_free_plan(message):
        return Row(Kind.ACCESS, Scope.ACCOUNT, advice=UPGRADE)
    known = ROWS.get(code)
    if known is None and status >= 500:
        return _BROKEN
    return known
