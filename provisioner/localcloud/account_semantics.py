"""IAM, Service Quotas and S3 as AWS means them, laid over moto when the first call to each of them comes.

Replaced, with the reason: CreateServiceLinkedRole (moto gives spot's role another name, and makes it twice), the quotas
of EC2 and SimulatePrincipalPolicy (moto lacks them), and the bucket policy's verdict (moto knows no conditions: a
policy that denies what comes without TLS would deny everything; ``authority`` judges instead).
"""

from __future__ import annotations

import json
from typing import Any

from cloudtrain.provisioner.account.quotas import QUOTAS, Quota
from cloudtrain.provisioner.localcloud import quotas
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.patches import Patches
from cloudtrain.provisioner.localcloud.plants import SPOT_ROLE
from cloudtrain.provisioner.localcloud.rights import Asked, verdict
from cloudtrain.provisioner.localcloud.state import LocalState

_PAGE = 100
"""ListServiceQuotas' largest page (Service Quotas API reference, 2026-11)."""
_WORDS = {"allow": "allowed", "deny": "explicitDeny", "none": "implicitDeny"}

_LACKING = {
    "denied-run-instances": "ec2:RunInstances",
    "denied-describe": "ec2:Describe*",
    "denied-pass-role": "iam:PassRole",
    "no-spot-role": "iam:CreateServiceLinkedRole",
    "bucket-denied": "s3:*",
}
"""The rights that a planted fault takes from the person; what is refused stands in ``plants``."""


class Account:
    """The replaced methods of the services beside EC2. ``before`` is called with ``Resources``' lock held."""

    def __init__(self, state: LocalState) -> None:
        self.state = state
        self._patches = Patches()
        self._done: set[str] = set()

    def before(self, service: str) -> None:
        """Change moto for a service, once."""
        if service in self._done:
            return
        self._done.add(service)
        if service == "iam":
            from moto.iam.responses import IamResponse  # noqa: PLC0415 - on first use

            self._patches.replace(IamResponse, "create_service_linked_role", self._create_service_linked_role)
            self._patches.replace(IamResponse, "simulate_principal_policy", self._simulate_principal_policy)
        elif service == "servicequotas":
            from moto.servicequotas.responses import ServiceQuotasResponse  # noqa: PLC0415

            self._patches.replace(ServiceQuotasResponse, "get_service_quota", self._get_service_quota)
            self._patches.replace(ServiceQuotasResponse, "list_service_quotas", self._list_service_quotas)
            defaults = self._list_aws_default_service_quotas
            self._patches.replace(ServiceQuotasResponse, "list_aws_default_service_quotas", defaults)
        elif service == "s3":
            from moto.iam.access_control import PermissionResult  # noqa: PLC0415
            from moto.s3.models import FakeBucket  # noqa: PLC0415

            self._patches.replace(FakeBucket, "get_permission", lambda *_: PermissionResult.NEUTRAL)

    def close(self) -> None:
        """Put moto back as it was."""
        self._patches.undo()

    # IAM

    def _create_service_linked_role(self, original: Any, response: Any) -> Any:
        if response._get_param("AWSServiceName") != "spot.amazonaws.com":
            return original()
        from moto.core.responses import ActionResult  # noqa: PLC0415 - moto is loaded by now
        from moto.iam.exceptions import InvalidInput  # noqa: PLC0415

        if any(role.name == SPOT_ROLE for role in response.backend.roles.values()):
            text = f"Service role name {SPOT_ROLE} has been taken in this account, please try a different suffix."
            raise InvalidInput(text)
        return ActionResult({"Role": make_spot_role(response.backend)})

    def _simulate_principal_policy(self, _original: object, response: Any) -> Any:
        from moto.core.responses import ActionResult  # noqa: PLC0415 - moto is loaded by now
        from moto.iam.exceptions import NotFoundException  # noqa: PLC0415

        arn = str(response._get_param("PolicySourceArn"))
        role = next((role for role in response.backend.roles.values() if role.arn == arn), None)
        if role is None and ":role/" in arn:
            raise NotFoundException(f"The role with ARN {arn} cannot be found.")
        context = {
            str(entry["ContextKeyName"]).lower(): str(entry["ContextKeyValues"][0])
            for entry in response._get_param("ContextEntries", [])
        }
        lacking = [_LACKING[name] for name in self.state.planted.names(response.region) if name in _LACKING]
        person = {"Statement": [{"Effect": "Allow", "NotAction": lacking, "Resource": "*"}]}
        policies = [person] if role is None else role_policies(role)
        results = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": _WORDS[found]}
            for action in response._get_param("ActionNames", [])
            for resource in response._get_param("ResourceArns", ["*"])
            for found in [verdict(policies, Asked(action, resource, context))]
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})

    # Service Quotas

    def _get_service_quota(self, original: Any, response: Any) -> Any:
        asked = json.loads(response.body)
        if asked.get("ServiceCode") != "ec2":
            return original()
        found = next((q for q in QUOTAS if q.code == asked.get("QuotaCode")), None)
        if found is None:
            from moto.servicequotas.exceptions import NoSuchResource  # noqa: PLC0415 - loaded by now

            raise NoSuchResource
        return json.dumps({"Quota": self._quota(found, response.region)})

    def _list_service_quotas(self, _original: object, response: Any) -> Any:
        asked = json.loads(response.body)
        if asked.get("ServiceCode") != "ec2":
            raise NotImplementedError("only EC2's quotas are known")
        rows = [self._quota(quota, response.region) for quota in QUOTAS]
        first = int(asked.get("NextToken") or 0)
        rest = first + min(int(asked.get("MaxResults") or _PAGE), _PAGE)
        more = {"NextToken": str(rest)} if rest < len(rows) else {}
        return json.dumps({"Quotas": rows[first:rest], **more})

    def _list_aws_default_service_quotas(self, original: Any, response: Any) -> Any:
        if json.loads(response.body).get("ServiceCode") != "ec2":
            return original()
        found = [quotas.document(q, quotas.aws_default(q), response.region, ACCOUNT) for q in QUOTAS]
        return json.dumps({"Quotas": found})

    def _quota(self, quota: Quota, region: str) -> dict[str, Any]:
        amount = quotas.value(quota, self.state.planted.names(region))
        return quotas.document(quota, amount, region, ACCOUNT)


def make_spot_role(backend: Any) -> Any:
    """Make the service-linked role for spot; moto's role."""
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "spot.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    }
    return backend.create_role(
        SPOT_ROLE,
        json.dumps(trust),
        "/aws-service-role/spot.amazonaws.com/",
        None,
        "Default EC2 Spot Service Linked Role",
        [],
        "3600",
        linked_service="spot.amazonaws.com",
    )


def role_policies(role: Any) -> list[dict[str, Any]]:
    """The policies of one of moto's roles, inline and attached."""
    attached = [policy.document for policy in role.managed_policies.values()]
    return [json.loads(text) for text in [*role.policies.values(), *attached]]
