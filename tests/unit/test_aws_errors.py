from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import botocore.exceptions as boto
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.parsers import ResponseParserError

from cloudtrain.provisioner.adapters.aws_codes import ROWS, Kind
from cloudtrain.provisioner.adapters.aws_errors import decoder, translate, translated
from cloudtrain.provisioner.adapters.clients import Clients
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
    Scope,
    UsageError,
)
from cloudtrain.provisioner.localcloud.faults import HTTP_STATUS
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


def refused(
    code: str, message: str = "No, said AWS.", status: int = 400, headers: dict[str, str] | None = None
) -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "RequestId": "req-1",
                "HTTPStatusCode": status,
                "HTTPHeaders": headers or {},
                "RetryAttempts": 0,
                "HostId": "",
            },
        },
        "RunInstances",
    )


@pytest.mark.parametrize("code", sorted(ROWS))
def test_each_row(code: str) -> None:
    """With the HTTP status that the code comes with: which class, how far it reaches, what the person can do."""
    expected = ROWS[code]
    error = translate(refused(code, status=expected.status), "launch in aws/us-east-1/use1-az4/g4dn.xlarge/spot")
    assert type(error) is CLASSES[expected.kind]
    text = str(error)
    assert text.startswith("launch in aws/us-east-1/use1-az4/g4dn.xlarge/spot: ")
    assert code in text
    assert "req-1" in text
    assert "\n" not in text
    assert expected.advice in text
    if isinstance(error, CloudError | QuotaExceeded):
        assert error.code == code
    if isinstance(error, PoolUnavailable | QuotaExceeded):
        assert error.scope is expected.scope
    if isinstance(error, PoolUnavailable | RegionDenied):
        assert error.lasting is expected.lasting
    if isinstance(error, CloudUnreachable):
        assert error.broken is expected.broken


EC2_CODES = sorted(c for c in ROWS if not c.isdecimal() and c not in ("NoSuchBucket", "NoSuchKey", "NoSuchUpload"))


@pytest.fixture(scope="module")
def launcher() -> Iterator[Any]:
    """EC2's client for launches, whose requests leave this process nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield Clients("aws").launcher("us-east-1")


@pytest.mark.parametrize("code", EC2_CODES)
def test_each_row_over_the_wire_is_one_request(code: str, launcher: Any) -> None:
    """As EC2 answers, with the code's own HTTP status: botocore repeats none of them, not even the 5xx of capacity."""
    expected, sent = ROWS[code], []

    def answer(request: Any, **_: Any) -> Any:
        sent.append(request.url)
        body = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>No, said AWS.</Message></Error></Errors>"
            "<RequestID>req-1</RequestID></Response>"
        )
        reply: Any = AWSResponse(request.url, expected.status, HTTPHeaders(), None)
        reply._content = body.encode()
        return reply

    launcher.meta.events.register_first("before-send.ec2.RunInstances", answer)
    try:
        with pytest.raises(CloudtrainError) as caught, translated("launch", launching=True):
            launcher.run_instances(MinCount=1, MaxCount=1)
    finally:
        launcher.meta.events.unregister("before-send.ec2.RunInstances", answer)
    assert len(sent) == 1
    assert type(caught.value) is CLASSES[expected.kind]
    assert f"{code}" in str(caught.value)
    assert "(request req-1)" in str(caught.value)


# What a code of 2.2 reaches; the table itself can't tell that it is wrong.
REACHES = {
    Scope.POOL: ("InsufficientInstanceCapacity", "UnfulfillableCapacity", "InsufficientCapacity", "SpotMaxPriceTooLow"),
    Scope.PLACE: (
        *("InsufficientHostCapacity", "InsufficientReservedInstanceCapacity", "ReservationCapacityExceeded"),
        *("Unsupported", "InvalidInstanceType.NotFound"),
    ),
    Scope.SUBNET: ("InsufficientFreeAddressesInSubnet", "InvalidSubnetID.NotFound"),
    Scope.QUOTA: ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded"),
    Scope.IMAGE: ("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidAMIID.Malformed", "ParameterNotFound"),
    Scope.REGION: (
        *("MaxFleetCountExceeded", "MaxSpotFleetRequestCountExceeded", "VolumeLimitExceeded", "MaxIOPSLimitExceeded"),
        *("OptInRequired", "PendingVerification", "UnauthorizedOperation", "AuthFailure"),
    ),
    Scope.NONE: (
        *("RequestLimitExceeded", "EC2ThrottledException", "Throttling", "SlowDown", "InternalError", "Unavailable"),
        *("InternalFailure", "ServiceUnavailable", "IdempotentParameterMismatch", "IdempotentInstanceTerminated"),
        "InvalidGroup.NotFound",
    ),
    Scope.REQUEST: (
        *("InvalidParameterValue", "InvalidParameterCombination", "MissingParameter", "ValidationError"),
        *("InvalidUserData.Malformed", "InvalidKeyPair.NotFound"),
    ),
    Scope.ACCOUNT: (
        *(
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "ExpiredToken",
            "RequestExpired",
            "InvalidClientTokenId",
        ),
        *("RequestTimeTooSkewed", "Blocked", "AccountDisabled"),
    ),
    Scope.RESOURCE: ("InvalidInstanceID.NotFound", "OperationNotPermitted", "IncorrectInstanceState"),
}


@pytest.mark.parametrize(("scope", "codes"), REACHES.items())
def test_how_far_each_code_reaches(scope: Scope, codes: tuple[str, ...]) -> None:
    assert {code: ROWS[code].scope for code in codes} == dict.fromkeys(codes, scope)


def test_capacity_and_throttling_come_with_the_server_status_that_botocore_would_retry() -> None:
    for code in ("InsufficientInstanceCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity"):
        assert ROWS[code].status == 500
        assert type(translate(refused(code, status=500), "launch")) is PoolUnavailable
    for code in ("RequestLimitExceeded", "EC2ThrottledException", "SlowDown"):
        assert ROWS[code].status == 503


def test_the_embedded_cloud_refuses_with_the_same_status() -> None:
    assert {code: ROWS[code].status for code in HTTP_STATUS} == HTTP_STATUS


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
    assert (error.code, error.scope, error.lasting) == ("BrandNewCode", Scope.POOL, True)
    assert "BrandNewCode: No, said AWS. (request req-1); this code is unknown here" in str(error)


def test_and_any_other_call_is_refused_by_its_name() -> None:
    error = translate(refused("BrandNewCode"), "terminate")
    assert type(error) is CloudError
    assert error.code == "BrandNewCode"


def test_an_unknown_server_error_says_nothing_about_the_call() -> None:
    error = translate(refused("BrandNewCode", status=502), "launch", launching=True)
    assert type(error) is CloudUnreachable
    assert error.broken, "asked again a few times, then the next pool"


def test_a_missing_instance_profile_is_not_a_bug_of_ours() -> None:
    text = "Value (nobody) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    assert type(translate(refused("InvalidParameterValue", text), "launch")) is AccessError


def test_a_type_that_a_region_does_not_know_costs_its_pools_alone() -> None:
    text = "Invalid value 'g6e.xlarge' for InstanceType."
    assert type(translate(refused("InvalidParameterValue", text), "launch", launching=True)) is PoolUnavailable


def test_a_free_plan_is_no_bug_of_ours_and_every_pools() -> None:
    text = "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run …"
    error = translate(refused("InvalidParameterCombination", text), "launch", launching=True)
    assert type(error) is AccessError
    assert "upgrade the plan" in str(error)


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


ENCODED = "You are not authorized to perform this operation. Encoded authorization failure message: a-secret_text"


def test_a_refusal_for_want_of_a_permission_names_it() -> None:
    asked: list[str] = []

    def decode(encoded: str) -> str:
        asked.append(encoded)
        return "ec2:RunInstances on arn:aws:ec2:us-east-1:123456789012:volume/*"

    text = str(translate(refused("UnauthorizedOperation", ENCODED, 403), "launch", decode=decode))
    assert asked == ["a-secret_text"]
    assert "(ec2:RunInstances on arn:aws:ec2:us-east-1:123456789012:volume/*)" in text
    assert "a-secret_text" not in text
    assert "administrator" in text


class Sts:
    """STS that answers a decoding so, or refuses it."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer

    def client(self, service: str, region: str) -> Sts:
        assert (service, region) == ("sts", "eu-west-1")
        return self

    def decode_authorization_message(self, *, EncodedMessage: str) -> dict[str, str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"DecodedMessage": self.answer}


TOLD = (
    '{"allowed": false, "explicitDeny": false, "matchedStatements": {"items": []}, "context": {"principal": {"id": '
    '"AIDAEXAMPLE", "arn": "arn:aws:iam::123456789012:user/ann"}, "action": "ec2:RunInstances", "resource": '
    '"arn:aws:ec2:eu-west-1:123456789012:instance/*", "conditions": {"items": [{"key": "aws:Region"}]}}}'
)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (TOLD, "ec2:RunInstances on arn:aws:ec2:eu-west-1:123456789012:instance/*"),
        (refused("AccessDenied", status=403), None),
        (boto.EndpointConnectionError(endpoint_url="https://sts"), None),
        ("not JSON", None),
        ('{"context": {}}', None),
        ("[]", None),
    ],
)
def test_a_decoded_message_tells_action_and_resource_alone(answer: str | Exception, wanted: str | None) -> None:
    clients: Any = Sts(answer)
    assert decoder(clients, "eu-west-1")("xyz") == wanted


@pytest.mark.parametrize(
    ("code", "status"),
    [("RequestTimeTooSkewed", 403), ("AuthFailure", 401), ("RequestExpired", 400), ("SignatureDoesNotMatch", 403)],
)
def test_a_clock_that_is_off_is_told_in_seconds(code: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_614.0)
    date = formatdate(1_800_000_000.0, usegmt=True)
    text = str(translate(refused(code, status=status, headers={"date": date}), "launch"))
    assert "this computer's clock is 614 s ahead of AWS's: set it" in text
    monkeypatch.setattr("time.time", lambda: 1_799_999_400.0)
    assert "600 s behind" in str(translate(refused(code, status=status, headers={"date": date}), "launch"))


@pytest.mark.parametrize("date", ["", "yesterday", formatdate(1_800_000_000.0, usegmt=True)])
def test_a_clock_that_is_right_or_unknown_is_not_blamed(date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_002.0)
    assert "clock" not in str(translate(refused("AuthFailure", status=401, headers={"date": date}), "launch"))


def test_the_missing_spot_role_comes_with_the_command_that_makes_it() -> None:
    text = str(translate(refused("AuthFailure.ServiceLinkedRoleCreationNotPermitted", status=403), "launch"))
    assert "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com" in text
