"""Each account fault, seen through the calls that a person's tools would make; all is back when it is cleared."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.provisioner.adapters.images import IMAGES
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.plants import PLANTS, SPOT_ROLE, SPOT_ROLE_ARN
from cloudtrain.provisioner.names import INSTANCE_PROFILE
from tests.moto.accounts import BUCKET, PROFILE, code
from tests.moto.local_server import KIND, REGION, ZONE, Cloud, serving

PARAMETER = IMAGES["g4dn"].ssm_parameter
ON_DEMAND: dict[str, Any] = {"InstanceMarketOptions": None}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("planted")) as cloud:
        yield cloud


@pytest.fixture
def cloud(shared: Cloud) -> Iterator[Cloud]:
    yield shared
    client.plant_clear(shared.local)


def plant(cloud: Cloud, name: str, region: str | None = None) -> None:
    client.plant(cloud.local, name, region)


def dry_run(cloud: Cloud, **changes: Any) -> str:
    """What RunInstances says to a dry run."""
    return code(lambda: cloud.clients.launcher(REGION).run_instances(**cloud.request(**changes), DryRun=True))


def launch(cloud: Cloud, **changes: Any) -> str:
    """What RunInstances says; nothing may have been made where it says no."""
    before = len(cloud.state.lives)
    found = code(lambda: cloud.run(**changes))
    assert len(cloud.state.lives) == before + (found == "")
    return found


def quota(cloud: Cloud, quota_code: str, region: str = REGION) -> float:
    quotas = cloud.clients.client("service-quotas", region)
    return float(quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota_code)["Quota"]["Value"])


def test_without_a_fault_a_dry_run_would_have_succeeded(cloud: Cloud) -> None:
    assert dry_run(cloud, **PROFILE) == dry_run(cloud, **ON_DEMAND) == "DryRunOperation"
    assert cloud.state.lives == {}


@pytest.mark.parametrize(
    ("name", "market", "says", "quota_code"),
    [
        ("quota-spot-zero", {}, "MaxSpotInstanceCountExceeded", "L-3819A6DF"),
        ("quota-on-demand-zero", ON_DEMAND, "VcpuLimitExceeded", "L-DB2E81BA"),
    ],
)
def test_a_quota_of_zero(cloud: Cloud, name: str, market: dict[str, Any], says: str, quota_code: str) -> None:
    assert quota(cloud, quota_code) > 0
    plant(cloud, name, REGION)
    assert dry_run(cloud, **market) == launch(cloud, **market) == says
    assert quota(cloud, quota_code) == 0
    assert quota(cloud, quota_code, "us-west-2") > 0
    pages = cloud.clients.client("service-quotas", REGION).get_paginator("list_service_quotas")
    listed = {q["QuotaCode"]: q["Value"] for p in pages.paginate(ServiceCode="ec2") for q in p["Quotas"]}
    assert listed[quota_code] == 0
    assert listed["L-1216C47A"] > 0
    other = ON_DEMAND if market == {} else {}
    assert dry_run(cloud, **other) == "DryRunOperation"


def test_the_quota_of_p5_alone(cloud: Cloud) -> None:
    plant(cloud, "quota-p5-spot-zero")
    assert quota(cloud, "L-C4BD4855") == 0
    assert quota(cloud, "L-7212CCBC") > 0
    assert dry_run(cloud) == "DryRunOperation"


def test_no_default_vpc(cloud: Cloud) -> None:
    plant(cloud, "no-default-vpc", REGION)
    assert cloud.ec2.describe_vpcs()["Vpcs"] == []
    assert cloud.ec2.describe_subnets()["Subnets"] == []
    assert cloud.ec2.describe_security_groups()["SecurityGroups"] == []
    assert cloud.ec2.describe_route_tables()["RouteTables"] == []
    assert dry_run(cloud) == launch(cloud) == "InvalidSubnetID.NotFound"
    assert dry_run(cloud, SubnetId=None) == "VPCIdNotSpecified"
    other = cloud.clients.client("ec2", "us-west-2").describe_vpcs()["Vpcs"]
    assert [vpc["IsDefault"] for vpc in other] == [True]
    client.plant_clear(cloud.local)
    assert dry_run(cloud) == "DryRunOperation"


def test_what_is_made_anew_meanwhile_stays(cloud: Cloud) -> None:
    region = "eu-west-1"
    ec2 = cloud.clients.client("ec2", region)
    plant(cloud, "no-default-vpc", region)
    assert ec2.describe_vpcs()["Vpcs"] == []
    made = ec2.create_default_vpc()["Vpc"]["VpcId"]
    client.plant_clear(cloud.local)
    assert [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"]] == [made]


def test_no_subnet(cloud: Cloud) -> None:
    plant(cloud, "no-subnet")
    assert len(cloud.ec2.describe_vpcs()["Vpcs"]) == 1
    assert cloud.ec2.describe_subnets()["Subnets"] == []
    assert dry_run(cloud) == "InvalidSubnetID.NotFound"
    assert dry_run(cloud, SubnetId=None) == "MissingInput"


def test_no_route(cloud: Cloud) -> None:
    def gateways() -> list[str]:
        [table] = cloud.ec2.describe_route_tables(Filters=[{"Name": "association.main", "Values": ["true"]}])[
            "RouteTables"
        ]
        return [r.get("GatewayId", "")[:3] for r in table["Routes"] if r.get("DestinationCidrBlock") == "0.0.0.0/0"]

    assert gateways() == ["igw"]
    plant(cloud, "no-route")
    assert gateways() == []


def test_no_bucket(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1")
    plant(cloud, "no-bucket")
    assert code(lambda: s3.head_bucket(Bucket=BUCKET)) == "404"
    assert code(lambda: s3.put_object(Bucket=BUCKET, Key="jobs/a/2", Body=b"1")) == "NoSuchBucket"
    assert BUCKET not in [b["Name"] for b in s3.list_buckets()["Buckets"]]
    client.plant_clear(cloud.local)
    assert s3.get_object(Bucket=BUCKET, Key="jobs/a/1")["Body"].read() == b"1"


def test_a_bucket_without_rights(cloud: Cloud) -> None:
    s3 = cloud.clients.client("s3", REGION)
    plant(cloud, "bucket-denied")
    assert code(lambda: s3.head_bucket(Bucket=BUCKET)) == "403"
    assert code(lambda: s3.put_object(Bucket=BUCKET, Key="jobs/a/1", Body=b"1")) == "AccessDenied"
    assert code(lambda: s3.list_objects_v2(Bucket=BUCKET)) == "AccessDenied"


def test_no_role(cloud: Cloud) -> None:
    iam = cloud.clients.client("iam", REGION)
    plant(cloud, "no-role")
    assert code(lambda: iam.get_role(RoleName=INSTANCE_PROFILE)) == "NoSuchEntity"
    assert code(lambda: iam.get_instance_profile(InstanceProfileName=INSTANCE_PROFILE)) == "NoSuchEntity"
    assert dry_run(cloud, **PROFILE) == launch(cloud, **PROFILE) == "InvalidParameterValue"
    client.plant_clear(cloud.local)
    assert dry_run(cloud, **PROFILE) == "DryRunOperation"


def test_a_role_without_rights(cloud: Cloud) -> None:
    iam = cloud.clients.client("iam", REGION)

    def decision() -> str:
        found = iam.simulate_principal_policy(
            PolicySourceArn=f"arn:aws:iam::{ACCOUNT}:role/{INSTANCE_PROFILE}",
            ActionNames=["s3:PutObject"],
            ResourceArns=[f"arn:aws:s3:::{BUCKET}/jobs/a/1"],
            ContextEntries=[
                {"ContextKeyName": "aws:ResourceAccount", "ContextKeyType": "string", "ContextKeyValues": [ACCOUNT]}
            ],
        )
        return str(found["EvaluationResults"][0]["EvalDecision"])

    assert decision() == "allowed"
    plant(cloud, "role-without-rights")
    assert decision() == "implicitDeny"
    assert iam.list_role_policies(RoleName=INSTANCE_PROFILE)["PolicyNames"] == []
    assert iam.list_attached_role_policies(RoleName=INSTANCE_PROFILE)["AttachedPolicies"] == []
    client.plant_clear(cloud.local)
    assert decision() == "allowed"


def test_no_spot_role(cloud: Cloud) -> None:
    iam = cloud.clients.client("iam", REGION)
    assert iam.get_role(RoleName=SPOT_ROLE)["Role"]["Arn"] == SPOT_ROLE_ARN
    plant(cloud, "no-spot-role")
    assert code(lambda: iam.get_role(RoleName=SPOT_ROLE)) == "NoSuchEntity"
    assert code(lambda: iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")) == "AccessDenied"
    assert dry_run(cloud) == launch(cloud) == "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    assert dry_run(cloud, **ON_DEMAND) == "DryRunOperation"
    client.plant_clear(cloud.local)
    assert code(lambda: iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")) == "InvalidInput"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("denied-run-instances", {}), ("denied-pass-role", PROFILE), ("denied-run-instances", PROFILE)],
)
def test_launching_is_denied(cloud: Cloud, name: str, changes: dict[str, Any]) -> None:
    plant(cloud, name)
    assert dry_run(cloud, **changes) == launch(cloud, **changes) == "UnauthorizedOperation"
    assert code(cloud.ec2.describe_vpcs) == ""


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("denied-run-instances", "ec2:RunInstances"),
        ("denied-describe", "ec2:DescribeVpcs"),
        ("denied-pass-role", "iam:PassRole"),
        ("no-spot-role", "iam:CreateServiceLinkedRole"),
        ("bucket-denied", "s3:PutObject"),
    ],
)
def test_a_simulation_of_your_rights_says_so_too(cloud: Cloud, name: str, action: str) -> None:
    def decisions() -> list[str]:
        me = cloud.clients.client("sts", REGION).get_caller_identity()["Arn"]
        found = cloud.clients.client("iam", REGION).simulate_principal_policy(
            PolicySourceArn=me, ActionNames=[action, "ec2:CreateSecurityGroup"]
        )
        return [result["EvalDecision"] for result in found["EvaluationResults"]]

    assert decisions() == ["allowed", "allowed"]
    plant(cloud, name)
    assert decisions() == ["implicitDeny", "allowed"]


def test_looking_is_denied(cloud: Cloud) -> None:
    plant(cloud, "denied-describe")
    assert code(cloud.ec2.describe_vpcs) == code(cloud.ec2.describe_regions) == "UnauthorizedOperation"
    assert dry_run(cloud) == "DryRunOperation"


@pytest.mark.parametrize(
    ("name", "sts", "ec2", "s3", "json"),
    [
        ("expired-token", "ExpiredToken", "RequestExpired", "ExpiredToken", "ExpiredTokenException"),
        ("no-credentials", "InvalidClientTokenId", "AuthFailure", "InvalidAccessKeyId", "UnrecognizedClientException"),
        ("clock-skew", "SignatureDoesNotMatch", "AuthFailure", "RequestTimeTooSkewed", "InvalidSignatureException"),
    ],
)
def test_who_calls_is_not_known(cloud: Cloud, name: str, sts: str, ec2: str, s3: str, json: str) -> None:
    plant(cloud, name)
    clients = cloud.clients
    assert code(clients.client("sts", REGION).get_caller_identity) == sts
    assert code(cloud.ec2.describe_regions) == dry_run(cloud) == ec2
    assert code(lambda: clients.client("s3", REGION).list_objects_v2(Bucket=BUCKET)) == s3
    assert code(lambda: clients.client("ssm", REGION).get_parameter(Name=PARAMETER)) == json
    assert code(lambda: quota(cloud, "L-3819A6DF")) == json


def test_the_date_of_an_answer_is_that_of_the_clock(cloud: Cloud) -> None:
    def off_s() -> float:
        try:
            about: Any = cloud.clients.client("sts", REGION).get_caller_identity()["ResponseMetadata"]
        except ClientError as error:
            about = error.response["ResponseMetadata"]
        date = parsedate_to_datetime(about["HTTPHeaders"]["date"])
        return (date.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()

    assert abs(off_s()) < 5
    plant(cloud, "clock-skew")
    assert abs(off_s() - 1200) < 5


def test_a_region_that_is_off(cloud: Cloud) -> None:
    off, west = "us-west-2", cloud.clients.client("ec2", "us-west-2")
    plant(cloud, "region-off", off)
    shown = {r["RegionName"]: r["OptInStatus"] for r in cloud.ec2.describe_regions(AllRegions=True)["Regions"]}
    assert shown[off] == "not-opted-in"
    assert shown[REGION] == "opt-in-not-required"
    assert off not in [r["RegionName"] for r in cloud.ec2.describe_regions()["Regions"]]
    assert code(west.describe_vpcs) == "AuthFailure"
    assert dry_run(cloud) == "DryRunOperation"


def test_the_image_parameter_is_gone(cloud: Cloud) -> None:
    ssm = cloud.clients.client("ssm", REGION)
    plant(cloud, "image-parameter-gone")
    assert code(lambda: ssm.get_parameter(Name=PARAMETER)) == "ParameterNotFound"
    client.plant_clear(cloud.local)
    assert ssm.get_parameter(Name=PARAMETER)["Parameter"]["Value"] == cloud.image_id


def test_the_image_is_gone(cloud: Cloud) -> None:
    plant(cloud, "ami-gone")
    assert cloud.clients.client("ssm", REGION).get_parameter(Name=PARAMETER)["Parameter"]["Value"] == cloud.image_id
    assert code(lambda: cloud.ec2.describe_images(ImageIds=[cloud.image_id])) == "InvalidAMIID.NotFound"
    assert dry_run(cloud) == launch(cloud) == "InvalidAMIID.NotFound"


def encrypted(cloud: Cloud) -> dict[str, Any]:
    [image] = cloud.ec2.describe_images(ImageIds=[cloud.image_id])["Images"]
    return {"BlockDeviceMappings": [{"DeviceName": image["RootDeviceName"], "Ebs": {"Encrypted": True}}]}


def ends(cloud: Cloud, **changes: Any) -> str:
    """The StateReason of a launch that dies at once."""
    instance_id = cloud.run(**changes)["InstanceId"]
    return str(cloud.wait(instance_id, "terminated")["StateReason"]["Code"])


def test_a_customer_key_without_a_grant_for_spot(cloud: Cloud) -> None:
    kms = cloud.clients.client("kms", REGION)
    assert cloud.ec2.get_ebs_default_kms_key_id()["KmsKeyId"] == "alias/aws/ebs"
    plant(cloud, "kms-without-grant")
    key = cloud.ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
    assert cloud.ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"] is True
    about = kms.describe_key(KeyId=key)["KeyMetadata"]
    assert (about["KeyManager"], about["KeyState"]) == ("CUSTOMER", "Enabled")
    assert kms.list_grants(KeyId=key)["Grants"] == []
    assert SPOT_ROLE_ARN not in kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"]
    assert ends(cloud, **encrypted(cloud)) == "Client.InternalError"
    cloud.up(**encrypted(cloud), **ON_DEMAND)
    kms.create_grant(KeyId=key, GranteePrincipal=SPOT_ROLE_ARN, Operations=["CreateGrant", "Decrypt"])
    cloud.up(**encrypted(cloud))
    client.plant_clear(cloud.local)
    assert cloud.ec2.get_ebs_default_kms_key_id()["KmsKeyId"] == "alias/aws/ebs"


def test_a_customer_key_that_is_disabled(cloud: Cloud) -> None:
    plant(cloud, "kms-disabled")
    key = cloud.ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
    about = cloud.clients.client("kms", REGION).describe_key(KeyId=key)["KeyMetadata"]
    assert (about["KeyState"], about["Enabled"]) == ("Disabled", False)
    assert ends(cloud, **encrypted(cloud), **ON_DEMAND) == "Client.InternalError"


def test_no_gpu_type_is_offered(cloud: Cloud) -> None:
    def offered(kind: str) -> list[str]:
        pages = cloud.ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": [kind]}]
        )
        return [row["Location"] for page in pages for row in page["InstanceTypeOfferings"]]

    assert ZONE in offered(KIND)
    plant(cloud, "type-not-offered")
    assert offered(KIND) == []
    assert offered("m5.large") != []
    assert dry_run(cloud) == launch(cloud) == "Unsupported"
    client.plant_clear(cloud.local)
    assert ZONE in offered(KIND)


def test_no_ssh_gets_out(cloud: Cloud) -> None:
    probe = ("127.0.0.1", cloud.state.planted.probe.port)
    with socket.create_connection(probe, timeout=5) as found:
        assert found.recv(100).startswith(b"SSH-2.0-")
    plant(cloud, "no-ssh-egress")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(probe, timeout=5)
    client.plant_clear(cloud.local)
    socket.create_connection(("127.0.0.1", cloud.state.planted.probe.port), timeout=5).close()


def test_every_fault_has_a_test() -> None:
    here = Path(__file__).read_text()
    assert [name for name in PLANTS if f'"{name}"' not in here] == []
