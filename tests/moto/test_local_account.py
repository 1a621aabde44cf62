"""The embedded cloud's account, ready as `setup` leaves one, and what a machine's role may do in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cloudtrain.provisioner.account.setup_plan import wanted
from cloudtrain.provisioner.adapters.account_setup import State
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from tests.moto.accounts import BUCKET, code, machine, states
from tests.moto.local_server import REGION, Cloud, serving


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("ready")) as cloud:
        yield cloud


@pytest.mark.parametrize("region", [REGION, "eu-west-1"])
def test_a_ready_account_is_as_setup_leaves_one(cloud: Cloud, region: str) -> None:
    assert set(states(cloud, wanted(ACCOUNT, region, "me")).values()) == {State.THERE}


@pytest.fixture(scope="module")
def on_machine(cloud: Cloud) -> Callable[[str], Any]:
    cloud.clients.client("s3", REGION).put_object(Bucket=BUCKET, Key="control/a/record.json", Body=b"{}")
    cloud.clients.client("s3", REGION).put_object(Bucket=BUCKET, Key="files/abc", Body=b"1")
    return machine(cloud)


def test_a_machine_reads_and_writes_jobs(on_machine: Callable[[str], Any]) -> None:
    s3 = on_machine("s3")
    etag = s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1", IfNoneMatch="*")["ETag"]
    s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"2", IfMatch=etag)
    assert s3.get_object(Bucket=BUCKET, Key="jobs/a/1")["Body"].read() == b"2"
    s3.head_object(Bucket=BUCKET, Key="jobs/a/1")
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="jobs/a/")["KeyCount"] == 1
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="jobs/a/2")["UploadId"]
    s3.upload_part(Bucket=BUCKET, Key="jobs/a/2", UploadId=upload, PartNumber=1, Body=b"1")
    s3.abort_multipart_upload(Bucket=BUCKET, Key="jobs/a/2", UploadId=upload)
    s3.put_object(Bucket=BUCKET, Key="jobs/a/checkpoints/1", Body=b"1")
    s3.delete_object(Bucket=BUCKET, Key="jobs/a/checkpoints/1")
    assert s3.get_object(Bucket=BUCKET, Key="files/abc")["Body"].read() == b"1"


@pytest.mark.parametrize(
    "call",
    [
        lambda s3: s3.get_object(Bucket=BUCKET, Key="control/a/record.json"),
        lambda s3: s3.put_object(Bucket=BUCKET, Key="control/a/record.json", Body=b""),
        lambda s3: s3.put_object(Bucket=BUCKET, Key="files/abc", Body=b""),
        lambda s3: s3.delete_object(Bucket=BUCKET, Key="jobs/a/1"),
        lambda s3: s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "control/a/record.json"}]}),
        lambda s3: s3.list_objects_v2(Bucket=BUCKET),
        lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="control/"),
        lambda s3: s3.list_objects_v2(Bucket=f"cloudtrain-{ACCOUNT}-eu-west-1-an", Prefix="control/"),
        lambda s3: s3.get_bucket_policy(Bucket=BUCKET),
        lambda s3: s3.delete_bucket_policy(Bucket=BUCKET),
        lambda s3: s3.copy_object(Bucket=BUCKET, Key="jobs/a/9", CopySource=f"{BUCKET}/control/a/record.json"),
    ],
)
def test_a_machine_does_nothing_else_in_the_bucket(
    cloud: Cloud, on_machine: Callable[[str], Any], call: Callable[[Any], object]
) -> None:
    assert code(lambda: call(on_machine("s3"))) == "AccessDenied"
    kept = cloud.clients.client("s3", REGION).get_object(Bucket=BUCKET, Key="control/a/record.json")
    assert kept["Body"].read() == b"{}"


@pytest.mark.parametrize(
    ("service", "call", "says"),
    [
        ("ec2", lambda ec2: ec2.describe_instances(), "UnauthorizedOperation"),
        ("ec2", lambda ec2: ec2.terminate_instances(InstanceIds=["i-0"]), "UnauthorizedOperation"),
        ("iam", lambda iam: iam.list_roles(), "AccessDenied"),
        ("ssm", lambda ssm: ssm.get_parameter(Name="/a"), "AccessDeniedException"),
        ("sts", lambda sts: sts.get_caller_identity(), ""),
    ],
)
def test_a_machine_does_nothing_elsewhere(
    on_machine: Callable[[str], Any], service: str, call: Callable[[Any], object], says: str
) -> None:
    assert code(lambda: call(on_machine(service))) == says


def test_a_role_that_lost_its_rights_does_nothing(cloud: Cloud, on_machine: Callable[[str], Any]) -> None:
    s3 = on_machine("s3")
    client.plant(cloud.local, "role-without-rights")
    try:
        assert code(lambda: s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1")) == "AccessDenied"
        cloud.clients.client("s3", "us-west-1").list_objects_v2(Bucket=f"cloudtrain-{ACCOUNT}-us-west-1-an")
    finally:
        client.plant_clear(cloud.local)
    assert code(lambda: s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1")) == ""
    assert states(cloud, wanted(ACCOUNT, "us-west-1", "me"))["role's bucket rights"] is State.THERE


def test_a_bucket_of_another_owner_is_denied(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    assert code(lambda: s3.head_bucket(Bucket=BUCKET, ExpectedBucketOwner=ACCOUNT)) == ""
    assert code(lambda: s3.head_bucket(Bucket=BUCKET, ExpectedBucketOwner="999999999999")) == "403"


def test_the_bucket_s_policy_holds_for_everybody(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    s3.create_bucket(Bucket="locked")
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::locked/secret/*"}
    s3.put_object(Bucket="locked", Key="secret/a", Body=b"1")
    s3.put_bucket_policy(Bucket="locked", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    assert code(lambda: s3.get_object(Bucket="locked", Key="secret/a")) == "AccessDenied"
    s3.put_object(Bucket="locked", Key="open", Body=b"1")
    assert s3.get_object(Bucket="locked", Key="open")["Body"].read() == b"1"
