"""RunInstances as EC2 means it: tokens, refusals, counts, tags. One test for each promise."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.moto.local_server import KIND, REGION, ZONE, Cloud, serving


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud


def refused(cloud: Cloud, **changes: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        cloud.run(**changes)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def arm_image(cloud: Cloud) -> str:
    images = cloud.ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["arm64"]}])["Images"]
    return str(images[0]["ImageId"])


# Client tokens


def test_a_token_used_again_makes_no_second_machine(cloud: Cloud) -> None:
    request = cloud.request()
    launch = cloud.clients.launcher(REGION).run_instances
    first, second = launch(**request), launch(**request)
    assert first["Instances"][0]["InstanceId"] == second["Instances"][0]["InstanceId"]
    assert first["Instances"][0]["SpotInstanceRequestId"] == second["Instances"][0]["SpotInstanceRequestId"]


def test_a_token_used_at_once_by_eight_callers_makes_one_machine(cloud: Cloud) -> None:
    request = cloud.request()
    launch = cloud.clients.launcher(REGION).run_instances
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: launch(**request), range(8)))
    assert len({reply["Instances"][0]["InstanceId"] for reply in replies}) == 1


def test_a_token_with_other_parameters_is_a_mismatch(cloud: Cloud) -> None:
    token = cloud.token()
    cloud.run(ClientToken=token)
    assert refused(cloud, ClientToken=token, InstanceType="g4dn.2xlarge")[0] == "IdempotentParameterMismatch"
    assert refused(cloud, ClientToken=token, UserData="other")[0] == "IdempotentParameterMismatch"


def test_a_token_holds_in_one_zone_only(cloud: Cloud) -> None:
    token = cloud.token()
    here = cloud.run(ClientToken=token)
    there = cloud.run(ClientToken=token, SubnetId=cloud.subnets["use1-az6"])
    assert here["InstanceId"] != there["InstanceId"]


def test_the_token_of_a_terminated_machine_is_spent(cloud: Cloud) -> None:
    token = cloud.token()
    instance_id = cloud.up(ClientToken=token)
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    assert refused(cloud, ClientToken=token)[0] == "IdempotentInstanceTerminated"
    cloud.wait(instance_id, "terminated")
    assert refused(cloud, ClientToken=token)[0] == "IdempotentInstanceTerminated"


def test_a_refused_launch_spends_no_token(cloud: Cloud) -> None:
    token = cloud.token()
    assert refused(cloud, ClientToken=token, ImageId="ami-0123456789abcdef0")[0] == "InvalidAMIID.NotFound"
    assert cloud.run(ClientToken=token)["InstanceId"].startswith("i-")


def test_a_machine_is_found_by_its_token(cloud: Cloud) -> None:
    token = cloud.token()
    instance_id = cloud.up(ClientToken=token)
    filters = [{"Name": "client-token", "Values": [token]}]
    [reservation] = cloud.ec2.describe_instances(Filters=filters)["Reservations"]
    assert [i["InstanceId"] for i in reservation["Instances"]] == [instance_id]


# Refusals

REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    ("token too long", {"ClientToken": "x" * 65}, "InvalidParameterValue", "64"),
    ("token not ascii", {"ClientToken": "tökén"}, "InvalidParameterValue", "ASCII"),
    ("user data", {"UserData": "x" * (16 * 1024 + 1)}, "InvalidParameterValue", "16384"),
    ("counts", {"MinCount": 2, "MaxCount": 1}, "InvalidParameterValue", "MinCount"),
    ("unknown type", {"InstanceType": "zz.9xl"}, "InvalidInstanceType.NotFound", "zz.9xl"),
    ("unknown image", {"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound", "ami-0123456789abcdef0"),
    ("unknown subnet", {"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound", "subnet-01234"),
    ("unknown profile", {"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue", "nobody"),
    ("architecture", {"InstanceType": "g5g.xlarge"}, "InvalidParameterValue", "architecture 'arm64'"),
    ("type not in the zone", {"InstanceType": "p9.2xlarge", "SubnetId": "use1-az6"}, "Unsupported", "us-east-1a"),
    (
        "aws: tag",
        {"TagSpecifications": [{"ResourceType": "volume", "Tags": [{"Key": "aws:x", "Value": ""}]}]},
        "InvalidParameterValue",
        "reserved",
    ),
    (
        "a tag that the metadata service can't show",
        {
            "MetadataOptions": {"InstanceMetadataTags": "enabled"},
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "Cost Center", "Value": ""}]}],
        },
        "InvalidParameterValue",
        "Cost Center",
    ),
    (
        "resource that can't be tagged",
        {"TagSpecifications": [{"ResourceType": "vpc", "Tags": [{"Key": "a", "Value": "b"}]}]},
        "InvalidParameterValue",
        "vpc",
    ),
    (
        "root volume too small",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]},
        "InvalidBlockDeviceMapping",
        "expect size >= 100GB",
    ),
    (
        "root volume of 1 GiB",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}]},
        "InvalidBlockDeviceMapping",
        "expect size >= 100GB",
    ),
    (
        "volume too large",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 65537, "VolumeType": "gp3"}}]},
        "InvalidParameterValue",
        "65536",
    ),
    (
        "volume too large for gp2",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 16385, "VolumeType": "gp2"}}]},
        "InvalidParameterValue",
        "16384",
    ),
    (
        "second volume without a size",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeType": "gp3"}}]},
        "MissingParameter",
        "size",
    ),
    (
        "throughput too low",
        {
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 100}}
            ]
        },
        "InvalidParameterValue",
        "125",
    ),
    (
        "throughput too high",
        {
            "BlockDeviceMappings": [
                {
                    "DeviceName": "/dev/sda1",
                    "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 2001, "Iops": 9000},
                }
            ]
        },
        "InvalidParameterValue",
        "2000",
    ),
    (
        "throughput beyond the IOPS",
        {
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 1000}}
            ]
        },
        "InvalidParameterCombination",
        "ratio of 0.333333 is too high",
    ),
    (
        "throughput of another type",
        {
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp2", "Throughput": 200}}
            ]
        },
        "InvalidParameterCombination",
        "gp3",
    ),
    (
        "IOPS beyond the size",
        {
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Iops": 60000}}
            ]
        },
        "InvalidParameterCombination",
        "500",
    ),
    (
        "a tag with a slash that the metadata service can't show",
        {
            "MetadataOptions": {"InstanceMetadataTags": "enabled"},
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "team/a", "Value": ""}]}],
        },
        "InvalidParameterValue",
        "team/a",
    ),
    ("unknown group", {"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound", "sg-0123456789abcdef0"),
    (
        "wrong root device",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 200}}]},
        "InvalidBlockDeviceMapping",
        "/dev/sda1",
    ),
    (
        "key without encryption",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "KmsKeyId": "alias/k"}}]},
        "InvalidParameterDependency",
        "Encrypted",
    ),
    (
        "persistent and terminate",
        {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}},
        "InvalidParameterCombination",
        "stop and hibernate",
    ),
    (
        "ValidUntil on one-time",
        {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"ValidUntil": "2030-01-01T00:00:00Z"}}},
        "InvalidParameterCombination",
        "ValidUntil",
    ),
    (
        "price too low",
        {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.01"}}},
        "SpotMaxPriceTooLow",
        "0.01",
    ),
    ("capacity block", {"InstanceMarketOptions": {"MarketType": "capacity-block"}}, "Unsupported", "capacity-block"),
]


@pytest.mark.parametrize(("changes", "code", "words"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_what_ec2_refuses_is_refused(cloud: Cloud, changes: dict[str, Any], code: str, words: str) -> None:
    subnet = changes.get("SubnetId")
    if subnet in cloud.subnets:
        changes = changes | {"SubnetId": cloud.subnets[subnet]}
    before = len(cloud.state.lives)
    found, message = refused(cloud, **changes)
    assert (found, words in message) == (code, True), message
    assert refused(cloud, **changes, DryRun=True) == (found, message)
    assert len(cloud.state.lives) == before


def test_a_group_of_another_network_is_refused(cloud: Cloud) -> None:
    vpc_id = cloud.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    group_id = cloud.ec2.create_security_group(GroupName="far", Description="far", VpcId=vpc_id)["GroupId"]
    for dry in (False, True):
        assert refused(cloud, SecurityGroupIds=[group_id], DryRun=dry)[0] == "InvalidParameter"


def test_a_dry_run_of_a_group_meets_what_the_call_would(cloud: Cloud) -> None:
    vpc_id = cloud.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"][0]["VpcId"]
    for name, vpc, code in [
        ("dry", vpc_id, "DryRunOperation"),
        ("default", vpc_id, "InvalidGroup.Duplicate"),
        ("dry", "vpc-0123456789abcdef0", "InvalidVpcID.NotFound"),
    ]:
        with pytest.raises(ClientError, match=code):
            cloud.ec2.create_security_group(GroupName=name, Description="d", VpcId=vpc, DryRun=True)


def test_a_fast_volume_with_the_iops_it_needs_is_taken(cloud: Cloud) -> None:
    ebs = {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 1000, "Iops": 4000}
    cloud.up(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": ebs}])


def test_user_data_of_sixteen_kilobytes_is_taken(cloud: Cloud) -> None:
    instance_id = cloud.up(UserData="x" * 16 * 1024)
    assert cloud.hosts[instance_id].spec.user_data == "x" * 16 * 1024


def test_an_arm_image_boots_on_an_arm_type(cloud: Cloud) -> None:
    kind = cloud.describe(cloud.up(ImageId=arm_image(cloud), InstanceType="g5g.xlarge"))
    assert kind["Architecture"] == "arm64"


def test_a_type_of_the_catalogue_that_moto_does_not_know_is_taken(cloud: Cloud) -> None:
    assert cloud.run(InstanceType="p9.2xlarge", InstanceMarketOptions=None)["InstanceType"] == "p9.2xlarge"


def test_an_unknown_kms_key_lets_the_launch_pass_and_the_machine_die(cloud: Cloud) -> None:
    ebs = {"VolumeSize": 100, "Encrypted": True, "KmsKeyId": "alias/not-there"}
    instance = cloud.run(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": ebs}])
    dead = cloud.wait(instance["InstanceId"], "terminated")
    assert dead["StateReason"]["Code"] == "Client.InternalError"


def test_the_default_kms_key_is_known(cloud: Cloud) -> None:
    ebs = {"VolumeSize": 100, "Encrypted": True, "KmsKeyId": "alias/aws/ebs"}
    cloud.up(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": ebs}])


def test_a_dry_run_launches_nothing(cloud: Cloud) -> None:
    before = len(cloud.state.lives)
    assert refused(cloud, DryRun=True)[0] == "DryRunOperation"
    assert len(cloud.state.lives) == before


# What a launch makes


def test_the_largest_number_is_launched(cloud: Cloud) -> None:
    profile = {"Name": "cloudtrain-machine"}
    reply = cloud.ec2.run_instances(**cloud.request(MinCount=1, MaxCount=3, IamInstanceProfile=profile))
    assert len({i["InstanceId"] for i in reply["Instances"]}) == 3
    assert len({i["SpotInstanceRequestId"] for i in reply["Instances"]}) == 3
    assert all("IamInstanceProfile" in cloud.describe(i["InstanceId"]) for i in reply["Instances"])


def test_all_four_resources_carry_the_tags_of_the_call(cloud: Cloud) -> None:
    kinds = ("instance", "volume", "network-interface", "spot-instances-request")
    tags = [{"Key": "cloudtrain:job", "Value": "four"}]
    instance_id = cloud.up(TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in kinds])
    by_tag = [{"Name": "tag:cloudtrain:job", "Values": ["four"]}]
    [reservation] = cloud.ec2.describe_instances(Filters=by_tag)["Reservations"]
    assert [i["InstanceId"] for i in reservation["Instances"]] == [instance_id]
    assert len(cloud.ec2.describe_volumes(Filters=by_tag)["Volumes"]) == 1
    assert len(cloud.ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"]) == 1
    [request] = cloud.ec2.describe_spot_instance_requests(Filters=by_tag)["SpotInstanceRequests"]
    assert request["InstanceId"] == instance_id
    assert (
        cloud.ec2.describe_spot_instance_requests(Filters=[{"Name": "tag:cloudtrain:job", "Values": ["five"]}])[
            "SpotInstanceRequests"
        ]
        == []
    )


def test_volumes_and_interfaces_go_with_the_machine(cloud: Cloud) -> None:
    tags = [{"Key": "cloudtrain:job", "Value": "gone"}]
    ebs = {"VolumeSize": 120, "Encrypted": True, "DeleteOnTermination": True, "VolumeType": "gp3"}
    instance_id = cloud.up(
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": ebs}],
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("volume", "network-interface")],
    )
    by_tag = [{"Name": "tag:cloudtrain:job", "Values": ["gone"]}]
    assert [v["Size"] for v in cloud.ec2.describe_volumes(Filters=by_tag)["Volumes"]] == [120]
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud.wait(instance_id, "terminated")
    assert cloud.ec2.describe_volumes(Filters=by_tag)["Volumes"] == []
    assert cloud.ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"] == []


def test_without_a_mapping_the_root_volume_is_the_images(cloud: Cloud) -> None:
    mapping = cloud.describe(cloud.up())["BlockDeviceMappings"]
    assert [(m["DeviceName"], m["Ebs"]["DeleteOnTermination"]) for m in mapping] == [("/dev/sda1", True)]
    [volume] = cloud.ec2.describe_volumes(VolumeIds=[mapping[0]["Ebs"]["VolumeId"]])["Volumes"]
    assert volume["Size"] == 100


def test_a_zone_may_be_named_by_its_id(cloud: Cloud) -> None:
    instance = cloud.describe(cloud.up(SubnetId=None, Placement={"AvailabilityZoneId": "use1-az6"}))
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert instance["SubnetId"] == cloud.subnets["use1-az6"]


def test_on_demand_has_no_spot_request(cloud: Cloud) -> None:
    instance = cloud.describe(cloud.up(InstanceMarketOptions=None))
    assert "SpotInstanceRequestId" not in instance
    assert "InstanceLifecycle" not in instance


def test_the_host_gets_what_it_needs(cloud: Cloud) -> None:
    instance_id = cloud.up()
    spec = cloud.hosts[instance_id].spec
    assert (spec.cloud_id, spec.gpus, spec.root.name) == ("testcloud", 1, instance_id)
    assert spec.env["AWS_ENDPOINT_URL"] == cloud.state.endpoint_url
    assert spec.env["AWS_EC2_METADATA_SERVICE_ENDPOINT"] == f"{cloud.state.endpoint_url}/imds/{instance_id}/"
    assert spec.env["AWS_DEFAULT_REGION"] == REGION


def test_the_images_of_the_table_are_there_in_every_region(cloud: Cloud) -> None:
    from cloudtrain.pricing import catalog
    from cloudtrain.provisioner.localcloud.resources import images

    for region in ("us-west-2", "eu-north-1", "ap-northeast-1"):
        for image in images():
            parameter = cloud.clients.client("ssm", region).get_parameter(Name=image.ssm_parameter)["Parameter"]
            found = cloud.clients.client("ec2", region).describe_images(ImageIds=[parameter["Value"]])["Images"]
            assert found[0]["RootDeviceName"] == image.root_device
            assert found[0]["Architecture"] == image.architecture
            assert found[0]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == image.root_gib
    assert {"us-west-2", "eu-north-1"} <= catalog.load().regions


def test_every_zone_of_the_catalogue_has_a_subnet(cloud: Cloud) -> None:
    from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

    from cloudtrain.pricing import catalog

    known = {zone.zone_id for zones in RegionsAndZonesBackend.zones.values() for zone in zones}
    assert {price.zone_id for price in catalog.load().prices} - {None} <= known


@pytest.mark.parametrize("how", ["machine", "interface"])
def test_a_group_in_use_is_not_deleted(cloud: Cloud, how: str) -> None:
    group = cloud.ec2.create_security_group(GroupName=f"used-{how}", Description="of a test")["GroupId"]
    interface = {"DeviceIndex": 0, "SubnetId": cloud.subnets[ZONE], "Groups": [group]}
    named: dict[str, dict[str, Any]] = {
        "machine": {"SecurityGroupIds": [group]},
        "interface": {"SubnetId": None, "NetworkInterfaces": [interface]},
    }
    instance_id = cloud.up(**named[how])
    with pytest.raises(ClientError) as caught:
        cloud.ec2.delete_security_group(GroupId=group)
    assert caught.value.response["Error"]["Code"] == "DependencyViolation"
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud.wait(instance_id, "terminated")
    cloud.ec2.delete_security_group(GroupId=group)


def test_the_reply_says_pending_and_names_the_spot_request(cloud: Cloud) -> None:
    instance = cloud.run()
    assert instance["State"] == {"Code": 0, "Name": "pending"}
    assert instance["SpotInstanceRequestId"].startswith("sir-")
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == (KIND, "spot")
    assert instance["SubnetId"] == cloud.subnets[ZONE]
