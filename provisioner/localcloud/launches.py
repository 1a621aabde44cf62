"""RunInstances as AWS means it: client tokens, everything that is refused, quotas, spot requests, and the boot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import random_spot_request_id
from moto.iam.exceptions import NotFoundException
from moto.iam.models import iam_backends

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.account.quotas import quota_of
from cloudtrain.provisioner.localcloud import quotas, spot
from cloudtrain.provisioner.localcloud.account_semantics import make_spot_role
from cloudtrain.provisioner.localcloud.ebs_keys import doom
from cloudtrain.provisioner.localcloud.machines import Machines
from cloudtrain.provisioner.localcloud.plants import SPOT_ROLE
from cloudtrain.provisioner.localcloud.refusals import Launch, Refusal, refusal
from cloudtrain.provisioner.localcloud.state import Launched, Life, LocalState, SpotStatus, moment

_UP = ("pending", "running", "stopping", "stopped")


class Launches:
    """RunInstances, over one cloud's state."""

    def __init__(self, state: LocalState, machines: Machines) -> None:
        self.state = state
        self.machines = machines

    def run_instances(self, original: Callable[[], Any], response: Any) -> Any:
        """Answer one call. With DryRun everything is checked, and nothing made."""
        with self.state.lock:
            backend, params, region = response.ec2_backend, response.params, response.region
            zone, explicit = spot.requested_zone(backend, params)
            token = str(params.get("ClientToken") or "")
            key = (region, zone.zone_id if explicit else "", token)
            fingerprint = _fingerprint(params)
            dry = params.pop("DryRun", None) in (True, "true")
            if token and key in self.state.launched and not dry:
                return ActionResult(self._again(self.state.launched[key], fingerprint))
            refused = refusal(self._launch(backend, params, region, zone)) or self._unknown(response, zone)
            room = self._room(params, region)
            refused = refused or _no_room(params, room)
            if refused is not None:
                raise EC2ClientError(refused.code, refused.message)
            if dry:
                raise DryRunClientError
            # Capacity is not simulated, so the largest number is possible; the quota may allow less.
            params["MinCount"] = min(int(params["MaxCount"]), room)
            _size_of_image(params, backend.amis[params["ImageId"]])
            if _market(params) == CapacityType.SPOT:
                _spot_role(response)
            reservation = original().result
            for instance in reservation.instances[1:]:  # moto gives the profile to the first alone
                _give_profile(backend, instance, params)
            lives = [self._born(response, instance, region, zone.zone_id) for instance in reservation.instances]
            if token:
                ids = tuple(life.instance_id for life in lives)
                self.state.launched[key] = Launched(fingerprint, reservation, ids)
            return ActionResult(reservation)

    def _again(self, launched: Launched, fingerprint: str) -> Any:
        if launched.fingerprint != fingerprint:
            text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            raise EC2ClientError("IdempotentParameterMismatch", text)
        if not any(self._is_up(instance_id) for instance_id in launched.instance_ids):
            text = "The client token has already been used for an instance that is terminated."
            raise EC2ClientError("IdempotentInstanceTerminated", text)
        return launched.reservation

    def _is_up(self, instance_id: str) -> bool:
        life = self.state.lives.get(instance_id)
        return life is not None and life.state in _UP

    # What is refused

    def _launch(self, backend: Any, params: dict[str, Any], region: str, zone: Any) -> Launch:
        image = backend.amis.get(params.get("ImageId"))
        kind = params.get("InstanceType", "m1.small")
        info = INSTANCE_TYPES.get(kind, {}).get("ProcessorInfo", {}).get("SupportedArchitectures")
        ours = {o.instance.architecture for o in self.state.offerings if o.instance.name == kind}
        known = INSTANCE_TYPE_OFFERINGS["availability-zone-id"].get(region, [])
        exists = kind in INSTANCE_TYPES or bool(ours)
        root = next(iter(image.block_device_mappings), None) if image is not None else None
        return Launch(
            params=params,
            image_architecture=image.architecture if image is not None else "",
            root_device=image.root_device_name if image is not None else "",
            root_gib=root["Ebs"]["VolumeSize"] if root is not None else 0,
            type_architectures=tuple(info or sorted(ours)) if image is not None else (),
            exists=exists,
            offered=any(row["InstanceType"] == kind and row["Location"] == zone.zone_id for row in known),
            zone=zone.name,
            spot_price=self.state.market.price(kind, zone.zone_id, self.state.clock()),
        )

    def _unknown(self, response: Any, zone: Any) -> Refusal | None:
        """What the request names and does not exist, or not where it is wanted."""
        backend, params = response.ec2_backend, response.params
        image_id = params.get("ImageId")
        if image_id not in backend.amis:
            return Refusal("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        interfaces = params.get("NetworkInterfaces") or [{}]
        subnet_id = params.get("SubnetId") or interfaces[0].get("SubnetId")
        if subnet_id is None and backend.get_default_vpc() is None:
            text = "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC."
            return Refusal("VPCIdNotSpecified", text)
        default = zone.name if subnet_id is None else None
        if default is not None and default not in backend.get_default_subnets():
            text = f"No default subnet for availability zone: '{default}'."
            return Refusal("MissingInput", text)
        vpc_id = backend.get_subnet(subnet_id).vpc_id if subnet_id else backend.get_default_vpc().id
        groups = [*(params.get("SecurityGroupIds") or ()), *(interfaces[0].get("Groups") or ())]
        return _unknown_group(backend, groups, vpc_id) or self._unknown_profile(response)

    def _unknown_profile(self, response: Any) -> Refusal | None:
        profile = response.params.get("IamInstanceProfile") or {}
        if not profile:
            return None
        backend = iam_backends[response.current_account][response.partition]
        name, arn = profile.get("Name"), profile.get("Arn")
        try:
            if name:
                backend.get_instance_profile(name)
            if arn:
                backend.get_instance_profile_by_arn(arn)
        except NotFoundException:
            field = "name" if name else "arn"
            text = f"Value ({name or arn}) for parameter iamInstanceProfile.{field} is invalid."
            return Refusal("InvalidParameterValue", f"{text} Invalid IAM Instance Profile {field}")
        return None

    def _room(self, params: dict[str, Any], region: str) -> int:
        """How many of the machines that are wanted fit into the quota."""
        kind, market = str(params.get("InstanceType", "")), _market(params)
        quota, each = quota_of(kind, market), self._vcpus(kind)
        if quota is None or each == 0:
            return int(params.get("MaxCount") or 1)
        used = sum(
            self._vcpus(life.machine.instance_type)
            for life in self.state.lives.values()
            if life.region == region
            and life.live
            and quota_of(life.machine.instance_type, CapacityType.SPOT if life.spot else CapacityType.ON_DEMAND)
            is quota
        )
        return int((quotas.value(quota, self.state.planted.names(region)) - used) // each)

    def _vcpus(self, kind: str) -> int:
        ours = next((o.instance.vcpus for o in self.state.offerings if o.instance.name == kind), None)
        return int(ours or INSTANCE_TYPES.get(kind, {}).get("VCpuInfo", {}).get("DefaultVCpus", 0))

    # What is made

    def _born(self, response: Any, instance: Any, region: str, zone_id: str) -> Life:
        params, now = response.params, self.state.clock()
        tags = response._parse_tag_specification()
        asked = params.get("NetworkInterfaces") or ()
        kept = {int(i.get("DeviceIndex", 0)) for i in asked if i.get("DeleteOnTermination") is False}
        for index, interface in instance.nics.items():
            interface.delete_on_termination = index not in kept  # moto lets it live unless told to
            interface.add_tags(tags.get("network-interface", {}))
        instance.launch_time = moment(now)
        instance.state_reason = None  # EC2 gives none while there is nothing to say
        instance.placement.availability_zone_id = zone_id
        instance.spot_instance_request_id = None
        status = None
        if instance.lifecycle == "spot":
            status = SpotStatus(random_spot_request_id(), created_at=now, updated_at=now)
            instance.spot_instance_request_id = status.id
            instance.ec2_backend.create_tags([status.id], tags.get("spot-instances-request", {}))
        life = Life(instance.id, instance, region, zone_id, now, now + self.state.options.hide_s, status)
        life.doom = doom(params, instance.ec2_backend, region, is_spot=status is not None)
        self.machines.born(life)
        return life


def _spot_role(response: Any) -> None:
    """The first spot launch makes the service-linked role, where the caller may (EC2 User Guide, the role's page)."""
    backend = iam_backends[response.current_account][response.partition]
    if not any(role.name == SPOT_ROLE for role in backend.roles.values()):
        make_spot_role(backend)


def _size_of_image(params: dict[str, Any], image: Any) -> None:
    """A root volume without a size is as large as the image's snapshot; moto asks for one."""
    for mapping in params.get("BlockDeviceMappings") or ():
        ebs = mapping.get("Ebs")
        if ebs is not None and mapping.get("DeviceName") == image.root_device_name:
            ebs.setdefault("VolumeSize", image.block_device_mappings[0]["Ebs"]["VolumeSize"])


def _no_room(params: dict[str, Any], room: int) -> Refusal | None:
    if room >= int(params.get("MinCount") or 1):
        return None
    if _market(params) == CapacityType.SPOT:
        return Refusal("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    text = "You have requested more vCPU capacity than your current vCPU limit allows for the instance bucket that the"
    text += " specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request"
    return Refusal("VcpuLimitExceeded", f"{text} an adjustment to this limit.")


def _market(params: dict[str, Any]) -> CapacityType:
    options = params.get("InstanceMarketOptions") or {}
    return CapacityType.SPOT if options.get("MarketType") == "spot" else CapacityType.ON_DEMAND


def _unknown_group(backend: Any, groups: list[str], vpc_id: str) -> Refusal | None:
    for group_id in groups:
        group = backend.get_security_group_from_id(group_id)
        if group is None:
            return Refusal("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
        if group.vpc_id != vpc_id:
            text = f"Security group {group_id} and subnet belong to different networks."
            return Refusal("InvalidParameter", text)
    return None


def _fingerprint(params: dict[str, Any]) -> str:
    """What must be equal between two calls with one token: everything but the token and the place."""
    rest = {
        name: value for name, value in params.items() if name not in ("ClientToken", "SubnetId", "Placement", "DryRun")
    }
    rest["NetworkInterfaces"] = [
        {name: value for name, value in interface.items() if name != "SubnetId"}
        for interface in params.get("NetworkInterfaces") or ()
    ]
    return hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()


def _give_profile(backend: Any, instance: Any, params: dict[str, Any]) -> None:
    profile = params.get("IamInstanceProfile") or {}
    if profile:
        backend.associate_iam_instance_profile(instance.id, profile.get("Name"), profile.get("Arn"))
