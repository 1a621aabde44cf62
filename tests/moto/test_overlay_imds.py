"""The machines' metadata service, asked by botocore's own fetcher and by hand."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from botocore.utils import InstanceMetadataFetcher

from cloudtrain.provisioner.localcloud import client
from tests.moto.local_server import Cloud, serving, tagged, until

METADATA = {"HttpTokens": "required", "HttpEndpoint": "enabled", "InstanceMetadataTags": "enabled"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud
        cloud.clock.ahead_s = 0.0


@pytest.fixture(scope="module")
def machine(cloud: Cloud) -> str:
    profile = {"Name": "cloudtrain-machine"}
    return cloud.up(MetadataOptions=METADATA, IamInstanceProfile=profile, TagSpecifications=tagged("meta"))


def ask(cloud: Cloud, instance_id: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    url = f"{cloud.state.endpoint_url}/imds/{instance_id}/latest/{path}"
    named = {f"X-aws-ec2-metadata-{name.replace('_', '-')}": value for name, value in headers.items()}
    request = urllib.request.Request(url, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def token(cloud: Cloud, instance_id: str, ttl_s: int = 60) -> str:
    status, text = ask(cloud, instance_id, "api/token", "PUT", token_ttl_seconds=str(ttl_s))
    assert status == 200
    return text


def read(cloud: Cloud, instance_id: str, path: str) -> tuple[int, str]:
    return ask(cloud, instance_id, f"meta-data/{path}", token=token(cloud, instance_id))


def test_botocore_gets_credentials_by_role(cloud: Cloud, machine: str) -> None:
    fetcher = InstanceMetadataFetcher(base_url=f"{cloud.state.endpoint_url}/imds/{machine}/", env={})
    found = fetcher.retrieve_iam_role_credentials()
    assert found["role_name"] == "cloudtrain-machine"
    assert found["access_key"].startswith("ASIA")
    assert found["token"]


def test_those_credentials_work_on_s3(cloud: Cloud, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    import botocore.session

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    for name, value in cloud.hosts[machine].spec.env.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session(botocore_session=botocore.session.Session())
    credentials = session.get_credentials()
    assert credentials is not None
    assert credentials.method == "iam-role"
    s3 = session.client("s3")
    s3.put_object(Bucket="cloudtrain-123456789012-us-east-1-an", Key="jobs/a/from-host", Body=b"1")
    for key in ("control/a/record.json", "elsewhere"):  # its role reaches the jobs' part of the bucket alone
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket="cloudtrain-123456789012-us-east-1-an", Key=key, Body=b"1")


def test_without_a_token_nothing_is_told(cloud: Cloud, machine: str) -> None:
    assert ask(cloud, machine, "meta-data/instance-id")[0] == 401
    assert ask(cloud, machine, "meta-data/instance-id", token="guess")[0] == 401


def test_a_token_expires(cloud: Cloud, machine: str) -> None:
    short = token(cloud, machine, 30)
    assert ask(cloud, machine, "meta-data/instance-id", token=short) == (200, machine)
    cloud.clock.ahead_s += 31
    assert ask(cloud, machine, "meta-data/instance-id", token=short)[0] == 401


def test_a_token_of_another_machine_is_no_token(cloud: Cloud, machine: str) -> None:
    other = cloud.up(MetadataOptions=METADATA)
    assert ask(cloud, machine, "meta-data/instance-id", token=token(cloud, other))[0] == 401


@pytest.mark.parametrize("ttl", ["0", "21601", "soon", ""])
def test_a_token_needs_a_sound_lifetime(cloud: Cloud, machine: str, ttl: str) -> None:
    assert ask(cloud, machine, "api/token", "PUT", token_ttl_seconds=ttl)[0] == 400


def test_tokens_are_optional_where_the_launch_said_so(cloud: Cloud) -> None:
    free = cloud.up(MetadataOptions={"HttpTokens": "optional"})
    assert ask(cloud, free, "meta-data/instance-id") == (200, free)


def test_a_machine_knows_what_and_where_it_is(cloud: Cloud, machine: str) -> None:
    assert read(cloud, machine, "instance-id") == (200, machine)
    assert read(cloud, machine, "instance-type") == (200, "g4dn.xlarge")
    assert read(cloud, machine, "placement/availability-zone-id") == (200, "use1-az4")
    assert read(cloud, machine, "placement/region") == (200, "us-east-1")
    assert read(cloud, machine, "nothing/here")[0] == 404


def test_tags_are_told_where_the_launch_said_so(cloud: Cloud, machine: str) -> None:
    assert "cloudtrain:job" in read(cloud, machine, "tags/instance")[1].splitlines()
    assert read(cloud, machine, "tags/instance/cloudtrain:job") == (200, "meta")
    silent = cloud.up(TagSpecifications=tagged("quiet"))
    assert read(cloud, silent, "tags/instance")[0] == 404


def test_user_data_is_told(cloud: Cloud, machine: str) -> None:
    assert ask(cloud, machine, "user-data", token=token(cloud, machine)) == (200, "#cloud-config\n")


def test_no_role_without_a_profile(cloud: Cloud) -> None:
    plain = cloud.up()
    assert read(cloud, plain, "iam/security-credentials/")[0] == 404


def test_a_notice_and_its_time(cloud: Cloud) -> None:
    machine = cloud.up(MetadataOptions=METADATA, TagSpecifications=tagged("notice"))
    assert read(cloud, machine, "spot/instance-action")[0] == 404
    assert read(cloud, machine, "events/recommendations/rebalance")[0] == 404
    client.interrupt(cloud.local, "notice", notice_s=100)
    status, text = until(lambda: read(cloud, machine, "spot/instance-action"), lambda found: found[0] == 200)
    action = json.loads(text)
    assert (status, action["action"]) == (200, "terminate")
    assert action["time"].endswith("Z")
    assert read(cloud, machine, "events/recommendations/rebalance")[0] == 404


def test_a_recommendation_alone_takes_nothing(cloud: Cloud) -> None:
    machine = cloud.up(MetadataOptions=METADATA, TagSpecifications=tagged("hint"))
    client.interrupt(cloud.local, "hint", notice_s=None, rebalance=True)
    path = "events/recommendations/rebalance"
    _, text = until(lambda: read(cloud, machine, path), lambda found: found[0] == 200)
    assert set(json.loads(text)) == {"noticeTime"}
    assert read(cloud, machine, "spot/instance-action")[0] == 404
    assert cloud.spot_request(machine)["State"] == "active"


def test_a_machine_that_is_gone_has_no_metadata(cloud: Cloud) -> None:
    machine = cloud.up(MetadataOptions=METADATA)
    held = token(cloud, machine)
    cloud.ec2.terminate_instances(InstanceIds=[machine])
    cloud.wait(machine, "terminated")
    assert ask(cloud, machine, "meta-data/instance-id", token=held)[0] == 404
