"""EC2 as AWS means it, laid over moto: the methods that are replaced, and nothing else. Pinned to moto 5.2.

moto answers every call that is not named here. Replaced, with the reason: RunInstances (see ``launches``),
TerminateInstances (it takes time), what DescribeInstances may see (new ids are hidden, old ones gone), the spot calls
(moto has fixed data), console output, DeleteSecurityGroup (a group in use is refused), CreateSecurityGroup (DryRun
meets the same errors), DescribeRegions (those that are off are not listed) and GetEbsDefaultKmsKeyId (moto lacks it).
``install`` changes moto's classes for the whole process; ``uninstall`` puts them back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from moto import backends, settings
from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2 import utils
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models import EC2Backend, security_groups
from moto.ec2.models.availability_zones_and_regions import Region
from moto.ec2.models.instances import Instance
from moto.ec2.models.tags import TagBackend
from moto.ec2.responses.availability_zones_and_regions import AvailabilityZonesAndRegions
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.general import General
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.security_groups import SecurityGroups
from moto.ec2.responses.spot_instances import SpotInstances
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, filter_dict_attribute_mapping, get_prefix

from cloudtrain.provisioner.localcloud import ebs_keys, spot
from cloudtrain.provisioner.localcloud.launches import Launches
from cloudtrain.provisioner.localcloud.machines import BY_USER, Machines
from cloudtrain.provisioner.localcloud.patches import Patches
from cloudtrain.provisioner.localcloud.state import LocalState, moment

_FILTERS = {
    "client-token": "client_token",
    "instance-lifecycle": "lifecycle",
    "spot-instance-request-id": "spot_instance_request_id",
}
"""DescribeInstances filters that moto lacks, and the attribute that each reads."""
_OPT_IN = frozenset(
    {"af-south-1", "ap-east-1", "ap-southeast-3", "eu-south-1", "eu-south-2", "me-central-1", "me-south-1"}
)
"""Those of the catalogue's regions that an account has to enable (Account Management Guide, "Regions", 2026-11)."""


class Semantics:
    """The replaced methods, over one cloud's state."""

    def __init__(self, state: LocalState, machines: Machines) -> None:
        self.state = state
        self.machines = machines
        self._launches = Launches(state, machines)
        self._patches = Patches()

    def install(self) -> None:
        """Change moto."""
        replace = self._patches.replace
        replace(InstanceResponse, "run_instances", self._launches.run_instances)
        replace(InstanceResponse, "terminate_instances", self._terminate_instances)
        replace(EC2Backend, "all_reservations", self._all_reservations)
        replace(EC2Backend, "delete_security_group", self._delete_security_group)
        replace(SecurityGroups, "create_security_group", self._create_security_group)
        replace(Instance, "setup_defaults", self._setup_defaults)
        replace(General, "get_console_output", self._get_console_output)
        replace(AvailabilityZonesAndRegions, "describe_regions", self._describe_regions)
        replace(ElasticBlockStore, "get_ebs_default_kms_key_id", self._get_ebs_default_kms_key_id)
        replace(SpotInstances, "describe_spot_instance_requests", self._describe_spot_requests)
        replace(SpotInstances, "cancel_spot_instance_requests", self._cancel_spot_requests)
        replace(SpotInstances, "describe_spot_price_history", self._describe_spot_prices)
        replace(TagBackend, "describe_tags", _describe_tags)
        for module in (utils, security_groups):
            self._patches.set(module, "tag_filter_matches", _tag_filter_matches)
        for name in ("EC2_ENABLE_INSTANCE_TYPE_VALIDATION", "ENABLE_AMI_VALIDATION"):
            self._patches.set(settings, name, True)
        modules = tuple(backends.list_of_moto_modules())  # moto lists its folder at every request: a millisecond each
        self._patches.set(backends, "list_of_moto_modules", lambda: modules)
        self._patches.set(settings, "ec2_load_default_amis", lambda: False)  # only our own images exist
        for name, attribute in _FILTERS.items():
            filter_dict_attribute_mapping[name] = attribute
            self._patches.later(functools.partial(filter_dict_attribute_mapping.pop, name))

    def uninstall(self) -> None:
        """Put moto back as it was."""
        self._patches.undo()

    # What a launch leaves to the image

    def _setup_defaults(self, original: Callable[[], None], instance: Any) -> None:
        """The root volume of a launch that names none: the image's own size, gone with the machine."""
        image = instance.ec2_backend.amis.get(instance.image_id)
        if image is None:
            original()
            return
        size = image.block_device_mappings[0]["Ebs"]["VolumeSize"]
        instance.add_block_device(size, image.root_device_name, None, False, True, None, "gp3")

    # The other state changes

    def _terminate_instances(self, _original: Callable[[], Any], response: Any) -> Any:
        ids = response._get_param("InstanceIds", [])
        with self.state.lock:
            if not ids:
                raise EC2ClientError("MissingParameter", "The request must contain the parameter InstanceId")
            found = response.ec2_backend.get_multi_instances_by_id(ids)
            response.error_on_dryrun()
            changes = []
            for instance in found:
                if instance.disable_api_termination is True:
                    text = f"The instance '{instance.id}' may not be terminated. Modify its 'disableApiTermination'"
                    raise EC2ClientError("OperationNotPermitted", f"{text} instance attribute and try again.")
                before = {"Code": instance.state_code, "Name": instance.state}
                self.machines.end(self.state.lives[instance.id], BY_USER)
                after = {"Code": instance.state_code, "Name": instance.state}
                changes.append({"InstanceId": instance.id, "CurrentState": after, "PreviousState": before})
        return ActionResult({"TerminatingInstances": changes})

    def _delete_security_group(
        self, original: Callable[..., None], backend: Any, name: str | None = None, group_id: str | None = None
    ) -> None:
        with self.state.lock:
            for life in self.state.lives.values():
                mine = life.machine.ec2_backend is backend and life.state != "terminated"
                groups = [group for interface in life.machine.nics.values() for group in interface.group_set]
                if mine and any(group.id == group_id for group in groups):
                    raise EC2ClientError("DependencyViolation", f"resource {group_id} has a dependent object")
            original(name=name, group_id=group_id)

    def _create_security_group(self, original: Callable[[], Any], response: Any) -> Any:
        try:
            return original()
        except DryRunClientError:
            backend, name = response.ec2_backend, response._get_param("GroupName")
            vpc_id = response._get_param("VpcId")
            if vpc_id is None and backend.get_default_vpc() is None:
                raise EC2ClientError("VPCIdNotSpecified", "No default VPC for this user") from None
            vpc = backend.get_vpc(vpc_id) if vpc_id else backend.get_default_vpc()
            if backend.get_security_group_from_name(name, vpc.id) is not None:
                text = f"The security group '{name}' already exists for VPC '{vpc.id}'"
                raise EC2ClientError("InvalidGroup.Duplicate", text) from None
            raise

    # What can be seen

    def _describe_regions(self, _original: Callable[[], Any], response: Any) -> Any:
        """The regions that are enabled; with AllRegions the others too, as not-opted-in."""
        response.error_on_dryrun()
        off, ours = self.state.planted.off(), {o.pool.region for o in self.state.offerings}
        found = []
        for region in response.ec2_backend.describe_regions(response._get_param("RegionNames", [])):
            status = region.opt_in_status
            if region.name in ours:
                status = "opted-in" if region.name in _OPT_IN else "opt-in-not-required"
            if region.name in off:
                status = "not-opted-in"
            if status != "not-opted-in" or response._get_param("AllRegions"):
                found.append(Region(region.name, region.endpoint, status))
        return ActionResult({"Regions": found})

    def _get_ebs_default_kms_key_id(self, _original: object, response: Any) -> Any:
        response.error_on_dryrun()
        return ActionResult({"KmsKeyId": ebs_keys.default_key(response.ec2_backend)})

    def _all_reservations(self, original: Callable[..., list[Any]], backend: Any, filters: Any = None) -> list[Any]:
        with self.state.lock:
            for name in filters or ():
                if name not in filter_dict_attribute_mapping and not name.startswith("tag"):
                    raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
            found = []
            for reservation in original(filters):
                reservation.instances = [i for i in reservation.instances if self.state.visible(i.id)]
                if reservation.instances:
                    found.append(reservation)
            return found

    def _get_console_output(self, _original: Callable[[], Any], response: Any) -> Any:
        with self.state.lock:
            instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
            life = self.state.lives[instance.id]
            output = Base64EncodedString.from_raw_string(life.console) if life.console else None
            at = moment(self.state.clock())
            return ActionResult({"InstanceId": instance.id, "Timestamp": at, "Output": output})

    # Spot

    def _describe_spot_requests(self, _original: Callable[[], Any], response: Any) -> Any:
        with self.state.lock:
            ids = response._get_param("SpotInstanceRequestIds", [])
            found = spot.requests(self.state, response.region, ids, response._filters_from_querystring())
            return ActionResult({"SpotInstanceRequests": found})

    def _cancel_spot_requests(self, _original: Callable[[], Any], response: Any) -> Any:
        with self.state.lock:
            ids = response._get_param("SpotInstanceRequestIds", [])
            return ActionResult({"CancelledSpotInstanceRequests": spot.cancel(self.state, response.region, ids)})

    def _describe_spot_prices(self, _original: Callable[[], Any], response: Any) -> Any:
        page, token = spot.prices(self.state, response)
        return ActionResult({"SpotPriceHistory": page, "NextToken": token})


# moto answers these by looking through every tag of the account, for each resource, with each of a filter's values
# compiled anew: a list of 1,000 machines took minutes.


def _describe_tags(original: Callable[..., Any], backend: Any, filters: dict[str, list[str]] | None = None) -> Any:
    """The tags of resources that are named, which is what nearly all of moto asks for."""
    ids = (filters or {}).get("resource-id", [])
    if not filters or set(filters) != {"resource-id"} or any(mark in wanted for wanted in ids for mark in "*?[\\"):
        return original(filters)
    return [
        {
            "resource_id": resource_id,
            "key": key,
            "value": value,
            "resource_type": EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource_id), ""),
        }
        for resource_id in ids
        for key, value in backend.tags.get(resource_id, {}).copy().items()
    ]


def _tag_filter_matches(resource: Any, name: str, wanted: list[str]) -> bool:
    tags = {tag["key"]: tag["value"] for tag in resource.get_tags()}
    if name.startswith("tag:"):
        have = [tags[name[4:]]] if name[4:] in tags else []
    else:
        have = list(tags) if name == "tag-key" else list(tags.values()) if name == "tag-value" else [tags.get(name, "")]
    return any(spot.matches(value, wanted) for value in have)
