"""The account faults that can be planted: their names, and the calls that each refuses. Pure.

A fault is either a refusal of calls, here, or a change of what exists, in ``planted``, or a quota, in ``quotas``. Those
of here are met by whoever runs cloudtrain, not by machines, which sign with their role's keys.

Codes, statuses and texts: the EC2 API's error codes, S3's error responses, the common errors of IAM, STS, SSM, KMS and
Service Quotas (API references, 2026-11), and reports of the same errors in public issues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.localcloud.faults import Call
from cloudtrain.provisioner.names import INSTANCE_PROFILE

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
SPOT_ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/{SPOT_ROLE}"
"""The service-linked role for spot (EC2 User Guide, "Service-linked role for Spot Instance requests", 2026-11)."""
SKEW_S = 1200.0
"""How far a skewed clock is off. S3 takes 15 minutes, other services 5 (S3 error codes; IAM User Guide, 2026-11)."""
CALLER = f"arn:aws:sts::{ACCOUNT}:user/moto"
"""Who moto says that the caller is."""

PLANTS: Mapping[str, tuple[str, bool]] = {
    "quota-spot-zero": ("GPU spot quotas are 0 vCPUs, as in a new account", True),
    "quota-on-demand-zero": ("GPU on-demand quotas are 0 vCPUs", True),
    "quota-p5-spot-zero": ("the quota for P5 spot is 0; that for P4 is not", True),
    "no-default-vpc": ("the default VPC was deleted", True),
    "no-subnet": ("the default VPC has no subnets", True),
    "no-route": ("the main route table has no way to the internet", True),
    "no-bucket": ("the bucket does not exist", False),
    "bucket-denied": ("you have no rights on the bucket", False),
    "no-role": ("the machines' role and profile do not exist", False),
    "role-without-rights": ("the machines' role has no policy: it may do nothing", False),
    "no-spot-role": ("EC2's spot role is missing; you may not make it", False),
    "denied-run-instances": ("you may not call RunInstances", True),
    "denied-describe": ("you may not call EC2's Describe actions", True),
    "denied-pass-role": ("you may not pass the machines' role to EC2", False),
    "expired-token": ("your credentials have expired", False),
    "no-credentials": ("your credentials are of no account", False),
    "region-off": ("the account has not enabled the region (needs --region)", True),
    "clock-skew": ("your computer's clock is 20 minutes off", False),
    "image-parameter-gone": ("the parameter that names the image is gone", True),
    "ami-gone": ("the image that the parameter names is gone", True),
    "kms-without-grant": ("EBS has a customer key, and the spot role no grant", True),
    "kms-disabled": ("EBS has a customer key that is disabled", True),
    "type-not-offered": ("no GPU instance type is offered", True),
    "no-ssh-egress": ("this network lets no SSH out", False),
}
"""Each fault's line, and whether it can be of one region alone."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a call that is not served."""

    code: str
    status: int
    message: str


def check(name: str, region: str | None) -> None:
    """Raises ValueError for a fault that is unknown, or that can't be planted there."""
    if name not in PLANTS:
        raise ValueError(f"no fault is named {name!r}; `cloudtrain local plant --list` shows them")
    if region is not None and not PLANTS[name][1]:
        raise ValueError(f"{name} is about the whole account: leave --region away")
    if region is None and name == "region-off":
        raise ValueError("region-off needs a region: add --region, for example --region us-east-2")


def refused(planted: Mapping[str, bool], call: Call) -> Refused | None:
    """What a call of the person runs into. ``planted``: the names in force in the call's region."""
    if call.fields.get("machine"):
        return None
    return next((found for name, refuse in _REFUSALS.items() if name in planted and (found := refuse(call))), None)


def denied(call: Call, action: str, resource: str | None = None, user: str = CALLER) -> Refused:
    """A call that no policy allows, as its service words it. ``action`` as in a policy: "ec2:RunInstances"."""
    on = f" on resource: {resource}" if resource else ""
    why = f"User: {user} is not authorized to perform: {action}{on}"
    why += f" because no identity-based policy allows the {action} action"
    match call.service:
        case "ec2":
            text = f"You are not authorized to perform this operation. {why}."
            return Refused(
                "UnauthorizedOperation", 403, f"{text} Encoded authorization failure message: local-{action}"
            )
        case "s3":
            return Refused("AccessDenied", 403, why)
        case "iam" | "sts":
            return Refused("AccessDenied", 403, why)
    return Refused("AccessDeniedException", 400, why)


def _denied_run_instances(call: Call) -> Refused | None:
    wanted = (call.service, call.action) == ("ec2", "RunInstances")
    return denied(call, "ec2:RunInstances", f"arn:aws:ec2:{_region(call)}:{ACCOUNT}:instance/*") if wanted else None


def _denied_describe(call: Call) -> Refused | None:
    wanted = call.service == "ec2" and call.action.startswith("Describe")
    return denied(call, f"ec2:{call.action}") if wanted else None


def _denied_pass_role(call: Call) -> Refused | None:
    profile = call.fields.get("IamInstanceProfile.Name") or call.fields.get("IamInstanceProfile.Arn")
    if call.action != "RunInstances" or not profile:
        return None
    return denied(call, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{INSTANCE_PROFILE}")


def _bucket_denied(call: Call) -> Refused | None:
    if call.service != "s3" or not call.fields.get("bucket", "").startswith("cloudtrain-"):
        return None
    return denied(call, f"s3:{call.action}", f"arn:aws:s3:::{call.fields['bucket']}")


def _no_spot_role(call: Call) -> Refused | None:
    if call.action == "CreateServiceLinkedRole" and call.fields.get("AWSServiceName") == "spot.amazonaws.com":
        return denied(call, "iam:CreateServiceLinkedRole", SPOT_ROLE_ARN)
    if call.action == "RunInstances" and call.fields.get("capacity_type") == "spot":
        text = "The provided credentials do not have permission to create the service-linked role for EC2 Spot"
        return Refused("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, f"{text} Instances.")
    return None


def _by_service(*, ec2: Refused, s3: Refused, iam: Refused, other: Refused) -> Callable[[Call], Refused]:
    """The same refusal in each service's own words; STS has IAM's."""
    words = {"ec2": ec2, "s3": s3, "iam": iam, "sts": iam}
    return lambda call: words.get(call.service, other)


_expired_token = _by_service(
    ec2=Refused("RequestExpired", 400, "Request has expired."),
    s3=Refused("ExpiredToken", 400, "The provided token has expired."),
    iam=Refused("ExpiredToken", 403, "The security token included in the request is expired"),
    other=Refused("ExpiredTokenException", 400, "The security token included in the request is expired"),
)
_no_credentials = _by_service(
    ec2=Refused("AuthFailure", 401, "AWS was not able to validate the provided access credentials"),
    s3=Refused("InvalidAccessKeyId", 403, "The AWS Access Key Id you provided does not exist in our records."),
    iam=Refused("InvalidClientTokenId", 403, "The security token included in the request is invalid."),
    other=Refused("UnrecognizedClientException", 400, "The security token included in the request is invalid."),
)
_clock_skew = _by_service(
    ec2=Refused("AuthFailure", 401, "AWS was not able to validate the provided access credentials"),
    s3=Refused(
        "RequestTimeTooSkewed", 403, "The difference between the request time and the current time is too large."
    ),
    iam=Refused("SignatureDoesNotMatch", 403, "Signature expired: the request is older than 5 min."),
    other=Refused("InvalidSignatureException", 400, "Signature expired: the request is older than 5 min."),
)


def _region_off(call: Call) -> Refused | None:
    if call.service in ("iam", "s3") or (call.service, _region(call)) == ("sts", "us-east-1"):
        return None  # these answer in us-east-1, whichever region is meant
    return _no_credentials(call)  # as EC2 words it there: AuthFailure


def _region(call: Call) -> str:
    return call.fields.get("region", "*")


_REFUSALS: Mapping[str, Callable[[Call], Refused | None]] = {
    # In the order in which AWS meets them: who calls, then whether the region is there, then what they may do.
    "clock-skew": _clock_skew,
    "no-credentials": _no_credentials,
    "expired-token": _expired_token,
    "region-off": _region_off,
    "denied-run-instances": _denied_run_instances,
    "denied-describe": _denied_describe,
    "denied-pass-role": _denied_pass_role,
    "bucket-denied": _bucket_denied,
    "no-spot-role": _no_spot_role,
}
