"""What surrounds EC2: injected errors as botocore sees them, S3's promises, calls that nothing serves, control."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.localcloud import client
from tests.moto.local_server import KIND, REGION, Cloud, serving

BUCKET = f"cloudtrain-123456789012-{REGION}-an"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud


@pytest.fixture(autouse=True)
def no_faults(cloud: Cloud) -> Iterator[None]:
    yield
    client.fault_clear(cloud.local)


def failing(call: Any, **parameters: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return dict(caught.value.response)


# Injected errors


def test_no_capacity_is_one_call_per_pool_and_http_500(cloud: Cloud) -> None:
    client.fault_add(
        cloud.local,
        "RunInstances",
        "InsufficientInstanceCapacity",
        match={"zone_id": "use1-az4", "instance_type": KIND},
    )
    launch = cloud.clients.launcher(REGION).run_instances
    response = failing(launch, **cloud.request())
    assert response["Error"]["Code"] == "InsufficientInstanceCapacity"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert "use1-az4" in response["Error"]["Message"]
    cloud.run(SubnetId=cloud.subnets["use1-az6"])
    failing(launch, **cloud.request(InstanceMarketOptions=None))
    [fault] = client.fault_list(cloud.local)
    assert fault["met"] == 2
    assert [call["capacity_type"] for call in fault["calls"]] == ["spot", "on-demand"]


def test_botocore_repeats_throttled_calls_by_itself(cloud: Cloud) -> None:
    client.fault_add(cloud.local, "DescribeInstances", "RequestLimitExceeded", times=1)
    cloud.ec2.describe_instances()
    assert client.fault_list(cloud.local)[0]["met"] == 1


def test_a_lost_answer_is_a_call_that_was_carried_out(cloud: Cloud) -> None:
    client.fault_add(cloud.local, "RunInstances", "lost", times=1, lost=True)
    request = cloud.request()
    before = len(cloud.state.lives)
    with pytest.raises(ConnectionClosedError):
        cloud.clients.launcher(REGION).run_instances(**request)
    assert len(cloud.state.lives) == before + 1
    reply = cloud.clients.launcher(REGION).run_instances(**request)
    assert len(cloud.state.lives) == before + 1
    assert reply["Instances"][0]["InstanceId"] in cloud.state.lives


def test_a_delay_is_waited_for(cloud: Cloud) -> None:
    client.fault_add(cloud.local, "DescribeVpcs", "InvalidParameterValue", delay_s=0.2)
    began = time.monotonic()
    failing(cloud.ec2.describe_vpcs)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("service", "method", "parameters", "action", "code"),
    [
        ("s3", "get_object", {"Bucket": BUCKET, "Key": "k"}, "GetObject", "AccessDenied"),
        ("ssm", "get_parameter", {"Name": "/a"}, "GetParameter", "AccessDeniedException"),
        ("sts", "get_caller_identity", {}, "GetCallerIdentity", "InvalidClientTokenId"),
        ("iam", "get_role", {"RoleName": "r"}, "GetRole", "AccessDenied"),
        ("ec2", "describe_subnets", {}, "DescribeSubnets", "UnauthorizedOperation"),
    ],
)
def test_every_service_can_be_made_to_fail(
    cloud: Cloud, service: Any, method: str, parameters: dict[str, Any], action: str, code: str
) -> None:
    client.fault_add(cloud.local, action, code, message="because a test says so", status=403)
    response = failing(getattr(cloud.clients.client(service, REGION), method), **parameters)
    assert response["Error"]["Code"] == code
    assert response["Error"]["Message"] == "because a test says so"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_an_object_is_matched_by_its_key(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    client.fault_add(cloud.local, "PutObject", "AccessDenied", match={"key": "*/MANIFEST.json"})
    s3.put_object(Bucket=BUCKET, Key="jobs/a/part", Body=b"1")
    assert (
        failing(s3.put_object, Bucket=BUCKET, Key="jobs/a/MANIFEST.json", Body=b"1")["Error"]["Code"] == "AccessDenied"
    )


# Calls that nothing serves


def test_a_call_that_would_make_machines_of_air_is_refused_by_name(cloud: Cloud) -> None:
    error = failing(cloud.ec2.stop_instances, InstanceIds=["i-0123456789abcdef0"])["Error"]
    assert (error["Code"], "StopInstances" in error["Message"]) == ("UnsupportedOperation", True)


def test_a_call_that_moto_does_not_know_is_an_error_that_names_it(cloud: Cloud) -> None:
    error = failing(cloud.ec2.get_spot_placement_scores, TargetCapacity=1)["Error"]
    assert error["Code"] == "NotImplemented"
    assert "GetSpotPlacementScores" in error["Message"]


def test_a_failure_inside_is_an_error_that_names_the_call(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[bytes]:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(cloud.server.overlay, "_moto", broken)
    response = failing(cloud.clients.launcher(REGION).describe_vpcs)
    assert response["Error"]["Code"] == "InternalError"
    assert "ec2 DescribeVpcs" in response["Error"]["Message"]


# What exists from the start


def test_role_profile_and_bucket_are_there(cloud: Cloud) -> None:
    iam = cloud.clients.client("iam", REGION)
    profile = iam.get_instance_profile(InstanceProfileName="cloudtrain-machine")["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == ["cloudtrain-machine"]
    account = cloud.clients.client("sts", REGION).get_caller_identity()["Account"]
    for region in (REGION, "eu-north-1"):
        s3 = cloud.clients.client("s3", region)
        assert s3.head_bucket(Bucket=f"cloudtrain-{account}-{region}-an")["ResponseMetadata"]["HTTPStatusCode"] == 200


# S3


def test_one_of_many_conditional_writers_wins(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)

    def write(number: int) -> bool:
        try:
            s3.put_object(Bucket=BUCKET, Key="claim", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(24))) == 1


def test_one_of_many_swappers_wins_each_round(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    etag = s3.put_object(Bucket=BUCKET, Key="latest", Body=b"0")["ETag"]

    def swap(number: int) -> bool:
        try:
            s3.put_object(Bucket=BUCKET, Key="latest", Body=f"swap {number}".encode(), IfMatch=etag)
        except ClientError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(swap, range(24))) == 1


def test_a_writer_that_dies_in_the_middle_leaves_no_object(cloud: Cloud) -> None:
    with socket.create_connection(("127.0.0.1", cloud.local.port)) as half:
        head = f"PUT /{cloud.local.secret}/{BUCKET}/half HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
        scope = f"AWS4-HMAC-SHA256 Credential=local/20260101/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=0"
        half.sendall(f"{head}Authorization: {scope}\r\n\r\n".encode() + b"x" * 500)
        half.shutdown(socket.SHUT_WR)
        assert b"IncompleteBody" in half.makefile("rb").read()
    s3 = cloud.clients.client("s3", REGION)
    assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET, Prefix="half")


def test_an_upload_in_parts_and_its_condition(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="big")["UploadId"]
    part = s3.upload_part(Bucket=BUCKET, Key="big", UploadId=upload, PartNumber=1, Body=b"x" * 1000)
    whole: Any = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=BUCKET, Key="big", UploadId=upload, MultipartUpload=whole, IfNoneMatch="*")
    assert s3.get_object(Bucket=BUCKET, Key="big")["Body"].read() == b"x" * 1000


def test_odd_keys_and_lists_survive_the_way(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    keys = [f"odd/{name}" for name in ("a b", "a+b", "100%", "中文/ü", "q?x=1&y", "dot/../dot", "s3cret")]
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="odd/")["Contents"]
    assert sorted(item["Key"] for item in listed) == sorted(keys)
    assert all(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode() for key in keys)


# Control


@pytest.mark.parametrize("path", ["", "_local/health", "imds/i-1/latest/api/token", "guess/_local/health", BUCKET])
def test_nothing_is_told_without_the_secret(cloud: Cloud, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{cloud.local.port}/{path}", timeout=5)
    with caught.value as refusal:
        assert refusal.code == 403


def test_no_machine_is_launched_without_the_secret(cloud: Cloud) -> None:
    stranger = Clients("local", local_endpoint=f"http://127.0.0.1:{cloud.local.port}")
    assert failing(stranger.launcher(REGION).run_instances, **cloud.request())["Error"]["Code"] == "AuthFailure"


def test_control_needs_the_secret(cloud: Cloud) -> None:
    with pytest.raises(CloudtrainError):
        client.status(replace(cloud.local, secret="guess"))


def test_status_lists_machines_and_says_that_prices_are_simulated(cloud: Cloud) -> None:
    instance_id = cloud.up()
    status = client.status(cloud.local)
    machine = next(m for m in status["machines"] if m["instance_id"] == instance_id)
    assert (machine["state"], machine["zone_id"], machine["endpoint"]) == ("running", "use1-az4", "127.0.0.1:2222")
    assert status["note"] == "local, simulated prices"
    json.dumps(status)
