"""The one RunInstances request. Pure: a LaunchRequest in, boto3's keyword arguments out.

Where each field comes from in AWS's documentation: docs/aws/run-instances.md, which a test holds complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.adapters.tagging import tags
from cloudtrain.provisioner.charges import BASE_IOPS, iops
from cloudtrain.provisioner.model import LaunchRequest
from cloudtrain.provisioner.names import TAG_BUCKET, TAG_GENERATION, TAG_TOKEN

if TYPE_CHECKING:
    from mypy_boto3_ec2.literals import InstanceTypeType, ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        BlockDeviceMappingTypeDef,
        EbsBlockDeviceTypeDef,
        InstanceNetworkInterfaceSpecificationTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )


def request(launch: LaunchRequest, *, subnet_id: str, security_group_id: str) -> RunInstancesRequestTypeDef:
    """RunInstances' arguments: one machine, all that it makes tagged in the call and ended with it.

    The same launch gives the same request, as the client token demands.
    """
    attempt = launch.attempt
    spot = attempt.pool.capacity_type is CapacityType.SPOT
    # Only spellings of the catalogue get here, and the stubs list a snapshot of AWS's.
    instance_type: InstanceTypeType = attempt.pool.instance_type  # type: ignore[assignment]
    wanted: RunInstancesRequestTypeDef = {
        "ClientToken": attempt.client_token,
        "ImageId": launch.image_id,
        "InstanceType": instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": launch.user_data,  # boto3 encodes it
        "IamInstanceProfile": {"Name": launch.instance_profile},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "NetworkInterfaces": [_interface(subnet_id, security_group_id, public=launch.options.public_ip)],
        "BlockDeviceMappings": [_root_volume(launch)],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,  # an image may say 2: a bridged container would reach the role's keys
            "HttpProtocolIpv6": "disabled",
            "InstanceMetadataTags": "enabled",
        },
        "TagSpecifications": _tag_specifications(launch, spot=spot),
    }
    if spot:
        # One-time: a persistent request would open again by itself. No ValidUntil (not for one-time requests), no
        # MaxPrice (more interruptions), no BlockDurationMinutes (deprecated).
        wanted["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    return wanted


def _interface(subnet_id: str, security_group_id: str, *, public: bool) -> InstanceNetworkInterfaceSpecificationTypeDef:
    return {
        "DeviceIndex": 0,
        "SubnetId": subnet_id,
        "Groups": [security_group_id],
        "AssociatePublicIpAddress": public,
        "DeleteOnTermination": True,
    }


def _root_volume(launch: LaunchRequest) -> BlockDeviceMappingTypeDef:
    volume: EbsBlockDeviceTypeDef = {
        "VolumeSize": max(launch.disk_gib, launch.image.root_gib),  # a smaller one than the image's is refused
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    if launch.options.kms_key is not None:
        volume["KmsKeyId"] = launch.options.kms_key
    if launch.options.volume_throughput is not None:
        volume["Throughput"] = launch.options.volume_throughput
        if iops(launch.options) > BASE_IOPS:
            volume["Iops"] = iops(launch.options)
    return {"DeviceName": launch.image.root_device, "Ebs": volume}


def _tag_specifications(launch: LaunchRequest, *, spot: bool) -> list[TagSpecificationTypeDef]:
    kinds: list[ResourceTypeType] = ["instance", "volume", "network-interface"]
    if spot:
        kinds.append("spot-instances-request")
    mine: list[TagTypeDef] = [
        *tags(launch.job_id, launch.owner),
        {"Key": TAG_GENERATION, "Value": str(launch.attempt.generation)},
        {"Key": TAG_TOKEN, "Value": launch.attempt.client_token},
    ]
    if launch.bucket:
        mine.append({"Key": TAG_BUCKET, "Value": launch.bucket})
    return [{"ResourceType": kind, "Tags": mine} for kind in kinds]
