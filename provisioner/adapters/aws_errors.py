"""AWS's errors as ours, after the table of codes in ``aws_codes``. Everything that boto3 raises goes through
``translate``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError

from cloudtrain.provisioner.adapters.aws_codes import BUG, REFRESH, UNKNOWN_CALL, UNKNOWN_LAUNCH, Kind, Row, row
from cloudtrain.provisioner.adapters.redaction import redacted
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

if TYPE_CHECKING:
    from cloudtrain.provisioner.adapters.clients import Clients

Decoder = Callable[[str], str | None]
"""What an encoded authorization message says: "ec2:RunInstances on arn:…"; None where it may not be decoded."""

# Met once for each pool under a shortage; AWS's message is 200 characters of the code and the zone again.
_SAYS_IT_ALL = ("InsufficientInstanceCapacity",)
_ENCODED = " Encoded authorization failure message:"
_SKEW_S = 240.0
_SET_CLOCK = "set it (`sudo timedatectl set-ntp true` on Linux), then repeat"

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
    error: Exception,
    doing: str,
    *,
    is_dead: Callable[[], bool] | None = None,
    launching: bool = False,
    decode: Decoder | None = None,
) -> CloudtrainError:
    """Our error for one of botocore's. ``doing`` says what and where ("launch in aws/us-east-1/…").

    ``is_dead`` is asked, where no whole answer came, whether the embedded cloud has died. A code that is not in the
    table costs a launch its pool (``launching``), and is CloudError for any other call. ``decode`` is asked what a
    refusal for want of a permission is about.
    """
    if isinstance(error, boto.ClientError):
        return _from_reply(error, doing, UNKNOWN_LAUNCH if launching else UNKNOWN_CALL, decode)
    if isinstance(error, boto.ParamValidationError):
        return UsageError(f"{doing}: {_one_line(error)}; {BUG}")
    if isinstance(error, _CONFIGURATION):
        return AccessError(f"{doing}: {_one_line(error)}; check your AWS profile, or {REFRESH}")
    if is_dead is not None and is_dead():
        return CloudGone(f"{doing}: the embedded cloud has died, and its machines and objects with it")
    return CloudUnreachable(f"{doing}: {_one_line(error)}; it is tried again")


@contextmanager
def translated(
    doing: str,
    *,
    is_dead: Callable[[], bool] | None = None,
    launching: bool = False,
    decode: Decoder | None = None,
) -> Iterator[None]:
    """Everything that botocore raises in the block comes out as our error."""
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, ResponseParserError) as error:
        raise translate(error, doing, is_dead=is_dead, launching=launching, decode=decode) from error


def decoder(clients: Clients, region: str) -> Decoder:
    """Asks STS, which knows only the messages of its own account, and tells only who may ask (STS API reference,
    DecodeAuthorizationMessage, read 2026-11). One call for each message."""

    def decode(encoded: str) -> str | None:
        try:
            told = clients.client("sts", region).decode_authorization_message(EncodedMessage=encoded)
            context = json.loads(told["DecodedMessage"])["context"]
            return f"{context['action']} on {context['resource']}"
        except (boto.ClientError, boto.BotoCoreError, ValueError, KeyError, TypeError):
            return None

    return decode


def code_of(error: boto.ClientError) -> str:
    """AWS's code of a refusal."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def message_of(error: boto.ClientError) -> str:
    """AWS's words for a refusal."""
    return str(error.response.get("Error", {}).get("Message", ""))


def _from_reply(error: boto.ClientError, doing: str, unknown: Row, decode: Decoder | None) -> CloudtrainError:
    code, about = code_of(error), error.response.get("ResponseMetadata", {})
    message = message_of(error)
    known = row(code, int(about.get("HTTPStatusCode", 400)), message)
    found = known if known is not None else unknown
    words, advice = _one_line(message), found.advice
    if found.kind in (Kind.ACCESS, Kind.REGION):
        _, encoded, secret = message.partition(_ENCODED)
        about_what = decode(secret.strip()) if encoded and decode is not None else None
        words = f"{words} ({about_what})" if about_what else words
        advice = _clock_advice(about.get("HTTPHeaders", {}).get("date")) or advice
    said = "" if code in _SAYS_IT_ALL else f": {words}"
    text = f"{doing}: {code}{said} (request {about.get('RequestId') or 'without id'})"
    text = f"{text}; {advice}" if advice else text
    return _made(found, text, code, lasting=found.lasting or known is None)


def _clock_advice(date: str | None) -> str:
    """What to do where this computer's clock differs from AWS's, as the reply's Date header shows it, by more than a
    signature may: 5 minutes ("Signature Version 4", IAM user guide, read 2026-11; S3 allows 15). "" where it does not.
    """
    try:
        ahead_s = time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    except ValueError:
        return ""
    if abs(ahead_s) < _SKEW_S:
        return ""
    return (
        f"this computer's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} AWS's: {_SET_CLOCK}"
    )


def _made(found: Row, text: str, code: str, *, lasting: bool) -> CloudtrainError:
    match found.kind:
        case Kind.POOL:
            return PoolUnavailable(text, code=code, scope=found.scope, lasting=lasting)
        case Kind.QUOTA:
            return QuotaExceeded(text, code=code, scope=found.scope)
        case Kind.OVER:
            return AttemptOver(text, code=code)
        case Kind.REFUSED:
            return CloudError(text, code=code)
        case Kind.ACCESS:
            return AccessError(text)
        case Kind.REGION:
            return RegionDenied(text, lasting=lasting)
        case Kind.REQUEST:
            return UsageError(text)
        case Kind.MISSING:
            return NotFound(text)
        case Kind.CONFLICT:
            return Conflict(text)
        case Kind.UNKNOWN:
            return CloudUnreachable(text, broken=found.broken, throttled=found.throttled)


def _one_line(text: object) -> str:
    """A message on one line. EC2's encoded authorization messages are some 900 characters of no use to a reader."""
    line = redacted(" ".join(str(text).split()))
    head, found, _ = line.partition(_ENCODED)
    return head if found else line[:500]
