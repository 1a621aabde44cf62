"""Many reads of a cloud at once, each bounded, and none of them able to fail the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError

from cloudtrain.provisioner.account.facts import Unread, Why
from cloudtrain.provisioner.adapters.aws_codes import Kind, row
from cloudtrain.provisioner.adapters.aws_errors import code_of
from cloudtrain.provisioner.adapters.redaction import redacted
from cloudtrain.provisioner.errors import CloudtrainError, RegionDenied

T_co = TypeVar("T_co", covariant=True)

_CODES = {
    "ExpiredToken": Why.EXPIRED,
    "ExpiredTokenException": Why.EXPIRED,
    "InvalidClientTokenId": Why.INVALID,
    "UnrecognizedClientException": Why.INVALID,
    "InvalidAccessKeyId": Why.INVALID,
    "InvalidToken": Why.INVALID,
    "AuthFailure": Why.INVALID,
    "RequestTimeTooSkewed": Why.SKEWED,
    "RequestExpired": Why.SKEWED,
}
_SKEWED_WORDS = ("signature expired", "signature not yet current")  # comes as SignatureDoesNotMatch (SigV4)
_LOGIN_ENDED = (boto.TokenRetrievalError, boto.UnauthorizedSSOTokenError, boto.SSOTokenLoadError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.NoAuthTokenError,
)
_LONGEST = 300


class Reading(Generic[T_co]):
    """A call under way."""

    def __init__(self, action: str, future: Future[T_co], end: float) -> None:
        self._action = action
        self._future = future
        self._end = end

    def get(self) -> T_co | Unread:
        """What it found, or why it did not; waits until the common deadline. Raises what is no fault of the cloud's."""
        try:
            return self._future.result(timeout=max(0.0, self._end - time.monotonic()))
        except TimeoutError:
            return Unread(Why.UNREACHABLE, self._action, "no answer in time")
        except (boto.ClientError, boto.BotoCoreError, ResponseParserError, CloudtrainError) as error:
            return unread(error, self._action)


class Readers:
    """Runs calls in threads of their own, all of them until one common deadline.

    The threads are daemons: a call that hangs delays nobody, and ends with the process.
    """

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    def start(self, action: str, call: Callable[[], T_co]) -> Reading[T_co]:
        """Begin a call, which is one use of an IAM action; it may begin others, and wait for them."""
        future: Future[T_co] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever takes the result gets it
                future.set_exception(error)

        threading.Thread(target=work, name="reading", daemon=True).start()
        return Reading(action, future, self._end)


def unread(error: BaseException, action: str) -> Unread:
    """Why a call failed: botocore's error, or ours, which has botocore's as its cause."""
    cause = error.__cause__ if isinstance(error, CloudtrainError) and error.__cause__ else error
    words = redacted(" ".join(str(cause).split()))[:_LONGEST]
    if isinstance(cause, RegionDenied):
        return Unread(Why.REGION_OFF, action, words)
    if isinstance(cause, boto.ClientError):
        words = f"{code_of(cause)}: {cause.response.get('Error', {}).get('Message', '')}"[:_LONGEST].rstrip(" :.")
        return Unread(_why(cause), action, words)
    if isinstance(cause, _LOGIN_ENDED):
        return Unread(Why.EXPIRED, action, words)
    if isinstance(cause, _NO_CREDENTIALS):
        return Unread(Why.NO_CREDENTIALS, action, words)
    return Unread(Why.UNREACHABLE, action, words)


def _why(error: boto.ClientError) -> Why:
    code, message = code_of(error), str(error).lower()
    if any(words in message for words in _SKEWED_WORDS):
        return Why.SKEWED
    if code in _CODES:
        return _CODES[code]
    if code == "SignatureDoesNotMatch":
        return Why.INVALID
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    known = row(code, status)
    if known is not None and known.kind in (Kind.ACCESS, Kind.REGION):
        return Why.DENIED
    return Why.UNREACHABLE if known is not None and known.kind is Kind.UNKNOWN else Why.REFUSED
