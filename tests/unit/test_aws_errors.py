from __future__ import annotations

import ssl

import botocore.exceptions as boto
import pytest
from botocore.parsers import ResponseParserError

from cloudtrain.provisioner.adapters.aws_errors import ROWS, Kind, translate, translated
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
from cloudtrain.trainer import storage

CLASSES = {
    Kind.POOL: PoolUnavailable,
    Kind.QUOTA: QuotaExceeded,
    Kind.ACCESS: AccessError,
    Kind.REGION: RegionDenied,
    Kind.OVER: AttemptOver,
    Kind.UNKNOWN: CloudUnreachable,
    Kind.REQUEST: UsageError,
    Kind.MISSING: NotFound,
    Kind.CONFLICT: Conflict,
    Kind.REFUSED: CloudError,
}


def refused(code: str, message: str = "No, said AWS.", status: int = 400) -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "RequestId": "req-1",
                "HTTPStatusCode": status,
                "HTTPHeaders": {},
                "RetryAttempts": 0,
                "HostId": "",
            },
        },
        "RunInstances",
    )


@pytest.mark.parametrize("code", sorted(ROWS))
def test_each_row(code: str) -> None:
    error = translate(refused(code), "launch in aws/us-east-1/use1-az4/g4dn.xlarge/spot")
    assert type(error) is CLASSES[ROWS[code].kind]
    text = str(error)
    assert text.startswith("launch in aws/us-east-1/use1-az4/g4dn.xlarge/spot: ")
    assert code in text
    assert "req-1" in text
    assert "\n" not in text
    assert ROWS[code].advice in text
    if isinstance(error, CloudError | QuotaExceeded):
        assert error.code == code


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("InsufficientInstanceCapacity", 500, PoolUnavailable),
        ("UnfulfillableCapacity", 500, PoolUnavailable),
        ("InsufficientFreeAddressesInSubnet", 400, PoolUnavailable),
        ("SpotMaxPriceTooLow", 400, PoolUnavailable),
        ("Unsupported", 400, PoolUnavailable),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
        ("VcpuLimitExceeded", 400, QuotaExceeded),
        ("RequestLimitExceeded", 503, CloudUnreachable),
        ("InternalError", 500, CloudUnreachable),
        ("IdempotentParameterMismatch", 400, AttemptOver),
        ("IdempotentInstanceTerminated", 400, AttemptOver),
        ("InvalidParameterValue", 400, UsageError),
        ("UnauthorizedOperation", 403, RegionDenied),
        ("AuthFailure", 401, RegionDenied),
        ("400", 400, AccessError),
        ("InvalidGroup.Duplicate", 400, CloudUnreachable),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, AccessError),
        ("RequestExpired", 400, AccessError),
        ("InvalidInstanceID.NotFound", 400, NotFound),
        ("NoSuchBucket", 404, AccessError),
        ("PreconditionFailed", 412, Conflict),
    ],
)
def test_what_matters_most(code: str, status: int, wanted: type[CloudtrainError]) -> None:
    assert type(translate(refused(code, status=status), "launch")) is wanted


def test_a_code_that_nobody_has_met_ends_the_pool_and_is_named() -> None:
    error = translate(refused("BrandNewCode"), "launch", launching=True)
    assert type(error) is PoolUnavailable
    assert error.code == "BrandNewCode"
    assert "unknown here" in str(error)


def test_and_any_other_call_is_refused_by_its_name() -> None:
    error = translate(refused("BrandNewCode"), "terminate")
    assert type(error) is CloudError
    assert error.code == "BrandNewCode"


def test_an_unknown_server_error_says_nothing_about_the_call() -> None:
    assert type(translate(refused("BrandNewCode", status=502), "launch")) is CloudUnreachable


def test_a_missing_instance_profile_is_not_a_bug_of_ours() -> None:
    text = "Value (nobody) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    assert type(translate(refused("InvalidParameterValue", text), "launch")) is AccessError


def test_a_type_that_a_region_does_not_know_costs_its_pools_alone() -> None:
    text = "Invalid value 'g6e.xlarge' for InstanceType."
    assert type(translate(refused("InvalidParameterValue", text), "launch", launching=True)) is PoolUnavailable


def test_long_and_encoded_messages_are_cut() -> None:
    encoded = "You are not authorized to perform this operation. Encoded authorization failure message: " + "x" * 900
    text = str(translate(refused("UnauthorizedOperation", encoded), "launch"))
    assert "xxxx" not in text
    assert "not authorized" in text
    assert len(str(translate(refused("Unsupported", "a\nb " * 900), "launch"))) < 800


NO_ANSWER = [
    boto.EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    boto.ConnectTimeoutError(endpoint_url="http://127.0.0.1:1"),
    boto.ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
    boto.ConnectionClosedError(endpoint_url="http://127.0.0.1:1"),
    boto.SSLError(endpoint_url="http://127.0.0.1:1", error=ssl.SSLError("bad record")),
    boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ResponseParserError("an HTML page"),
]


@pytest.mark.parametrize("error", NO_ANSWER, ids=lambda e: type(e).__name__)
def test_no_answer_is_unreachable_and_gone_only_with_a_dead_daemon(error: Exception) -> None:
    assert type(translate(error, "launch")) is CloudUnreachable
    assert type(translate(error, "launch", is_dead=lambda: False)) is CloudUnreachable
    assert type(translate(error, "launch", is_dead=lambda: True)) is CloudGone


@pytest.mark.parametrize(
    "error",
    [
        boto.NoCredentialsError(),
        boto.ProfileNotFound(profile="nobody"),
        boto.PartialCredentialsError(provider="env", cred_var="x"),
        boto.CredentialRetrievalError(provider="process", error_msg="no"),
        boto.SSOTokenLoadError(error_msg="expired"),
        boto.UnauthorizedSSOTokenError(),
        boto.TokenRetrievalError(provider="sso", error_msg="expired"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_broken_credentials_are_an_access_error(error: Exception) -> None:
    assert type(translate(error, "launch", is_dead=lambda: True)) is AccessError


def test_a_request_that_botocore_refuses_is_wrong() -> None:
    assert type(translate(boto.ParamValidationError(report="Missing\nImageId"), "launch")) is UsageError


def test_the_block_form_keeps_the_cause_and_lets_others_through() -> None:
    with pytest.raises(PoolUnavailable) as caught, translated("launch"):
        raise refused("InsufficientInstanceCapacity", status=500)
    assert isinstance(caught.value.__cause__, boto.ClientError)
    with pytest.raises(KeyError), translated("launch"):
        raise KeyError


def test_the_embedded_clouds_secret_path_stays_out_of_messages() -> None:
    url = "http://127.0.0.1:4242/0123456789abcdef/bucket/key"
    for lost in (boto.ConnectionClosedError(endpoint_url=url), boto.EndpointConnectionError(endpoint_url=url)):
        for text in (str(translate(lost, "bucket b")), str(storage._translate(lost, "read b/k"))):
            assert "0123456789abcdef" not in text
            assert "127.0.0.1:4242" in text
