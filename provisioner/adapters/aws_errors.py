"""AWS's error codes as our errors: one table, as data. Everything that boto3 raises goes through ``translate``.

Sources: the EC2 API's error-code page and each service's model (botocore 1.44), read 2026-11; which codes mean "no
capacity here" also after Karpenter (karpenter-provider-aws pkg/errors) and ParallelCluster, which run on real AWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError

from cloudtrain.provisioner.errors import (
    AccessError,
    AttemptOver,
    CloudError,
    CloudGone,
    CloudtrainError,
    CloudUnreachable,
    Conflict,
    NotFound,
    PoolUnavailable,
    QuotaExceeded,
    RegionDenied,
    UsageError,
)


class Kind(StrEnum):
    """What an error means to us."""

    POOL = "pool"  # PoolUnavailable: the next pool
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
    """What a code means, and what the person can do (empty: nothing, the program goes on by itself)."""

    kind: Kind
    advice: str = ""


_ASK_QUOTA = "ask for more in the Service Quotas console, or use another region or family"
_REFRESH = "refresh your credentials (for example `aws sso login`) and repeat"
_RIGHTS = "ask your administrator for this permission"
_OFF = (
    "enable the region for the account (`aws account enable-region --region-name REGION`) or leave it out of `infra`; "
    f"where the other regions say so too, {_REFRESH}"
)
_CLOCK = "this computer's clock is off: set it, then repeat"
_BUG = "the request was refused as wrong; please report this line"
_SETUP = "check that it exists and that this account may use it"

ROWS: dict[str, Row] = {
    # No capacity in this pool. InsufficientInstanceCapacity comes with HTTP 500.
    "InsufficientInstanceCapacity": Row(Kind.POOL),
    "InsufficientHostCapacity": Row(Kind.POOL),
    "InsufficientReservedInstanceCapacity": Row(Kind.POOL),
    "ReservationCapacityExceeded": Row(Kind.POOL),
    "InsufficientCapacity": Row(Kind.POOL),
    "UnfulfillableCapacity": Row(Kind.POOL),
    "InsufficientFreeAddressesInSubnet": Row(Kind.POOL),
    "SpotMaxPriceTooLow": Row(Kind.POOL),
    "Unsupported": Row(Kind.POOL),
    "InvalidInstanceType.NotFound": Row(Kind.POOL),
    "InvalidAMIID.NotFound": Row(Kind.POOL),
    "InvalidAMIID.Unavailable": Row(Kind.POOL),
    "InvalidAMIID.Malformed": Row(Kind.POOL),
    "InvalidSubnetID.NotFound": Row(Kind.POOL),
    "ParameterNotFound": Row(Kind.POOL),
    # Quotas.
    "MaxSpotInstanceCountExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "VcpuLimitExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "InstanceLimitExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "MaxFleetCountExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "MaxSpotFleetRequestCountExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "VolumeLimitExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "MaxIOPSLimitExceeded": Row(Kind.QUOTA, _ASK_QUOTA),
    "SecurityGroupLimitExceeded": Row(Kind.QUOTA, "delete unused security groups in this region, or ask for more"),
    # Throttled, or broken on AWS's side: whether the call took effect is unknown.
    "RequestLimitExceeded": Row(Kind.UNKNOWN),
    "EC2ThrottledException": Row(Kind.UNKNOWN),
    "Throttling": Row(Kind.UNKNOWN),
    "ThrottlingException": Row(Kind.UNKNOWN),
    "ThrottledException": Row(Kind.UNKNOWN),
    "RequestThrottled": Row(Kind.UNKNOWN),
    "RequestThrottledException": Row(Kind.UNKNOWN),
    "TooManyRequestsException": Row(Kind.UNKNOWN),
    "SlowDown": Row(Kind.UNKNOWN),
    "RequestTimeout": Row(Kind.UNKNOWN),
    "ConditionalRequestConflict": Row(Kind.UNKNOWN),
    "OperationAborted": Row(Kind.UNKNOWN),
    "InternalError": Row(Kind.UNKNOWN),
    "InternalFailure": Row(Kind.UNKNOWN),
    "ServiceUnavailable": Row(Kind.UNKNOWN),
    "Unavailable": Row(Kind.UNKNOWN),
    # Made a moment ago and not visible everywhere yet: the same launch again finds it, or finds it made anew.
    "InvalidGroup.NotFound": Row(Kind.UNKNOWN),
    "InvalidSecurityGroupID.NotFound": Row(Kind.UNKNOWN),
    "InvalidGroup.Duplicate": Row(Kind.UNKNOWN),
    # The client token.
    "IdempotentInstanceTerminated": Row(Kind.OVER),
    "IdempotentParameterMismatch": Row(Kind.OVER),
    # The request itself.
    "InvalidParameterValue": Row(Kind.REQUEST, _BUG),
    "InvalidParameterCombination": Row(Kind.REQUEST, _BUG),
    "InvalidParameter": Row(Kind.REQUEST, _BUG),
    "MissingParameter": Row(Kind.REQUEST, _BUG),
    "UnknownParameter": Row(Kind.REQUEST, _BUG),
    "ValidationError": Row(Kind.REQUEST, _BUG),
    "ValidationException": Row(Kind.REQUEST, _BUG),
    "InvalidUserData.Malformed": Row(Kind.REQUEST, _BUG),
    "InvalidBlockDeviceMapping": Row(Kind.REQUEST, "set a larger disk_size"),
    "InvalidBucketName": Row(Kind.REQUEST, "name another bucket"),
    # Who we are, and what we may do.
    # In a region that is off, EC2 says AuthFailure (401, "not able to validate the provided credentials") and SSM
    # UnrecognizedClientException, as with keys that it does not know (turbot/steampipe-plugin-aws#75, 2021-02;
    # aws-toolkit-azure-devops#510, 2023-03). Organizations deny whole regions with UnauthorizedOperation.
    "UnauthorizedOperation": Row(Kind.REGION, _RIGHTS),
    "AccessDenied": Row(Kind.ACCESS, _RIGHTS),
    "AccessDeniedException": Row(Kind.REGION, _RIGHTS),
    "AllAccessDisabled": Row(Kind.ACCESS, _RIGHTS),
    "403": Row(Kind.ACCESS, _RIGHTS),
    # S3's answers to HEAD have no body, so no code: 400 is an expired session (aws/aws-sdk-js#2219, 2018-08).
    "400": Row(Kind.ACCESS, _REFRESH),
    "AuthFailure": Row(Kind.REGION, _OFF),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Row(
        Kind.ACCESS,
        "have an administrator run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    "ExpiredToken": Row(Kind.ACCESS, _REFRESH),
    "ExpiredTokenException": Row(Kind.ACCESS, _REFRESH),
    "RequestExpired": Row(Kind.ACCESS, _REFRESH),
    "InvalidClientTokenId": Row(Kind.ACCESS, _REFRESH),
    "UnrecognizedClientException": Row(Kind.REGION, _OFF),
    "InvalidAccessKeyId": Row(Kind.ACCESS, _REFRESH),
    "SignatureDoesNotMatch": Row(Kind.ACCESS, _REFRESH),
    "InvalidToken": Row(Kind.ACCESS, _REFRESH),
    "RequestTimeTooSkewed": Row(Kind.ACCESS, _CLOCK),
    "OptInRequired": Row(Kind.REGION, _OFF),
    "PendingVerification": Row(Kind.REGION, "AWS is still checking the account: try again in some hours"),
    "Blocked": Row(Kind.ACCESS, "the account is blocked: see AWS's mail to its owner"),
    "AccountDisabled": Row(Kind.ACCESS, "the account is disabled: contact AWS support"),
    "InvalidIamInstanceProfileArn.NotFound": Row(Kind.ACCESS, _SETUP),
    "NoSuchEntity": Row(Kind.ACCESS, _SETUP),
    # Things that are not there, and conditions that did not hold.
    "InvalidInstanceID.NotFound": Row(Kind.MISSING),
    "InvalidInstanceID.Malformed": Row(Kind.MISSING),
    "NoSuchBucket": Row(Kind.ACCESS, _SETUP),
    "NoSuchKey": Row(Kind.MISSING),
    "404": Row(Kind.MISSING),
    "PreconditionFailed": Row(Kind.CONFLICT),
    "412": Row(Kind.CONFLICT),
    # This resource, now.
    "OperationNotPermitted": Row(Kind.REFUSED, "is termination protection on? Switch it off in the EC2 console"),
    "IncorrectInstanceState": Row(Kind.REFUSED),
    "DependencyViolation": Row(Kind.REFUSED),
}

# Met once for each pool under a shortage; AWS's message is 200 characters of the code and the zone again.
_SAYS_IT_ALL = ("InsufficientInstanceCapacity",)
_LOCAL_URL = re.compile(r"(https?://127\.0\.0\.1:\d+)/[^\s\"']*")  # the embedded cloud's path is its secret
_TYPE_UNKNOWN = re.compile(r"invalid value '[^']*' for instancetype", re.IGNORECASE)


def names_profile(code: str, message: str) -> bool:
    """Whether EC2 refuses a launch for its instance profile: one that is not there, or that it does not know yet."""
    return code == "InvalidParameterValue" and "iaminstanceprofile" in message.replace(" ", "").lower()


def row(code: str, status: int = 400, message: str = "") -> Row | None:
    """What a code means; None for one that nobody has met: it is tried once and never looped on."""
    if names_profile(code, message):
        return Row(Kind.ACCESS, _SETUP)
    if code == "InvalidParameterValue" and _TYPE_UNKNOWN.search(message):
        return Row(Kind.POOL)  # a type that this region does not know; one that the zone lacks is Unsupported
    known = ROWS.get(code)
    if known is None and status >= 500:
        return Row(Kind.UNKNOWN)
    return known


_CONFIGURATION = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.UnknownCredentialError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
    boto.RefreshWithMFAUnsupportedError,
    boto.SSOError,
    boto.LoginError,
    boto.ProfileNotFound,
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.InvalidConfigError,
)


def translate(
    error: Exception, doing: str, *, is_dead: Callable[[], bool] | None = None, launching: bool = False
) -> CloudtrainError:
    """Our error for one of botocore's. ``doing`` says what and where ("launch in aws/us-east-1/…").

    ``is_dead`` is asked, where no whole answer came, whether the embedded cloud has died. A code that is not in the
    table costs a launch its pool (``launching``), and is CloudError for any other call.
    """
    if isinstance(error, boto.ClientError):
        return _from_reply(error, doing, Kind.POOL if launching else Kind.REFUSED)
    if isinstance(error, boto.ParamValidationError):
        return UsageError(f"{doing}: {_one_line(error)}; {_BUG}")
    if isinstance(error, _CONFIGURATION):
        return AccessError(f"{doing}: {_one_line(error)}; check your AWS profile, or {_REFRESH}")
    if is_dead is not None and is_dead():
        return CloudGone(f"{doing}: the embedded cloud has died, and its machines and objects with it")
    return CloudUnreachable(f"{doing}: {_one_line(error)}; it is tried again")


@contextmanager
def translated(doing: str, *, is_dead: Callable[[], bool] | None = None, launching: bool = False) -> Iterator[None]:
    """Everything that botocore raises in the block comes out as our error."""
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, ResponseParserError) as error:
        raise translate(error, doing, is_dead=is_dead, launching=launching) from error


def code_of(error: boto.ClientError) -> str:
    """AWS's code of a refusal."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def message_of(error: boto.ClientError) -> str:
    """AWS's words for a refusal."""
    return str(error.response.get("Error", {}).get("Message", ""))


def _from_reply(error: boto.ClientError, doing: str, unknown: Kind) -> CloudtrainError:
    code, about = code_of(error), error.response.get("ResponseMetadata", {})
    message = message_of(error)
    found = row(code, int(about.get("HTTPStatusCode", 400)), message)
    advice = found.advice if found else "this code is unknown here; it is not tried again"
    said = "" if code in _SAYS_IT_ALL else f": {_one_line(message)}"
    text = f"{doing}: {code}{said} (request {about.get('RequestId') or 'without id'})"
    text = f"{text}; {advice}" if advice else text
    return _made(found.kind if found else unknown, text, code)


def _made(kind: Kind, text: str, code: str) -> CloudtrainError:
    match kind:
        case Kind.POOL:
            return PoolUnavailable(text, code=code)
        case Kind.QUOTA:
            return QuotaExceeded(text, code=code)
        case Kind.OVER:
            return AttemptOver(text, code=code)
        case Kind.REFUSED:
            return CloudError(text, code=code)
        case Kind.ACCESS:
            return AccessError(text)
        case Kind.REGION:
            return RegionDenied(text)
        case Kind.REQUEST:
            return UsageError(text)
        case Kind.MISSING:
            return NotFound(text)
        case Kind.CONFLICT:
            return Conflict(text)
        case Kind.UNKNOWN:
            return CloudUnreachable(text)


def _one_line(text: object) -> str:
    """A message on one line. EC2's encoded authorization messages are some 900 characters of no use to a reader."""
    line = _LOCAL_URL.sub(r"\1/…", " ".join(str(text).split()))
    head, found, _ = line.partition(" Encoded authorization failure message:")
    return head if found else line[:500]
