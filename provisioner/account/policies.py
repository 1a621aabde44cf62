"""Who may do what: the bucket's policy, the machines' role, and the rights of the people who use cloudtrain. Pure.

Each statement's reason stands in docs/aws/permissions.md. Sources, read 2026-11: the Service Authorization Reference
(actions, resources and condition keys of EC2, S3, IAM, SSM, Service Quotas), the EC2 user guide (ExamplePolicies_EC2: a
RequestTag condition stands on what the call makes, never on what is there), the S3 user guide (conditional writes).
Tests hold the statements against the calls that the code makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cloudtrain.provisioner.account.setup_plan import ROLE, SPOT_ROLE, SPOT_SERVICE, Document, Place, Wanted
from cloudtrain.provisioner.names import TAG_BUCKET, TAG_GENERATION, TAG_JOB, TAG_OWNER, TAG_TOKEN

VERSION = "2012-10-17"
MADE_AT_LAUNCH = ("instance", "volume", "network-interface", "spot-instances-request")
_READ_ONLY = ("files/", "mounts/")
_TAGS = sorted(("Name", TAG_BUCKET, TAG_GENERATION, TAG_JOB, TAG_OWNER, TAG_TOKEN))
_EC2_LOOKS = (
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstances",
    "ec2:DescribeInternetGateways",
    "ec2:DescribeKeyPairs",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRegions",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "ec2:DescribeVpcs",
    "ec2:GetEbsDefaultKmsKeyId",
)
_ROLE_LOOKS = [
    "iam:GetRolePolicy",
    "iam:ListAttachedRolePolicies",
    "iam:ListRolePolicies",
    "iam:SimulatePrincipalPolicy",
]
_QUOTAS = (
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
)


def bucket_policy(it: Wanted) -> Document:
    """TLS 1.2 or later, this account alone, and no machine where the controllers keep their own."""
    bucket, everything = _bucket(it), f"{_bucket(it)}/*"
    machines = {"ArnEquals": {"aws:PrincipalArn": it.arn("iam", f"role/{ROLE}")}}
    outside = {
        "StringNotEquals": {"aws:PrincipalAccount": it.account},
        "BoolIfExists": {"aws:PrincipalIsAWSService": "false"},  # S3's own lifecycle and logging
    }
    old_tls = {"NumericLessThan": {"s3:TlsVersion": "1.2"}}
    return _policy(
        _deny("CloudtrainTlsOnly", [bucket, everything], {"Bool": {"aws:SecureTransport": "false"}}),
        _deny("CloudtrainNoOldTls", [bucket, everything], old_tls),
        _deny("CloudtrainThisAccountOnly", [bucket, everything], outside),
        _deny("CloudtrainControllersOnly", f"{bucket}/control/*", machines),
    )


def machine_trust(it: Wanted) -> Document:
    """EC2 may give the role to machines."""
    return _policy(
        {
            "Sid": "Machines",
            "Effect": "Allow",
            "Principal": {"Service": ec2_service(it)},
            "Action": "sts:AssumeRole",
        }
    )


def machine_policy(it: Wanted) -> Document:
    """What the agent does in this region's bucket: jobs' objects read and written, checkpoints pruned, files read."""
    bucket = _bucket(it)
    ours = {"StringEquals": {"aws:ResourceAccount": it.account}}  # a name that another account holds opens nothing
    prefixes = [f"{prefix}*" for prefix in ("jobs/", *_READ_ONLY)]
    return _policy(
        *_objects_key(it),
        _allow("ReadAndWriteJobs", _JOB_OBJECTS, f"{bucket}/jobs/*", ours),
        _allow("PruneCheckpoints", "s3:DeleteObject", f"{bucket}/jobs/*/checkpoints/*", ours),
        _allow("ReadFiles", "s3:GetObject", [f"{bucket}/{prefix}*" for prefix in _READ_ONLY], ours),
        _allow("ListJobsAndFiles", "s3:ListBucket", bucket, {**ours, "StringLike": {"s3:prefix": prefixes}}),
    )


# If-Match needs GetObject as well as PutObject; a large upload that fails is aborted.
_JOB_OBJECTS = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]


def read_policy(it: Wanted) -> Document:
    """The data that machines may read besides, a statement or two for each place."""
    return _policy(*(statement for place in it.reads for statement in _reading(it, place)))


def _reading(it: Wanted, place: Place) -> Iterable[Document]:
    bucket = it.arn("s3", place.bucket)
    within = {"StringLike": {"s3:prefix": f"{place.prefix}*"}} if place.prefix else None
    yield _allow(None, "s3:GetObject", f"{bucket}/{place.prefix}*")
    yield _allow(None, "s3:ListBucket", bucket, within)


def ssm_policy() -> Document:
    """What the machine's own SSM agent needs for Session Manager; it names no resources (SSM user guide)."""
    channels = ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")
    actions = [*(f"ssmmessages:{name}" for name in channels), "ssm:UpdateInstanceInformation"]
    return _policy(_allow("SessionManager", actions, "*"))


def user_policy(it: Wanted) -> Document:
    """What a person needs to launch and end jobs, and to keep what is theirs. It changes things; the next one looks."""
    return _policy(*_launching(it), *_networks(it), *_ending(it), *_storing(it), *_keys(it))


def look_policy(it: Wanted) -> Document:
    """What the loop, `plan` and `doctor` look at, and the ways to a machine. One managed policy does not hold both."""
    return _policy(*_looking(it), *_sessions(it))


def _owners(it: Wanted) -> str | list[str]:
    """What the owner tag may say: the caller. A role whose sessions are named anew at each login is its own owner
    (``identity.stable_owner``), which no variable says: only where that role asks for the policies do they know it."""
    return ["${aws:userid}", it.owner] if it.owner.startswith("AROA") and ":" not in it.owner else "${aws:userid}"


def _of_a_job(it: Wanted) -> Document:
    """On what is there: a job's, and the caller's own."""
    return {
        "StringLike": {f"aws:ResourceTag/{TAG_JOB}": "?*"},
        "StringEquals": {f"aws:ResourceTag/{TAG_OWNER}": _owners(it)},
    }


def _for_a_job(it: Wanted) -> Document:
    """On what is made: for a job, as the caller's own, so that whoever can make it can end it; with our tags alone."""
    return {
        "StringLike": {f"aws:RequestTag/{TAG_JOB}": "?*"},
        "StringEquals": {f"aws:RequestTag/{TAG_OWNER}": _owners(it)},
        "ForAllValues:StringEquals": {"aws:TagKeys": _TAGS},
    }


def _launching(it: Wanted) -> Iterable[Document]:
    tagged = _for_a_job(it)
    instance = {
        **tagged,
        "StringEquals": {**tagged["StringEquals"], "ec2:MetadataHttpTokens": "required"},
        "NumericLessThanEquals": {"ec2:MetadataHttpPutResponseHopLimit": "1"},
        "ArnEquals": {"ec2:InstanceProfile": it.arn("iam", f"instance-profile/{ROLE}")},
    }
    yield _allow("LaunchMachines", "ec2:RunInstances", _ec2(it, "instance"), instance)
    encrypted = {**tagged, "Bool": {"ec2:Encrypted": "true"}}
    yield _allow("LaunchVolumes", "ec2:RunInstances", _ec2(it, "volume"), encrypted)
    made = [_ec2(it, "network-interface"), _ec2(it, "spot-instances-request")]
    yield _allow("LaunchWithTags", "ec2:RunInstances", made, tagged)
    images = f"arn:{it.partition}:ec2:*::image/*"
    there = [images, _ec2(it, "subnet"), _ec2(it, "security-group")]
    yield _allow("LaunchFrom", "ec2:RunInstances", there)
    creating = {
        "StringEquals": {"ec2:CreateAction": ["RunInstances", "CreateSecurityGroup"]},
        "ForAllValues:StringEquals": {"aws:TagKeys": _TAGS},
    }
    kinds = [_ec2(it, kind) for kind in (*MADE_AT_LAUNCH, "security-group")]
    yield _allow("TagWhatIsMade", "ec2:CreateTags", kinds, creating)
    to_ec2 = {"StringEquals": {"iam:PassedToService": ec2_service(it)}}
    yield _allow("GiveMachinesTheirRole", "iam:PassRole", it.arn("iam", f"role/{ROLE}"), to_ec2)


def _networks(it: Wanted) -> Iterable[Document]:
    group = _ec2(it, "security-group")
    yield _allow("MakeJobGroups", "ec2:CreateSecurityGroup", group, _for_a_job(it))
    yield _allow("MakeJobGroupsInNetworks", "ec2:CreateSecurityGroup", _ec2(it, "vpc"))
    doors = ["ec2:AuthorizeSecurityGroupIngress", "ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress"]
    yield _allow("OpenAndCloseJobGroups", doors, group, _of_a_job(it))


def _ending(it: Wanted) -> Iterable[Document]:
    yield _allow("EndMachines", "ec2:TerminateInstances", _ec2(it, "instance"), _of_a_job(it))
    leftovers = {
        "ec2:CancelSpotInstanceRequests": "spot-instances-request",
        "ec2:DeleteKeyPair": "key-pair",
        "ec2:DeleteNetworkInterface": "network-interface",
        "ec2:DeleteVolume": "volume",
    }
    kinds = [_ec2(it, kind) for kind in leftovers.values()]
    yield _allow("ClearUp", list(leftovers), kinds, _of_a_job(it))


def _looking(it: Wanted) -> Iterable[Document]:
    yield _allow("Look", [*_EC2_LOOKS, *_QUOTAS, "sts:DecodeAuthorizationMessage"], "*")
    images = f"arn:{it.partition}:ssm:*::parameter/aws/service/deeplearning/ami/*"  # public: no account
    yield _allow("FindImages", "ssm:GetParameter", images)
    spot = it.arn("iam", f"role/aws-service-role/{SPOT_SERVICE}/{SPOT_ROLE}")
    role, profile = it.arn("iam", f"role/{ROLE}"), it.arn("iam", f"instance-profile/{ROLE}")
    yield _allow("LookAtRoles", ["iam:GetInstanceProfile", "iam:GetRole"], [role, profile, spot])
    yield _allow("LookAtTheMachinesRights", _ROLE_LOOKS, role)
    attached = [it.arn("iam", "policy/*"), f"arn:{it.partition}:iam::aws:policy/*"]
    yield _allow("LookAtAttachedPolicies", ["iam:GetPolicy", "iam:GetPolicyVersion"], attached)
    keys = it.arn("kms", "key/*", region="*")
    yield _allow("LookAtDiskKeys", ["kms:DescribeKey", "kms:GetKeyPolicy", "kms:ListGrants"], keys)
    spot_only = {"StringEquals": {"iam:AWSServiceName": SPOT_SERVICE}}
    yield _allow("MakeTheSpotRole", "iam:CreateServiceLinkedRole", spot, spot_only)


def _storing(it: Wanted) -> Iterable[Document]:
    objects = [*_JOB_OBJECTS, "s3:DeleteObject", "s3:ListMultipartUploadParts"]
    yield _allow("KeepJobs", objects, f"{_bucket(it)}/*", {"StringEquals": {"aws:ResourceAccount": it.account}})
    looks = ["s3:GetBucketPublicAccessBlock", "s3:ListBucket", "s3:ListBucketMultipartUploads"]
    yield _allow("ListJobs", looks, _bucket(it))
    yield from _reading_all(it)


def _reading_all(it: Wanted) -> Iterable[Document]:
    """The size of a job's data is looked up before it is copied."""
    for place in it.reads:
        yield from _reading(it, place)


def _objects_key(it: Wanted) -> Iterable[Document]:
    """The bucket's key, used by S3 for the caller and by nothing else."""
    if it.kms_key:
        via = {"StringEquals": {"kms:ViaService": f"s3.{it.region}.{_domain(it)}"}}
        yield _allow("UseTheKeyForObjects", ["kms:Decrypt", "kms:GenerateDataKey"], it.kms_key, via)


def _keys(it: Wanted) -> Iterable[Document]:
    """The key for objects, and for volumes that EC2 encrypts in the caller's name (EBS user guide, "Required
    permissions"; on spot machines it is the spot role that needs it)."""
    yield from _objects_key(it)
    if it.kms_key:
        via = {"kms:ViaService": f"ec2.{it.region}.{_domain(it)}"}
        uses = ["Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo"]
        volumes = [f"kms:{name}" for name in uses]
        yield _allow("UseTheKeyForVolumes", volumes, it.kms_key, {"StringEquals": via})
        for_aws = {"StringEquals": via, "Bool": {"kms:GrantIsForAWSResource": "true"}}
        yield _allow("LetEc2UseTheKey", "kms:CreateGrant", it.kms_key, for_aws)


def _sessions(it: Wanted) -> Iterable[Document]:
    if it.ssm:
        yield _allow("ReachThroughSsm", "ssm:StartSession", _ec2(it, "instance"), _of_a_job(it))
        document = f"arn:{it.partition}:ssm:*::document/AWS-StartSSHSession"
        yield _allow("ReachThroughSsmBySsh", "ssm:StartSession", document)
        mine = it.arn("ssm", "session/${aws:userid}-*", region="*")
        yield _allow("EndOwnSessions", ["ssm:ResumeSession", "ssm:TerminateSession"], mine)


def administrator_policy(it: Wanted) -> Document:
    """What `setup` and `setup --destroy` need. Who has it can give the machines' role any right: for administrators."""
    bucket = _bucket(it)
    settings = ("BucketOwnershipControls", "BucketPolicy", "BucketPublicAccessBlock", "BucketTagging")
    reads = [f"s3:Get{name}" for name in (*settings, "EncryptionConfiguration", "LifecycleConfiguration")]
    writes = [f"s3:Put{name}" for name in (*settings, "EncryptionConfiguration", "LifecycleConfiguration")]
    ours = [*reads, *writes, "s3:CreateBucket", "s3:DeleteBucket", "s3:ListBucket"]
    role, profile = it.arn("iam", f"role/{ROLE}"), it.arn("iam", f"instance-profile/{ROLE}")
    spot = it.arn("iam", f"role/aws-service-role/{SPOT_SERVICE}/{SPOT_ROLE}")
    on_role = (
        *("CreateRole", "DeleteRole", "DeleteRolePolicy", "GetRole", "GetRolePolicy", "ListAttachedRolePolicies"),
        *("ListRolePolicies", "PutRolePolicy", "TagRole"),
    )
    on_profile = (
        *("AddRoleToInstanceProfile", "CreateInstanceProfile", "DeleteInstanceProfile", "GetInstanceProfile"),
        *("RemoveRoleFromInstanceProfile", "TagInstanceProfile"),
    )
    spot_only = {"StringEquals": {"iam:AWSServiceName": SPOT_SERVICE}}
    to_ec2 = {"StringEquals": {"iam:PassedToService": ec2_service(it)}}
    return _policy(
        _allow("TheBucket", sorted(ours), bucket),
        _allow("TheRole", [f"iam:{name}" for name in on_role], role),
        _allow("TheProfile", [f"iam:{name}" for name in on_profile], profile),
        _allow("TheRoleIntoTheProfile", "iam:PassRole", role, to_ec2),
        _allow("LookAtTheSpotRole", "iam:GetRole", spot),
        _allow("LookForMachines", ["ec2:DescribeInstances", "ec2:DescribeRegions"], "*"),
        _allow("MakeTheSpotRole", "iam:CreateServiceLinkedRole", spot, spot_only),
        *_key_for_spot(it, spot),
    )


def _key_for_spot(it: Wanted, spot: str) -> Iterable[Document]:
    if it.kms_key:
        yield _allow("LookAtTheKey", ["kms:GetKeyPolicy", "kms:ListGrants"], it.kms_key)
        to_spot = {"StringEquals": {"kms:GranteePrincipal": spot}}
        yield _allow("LetTheSpotRoleUseTheKey", "kms:CreateGrant", it.kms_key, to_spot)


def ec2_service(it: Wanted) -> str | list[str]:
    """EC2's name as a principal; in China it has two."""
    return ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"] if it.partition == "aws-cn" else "ec2.amazonaws.com"


def _domain(it: Wanted) -> str:
    """The end of AWS's service names in kms:ViaService (KMS developer guide)."""
    return {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}.get(it.partition, "amazonaws.com")


def _bucket(it: Wanted) -> str:
    return it.arn("s3", it.bucket)


def _ec2(it: Wanted, kind: str) -> str:
    """In every region: jobs launch in all of them, and keep their objects in one."""
    return it.arn("ec2", f"{kind}/*", region="*")


def _policy(*statements: Document) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(sid: str | None, actions: Any, resources: Any, condition: Document | None = None) -> Document:
    name = {"Sid": sid} if sid else {}
    rest = {"Condition": condition} if condition else {}
    return {**name, "Effect": "Allow", "Action": actions, "Resource": resources, **rest}


def _deny(sid: str, resources: Any, condition: Document) -> Document:
    return {
        "Sid": sid,
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": resources,
        "Condition": condition,
    }
