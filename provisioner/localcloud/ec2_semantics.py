"""EC2 as AWS means it, laid over moto: the methods that are replaced, and nothing else. Pinned to moto 5.2.

moto answers every call that is not named here. Replaced, with the reason: RunInstances (client tokens, refusals,
counts, spot requests, boot), TerminateInstances (it takes time), what DescribeInstances may see (new ids are hidden,
old ones gone), the spot calls (moto has fixed data), console output, and DeleteSecurityGroup (a group in use is
refused). ``install`` changes moto's classes for the whole process; ``uninstall`` puts them back.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

from moto import settings
from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.ec2.responses.general import General
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.spot_instances import SpotInstances
from moto.ec2.utils import filter_dict_attribute_mapping, random_spot_request_id

from cloudtrain.provisioner.localcloud import spot
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.machines import BY_USER, Machines
from cloudtrain.provisioner.localcloud.refusals import Launch, refusal
from cloudtrain.provisioner.localcloud.state import Launched, Life, LocalState, SpotStatus, moment

_FILTERS = {
    "client-token": "client_token",
    "instance-lifecycle": "lifecycle",
    "spot-instance-request-id": "spot_instance_request_id",
}
"""DescribeInstances filters that moto lacks, and the attribute that each reads."""
_BAD_KEY = ("Client.InternalError", "Client error on launch")
"""What becomes of a machine whose KMS key can't be used: it dies after its launch (botocore, EbsBlockDevice)."""


class Semantics:
    """The replaced methods, over one cloud's state."""

    def __init__(self, state: LocalState, machines: Machines) -> None:
        self.state = state
        self.machines = machines
        self._undo: list[Callable[[], object]] = []

    def install(self) -> None:
        """Change moto."""
        self._replace(InstanceResponse, "run_instances", self._run_instances)
        self._replace(InstanceResponse, "terminate_instances", self._terminate_instances)
        self._replace(EC2Backend, "all_reservations", self._all_reservations)
        self._replace(EC2Backend, "delete_security_group", self._delete_security_group)
        self._replace(Instance, "setup_defaults", self._setup_defaults)
        self._replace(General, "get_console_output", self._get_console_output)
        self._replace(SpotInstances, "describe_spot_instance_requests", self._describe_spot_requests)
        self._replace(SpotInstances, "cancel_spot_instance_requests", self._cancel_spot_requests)
        self._replace(SpotInstances, "describe_spot_price_history", self._describe_spot_prices)
        for name in ("EC2_ENABLE_INSTANCE_TYPE_VALIDATION", "ENABLE_AMI_VALIDATION"):
            self._set(settings, name, True)
        self._set(settings, "ec2_load_default_amis", lambda: False)  # only our own images exist
        for name, attribute in _FILTERS.items():
            filter_dict_attribute_mapping[name] = attribute
            self._undo.append(functools.partial(filter_dict_attribute_mapping.pop, name))

    def uninstall(self) -> None:
        """Put moto back as it was."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: type, name: str, method: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def replaced(this: Any, *args: Any, **kwargs: Any) -> Any:
            return method(functools.partial(original, this), this, *args, **kwargs)

        setattr(owner, name, replaced)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def _set(self, owner: Any, name: str, value: object) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    # RunInstances

    def _run_instances(self, original: Callable[[], Any], response: Any) -> Any:
        with self.state.lock:
            backend, params, region = response.ec2_backend, response.params, response.region
            zone, explicit = spot.requested_zone(backend, params)
            token = str(params.get("ClientToken") or "")
            key = (region, zone.zone_id if explicit else "", token)
            fingerprint = _fingerprint(params)
            if token and key in self.state.launched:
                return ActionResult(self._again(self.state.launched[key], fingerprint))
            refused = refusal(self._launch(backend, params, region, zone))
            if refused is not None:
                raise EC2ClientError(refused.code, refused.message)
            params["MinCount"] = params["MaxCount"]  # capacity is not simulated: the largest number is possible
            reservation = _launch_errors(original, params).result
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
        return life is not None and life.state not in ("shutting-down", "terminated")

    def _launch(self, backend: Any, params: dict[str, Any], region: str, zone: Any) -> Launch:
        image = backend.amis.get(params.get("ImageId"))
        kind = params.get("InstanceType", "m1.small")
        info = INSTANCE_TYPES.get(kind, {}).get("ProcessorInfo", {}).get("SupportedArchitectures")
        ours = {o.instance.architecture for o in self.state.offerings if o.instance.name == kind}
        zones = [o.pool.zone_id for o in self.state.offerings if o.instance.name == kind]
        known = INSTANCE_TYPE_OFFERINGS["availability-zone-id"].get(region, [])
        exists = any(row["InstanceType"] == kind for row in INSTANCE_TYPE_OFFERINGS["region"].get(region, []))
        here = {"InstanceType": kind, "Location": zone.zone_id}
        root = next(iter(image.block_device_mappings), None) if image is not None else None
        return Launch(
            params=params,
            image_architecture=image.architecture if image is not None else "",
            root_device=image.root_device_name if image is not None else "",
            root_gib=root["Ebs"]["VolumeSize"] if root is not None else 0,
            type_architectures=tuple(info or sorted(ours)) if image is not None else (),
            # An unknown type, or one that the region lacks, is moto's to refuse: InvalidInstanceType.NotFound.
            offered=not exists or zone.zone_id in zones or any(here.items() <= row.items() for row in known),
            zone=zone.name,
            spot_price=self.state.market.price(kind, zone.zone_id, self.state.clock()),
        )

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
        if not _kms_keys_known(params, region):
            life.doom = _BAD_KEY
        self.machines.born(life)
        return life

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
        response.error_on_dryrun()
        with self.state.lock:
            if not ids:
                raise EC2ClientError("MissingParameter", "The request must contain the parameter InstanceId")
            found = response.ec2_backend.get_multi_instances_by_id(ids)
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

    # What can be seen

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


def _launch_errors(original: Callable[[], Any], params: dict[str, Any]) -> Any:
    """Run moto's own RunInstances, with IAM's error as EC2 words it."""
    from moto.iam.exceptions import NotFoundException  # noqa: PLC0415

    try:
        return original()
    except NotFoundException as error:
        profile = params.get("IamInstanceProfile") or {}
        text = f"Value ({profile.get('Name') or profile.get('Arn')}) for parameter iamInstanceProfile.name is invalid."
        raise EC2ClientError("InvalidParameterValue", f"{text} Invalid IAM Instance Profile name") from error


def _give_profile(backend: Any, instance: Any, params: dict[str, Any]) -> None:
    profile = params.get("IamInstanceProfile") or {}
    if profile:
        backend.associate_iam_instance_profile(instance.id, profile.get("Name"), profile.get("Arn"))


def _kms_keys_known(params: dict[str, Any], region: str) -> bool:
    named = [str((m.get("Ebs") or {}).get("KmsKeyId") or "") for m in params.get("BlockDeviceMappings") or ()]
    wanted = set(named) - {"", "alias/aws/ebs"}
    if not wanted:
        return True
    from moto.kms.models import kms_backends  # noqa: PLC0415 - only where a key is named

    backend = kms_backends[ACCOUNT][region]
    return all(
        backend.get_key_id_from_alias(backend.get_alias_name(key)) is not None
        if "alias/" in key
        else backend.get_key_id(key) in backend.keys
        for key in wanted
    )
