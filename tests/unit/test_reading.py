"""Reads that fail are facts: why, by AWS's own codes; and none of them holds up the others."""

from __future__ import annotations

import threading

import botocore.exceptions as boto
import pytest

from cloudtrain.provisioner.account.facts import Unread, Why
from cloudtrain.provisioner.adapters.aws_errors import translate
from cloudtrain.provisioner.adapters.reading import Readers, unread


def client_error(code: str, message: str = "words", status: int = 400) -> boto.ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "Describe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (client_error("UnauthorizedOperation"), Why.DENIED),
        (client_error("AccessDeniedException"), Why.DENIED),
        (client_error("403"), Why.DENIED),
        (client_error("ExpiredToken"), Why.EXPIRED),
        (client_error("ExpiredTokenException"), Why.EXPIRED),
        (client_error("InvalidClientTokenId"), Why.INVALID),
        (client_error("AuthFailure"), Why.INVALID),
        (client_error("SignatureDoesNotMatch", "The request signature we calculated does not match"), Why.INVALID),
        (client_error("SignatureDoesNotMatch", "Signature expired: 2026… is now earlier than 2026…"), Why.SKEWED),
        (client_error("InvalidSignatureException", "Signature not yet current"), Why.SKEWED),
        (client_error("RequestTimeTooSkewed"), Why.SKEWED),
        (client_error("RequestLimitExceeded", status=503), Why.UNREACHABLE),
        (client_error("SomethingNew", status=500), Why.UNREACHABLE),
        (client_error("SomethingNew"), Why.REFUSED),
        (boto.NoCredentialsError(), Why.NO_CREDENTIALS),
        (boto.ProfileNotFound(profile="x"), Why.NO_CREDENTIALS),
        (boto.UnauthorizedSSOTokenError(), Why.EXPIRED),
        (boto.TokenRetrievalError(provider="sso", error_msg="expired"), Why.EXPIRED),
        (boto.EndpointConnectionError(endpoint_url="https://x"), Why.UNREACHABLE),
        (boto.ReadTimeoutError(endpoint_url="https://x"), Why.UNREACHABLE),
    ],
)
def test_why_a_read_failed(error: Exception, why: Why) -> None:
    found = unread(error, "ec2:DescribeThings")
    assert (found.why, found.action) == (why, "ec2:DescribeThings")
    assert "\n" not in found.words
    ours = translate(error, "asking")
    ours.__cause__ = error
    assert unread(ours, "ec2:DescribeThings") == found


def test_words_are_the_code_and_the_message() -> None:
    assert unread(client_error("AccessDenied", "not you"), "s3:GetObject").words == "AccessDenied: not you"


def test_a_call_that_hangs_holds_up_nobody() -> None:
    never = threading.Event()
    readers = Readers(0.05)
    hanging, quick = readers.start("ec2:Hang", never.wait), readers.start("ec2:Quick", lambda: 7)
    assert quick.get() == 7
    found = hanging.get()
    never.set()
    assert found == Unread(Why.UNREACHABLE, "ec2:Hang", "no answer in time")


def test_what_is_no_fault_of_the_cloud_s_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Readers(5).start("x", lambda: 1 // 0).get()
