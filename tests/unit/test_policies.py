"""The policies against what the code asks AWS for: nothing missing, nothing beyond."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.account import policies, setup_template
from cloudtrain.provisioner.account.policies import MADE_AT_LAUNCH
from cloudtrain.provisioner.account.setup_plan import ROLE, Document, Wanted, partition_of, wanted
from cloudtrain.provisioner.adapters.run_instances import request
from cloudtrain.provisioner.adapters.tagging import tags
from cloudtrain.provisioner.localcloud.rights import Asked, verdict
from tests.moto.test_run_instances import launch

ROOT = Path(__file__).parents[2]
ACCOUNT = "123456789012"
IT = wanted(ACCOUNT, "us-east-1", "AIDAEXAMPLE", reads=["s3://data/train"], ssm=True)
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
WITH_KEY = wanted(ACCOUNT, "us-east-1", "AIDAEXAMPLE", reads=["s3://data/train"], ssm=True, kms_key=KEY)
EC2 = f"arn:aws:ec2:us-east-1:{ACCOUNT}:"
BUCKET = f"arn:aws:s3:::{IT.bucket}"
IN_OUR_ACCOUNT = {"aws:resourceaccount": ACCOUNT}

SETUP = {"account_bucket.py", "account_setup.py", "account_parts.py", "account_teardown.py"}
MACHINE = {"storage.py"}
PREFIXES = {"service-quotas": "servicequotas"}
# S3 names some rights otherwise than the calls that need them (Service Authorization Reference).
RIGHTS = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "s3:ListParts": "s3:ListMultipartUploadParts",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:CreateMultipartUpload": "s3:PutObject",
    "s3:UploadPart": "s3:PutObject",
    "s3:CompleteMultipartUpload": "s3:PutObject",
    "s3:GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "s3:PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
}
NEEDS_NONE = {"sts:GetCallerIdentity"}
# What AWS asks for beside a call (its role and tags), and what s3transfer, the AWS CLI and SSM's agent call.
IMPLIED = {
    "iam:PassRole",
    "ec2:CreateTags",
    "kms:CreateGrant",  # EC2 and S3 ask KMS in the caller's name
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:GetKeyPolicy",  # setup looks at the key as doctor does
    "kms:ListGrants",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "iam:TagRole",
    "iam:TagInstanceProfile",
    "iam:CreateServiceLinkedRole",
    "s3:AbortMultipartUpload",
    "s3:GetObject",
    "s3:PutObject",
    "ssm:StartSession",
    "ssm:ResumeSession",
    "ssm:TerminateSession",
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
}


def operations() -> dict[str, list[str]]:
    """boto3's method names, each with the actions that it may be."""
    session, found = botocore.session.get_session(), dict[str, list[str]]()
    for service in ("ec2", "s3", "iam", "ssm", "sts", "service-quotas", "kms"):
        for name in session.get_service_model(service).operation_names:
            action = f"{PREFIXES.get(service, service)}:{name}"
            found.setdefault(xform_name(name), []).append(RIGHTS.get(action, action))
    return found


def called(files: Iterable[Path]) -> set[str]:
    """The rights that the code of some files needs: methods and paginators by their names."""
    known, found = operations(), set[str]()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = (
                node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else ""
            )
            if isinstance(name, str) and "_" in name and len(known.get(name, ())) == 1:
                found.update(known[name])
    return found - NEEDS_NONE


def code(only: set[str] | None = None, *, without: set[str] = frozenset()) -> list[Path]:  # type: ignore[assignment]
    files = [*(ROOT / "provisioner" / "adapters").glob("*.py"), ROOT / "trainer" / "storage.py"]
    return [path for path in files if (only is None or path.name in only) and path.name not in without]


def actions(policy: Document) -> set[str]:
    found: set[str] = set()
    for statement in policy["Statement"]:
        named = statement["Action"]
        found.update([named] if isinstance(named, str) else named)
    return found


# ---- by name


def both(it: Wanted) -> Document:
    """The two policies of a person, as one."""
    return {"Statement": [*policies.user_policy(it)["Statement"], *policies.look_policy(it)["Statement"]]}


@pytest.mark.parametrize(
    ("policy", "files"),
    [
        (both(WITH_KEY), code(without=SETUP)),
        (policies.administrator_policy(WITH_KEY), code(SETUP)),
        (policies.machine_policy(WITH_KEY), code(MACHINE)),
    ],
    ids=["user", "administrator", "machine"],
)
def test_every_call_of_the_code_has_its_right_and_every_right_its_call(policy: Document, files: list[Path]) -> None:
    needed = called(files)
    assert len(needed) > 3
    assert needed - actions(policy) == set()
    assert actions(policy) - needed - IMPLIED == set()


def test_there_is_no_wildcard_in_an_action_and_few_in_a_whole_resource() -> None:
    for name, policy in setup_template.all_policies(IT).items():
        if name == "bucket":
            continue
        for statement in policy["Statement"]:
            assert "*" not in str(statement["Action"]), name
            if statement.get("Resource") == "*":
                assert statement["Sid"] in ("Look", "LookForMachines", "SessionManager"), name


def test_the_policies_fit_where_they_go() -> None:
    """Characters, blanks apart: IAM quotas (role's inline policies 10,240, managed 6,144) and S3's (20 KB)."""
    sizes = {name: len(json.dumps(p, separators=(",", ":"))) for name, p in setup_template.all_policies(IT).items()}
    assert max(sizes["user"], sizes["user-look"], sizes["administrator"]) <= 6144
    assert sizes["machine"] * 3 + sizes["machine-read"] + sizes["machine-ssm"] <= 10_240
    assert sizes["bucket"] <= 20_000


def test_every_statement_is_explained() -> None:
    text = (ROOT / "docs" / "aws" / "permissions.md").read_text(encoding="utf-8")
    for name in ("bucket", "machine", "machine-ssm", "user", "user-look", "administrator"):
        for statement in setup_template.all_policies(WITH_KEY)[name]["Statement"]:
            assert statement.get("Sid", "--read") in text, statement


# ---- by what is asked


def may(policy: Document, action: str, resource: str, **context: str) -> bool:
    return (
        verdict([policy], Asked(action, resource, {key.replace("__", ":"): v for key, v in context.items()})) == "allow"
    )


ME = {"aws:userid": "AIDAME"}
MINE = {**ME, "aws:resourcetag/cloudtrain:job": "digits-1", "aws:resourcetag/cloudtrain:owner": "AIDAME"}


def launch_asks(wanted: Any) -> Iterator[Asked]:
    """What EC2 asks IAM for one RunInstances request (Service Authorization Reference, EC2, RunInstances)."""
    marked = {spec["ResourceType"]: spec["Tags"] for spec in wanted["TagSpecifications"]}
    context: dict[str, dict[str, str | tuple[str, ...]]] = {
        kind: {
            **ME,
            **{f"aws:requesttag/{tag['Key']}": tag["Value"] for tag in found},
            "aws:tagkeys": tuple(tag["Key"] for tag in found),
        }
        for kind, found in marked.items()
    }
    context.setdefault("instance", {})["ec2:metadatahttptokens"] = wanted["MetadataOptions"]["HttpTokens"]
    context["instance"]["ec2:metadatahttpputresponsehoplimit"] = str(
        wanted["MetadataOptions"]["HttpPutResponseHopLimit"]
    )
    context["instance"]["ec2:instanceprofile"] = (
        f"arn:aws:iam::{ACCOUNT}:instance-profile/{wanted['IamInstanceProfile']['Name']}"
    )
    encrypted = wanted["BlockDeviceMappings"][0]["Ebs"]["Encrypted"]
    context.setdefault("volume", {})["ec2:encrypted"] = str(encrypted).lower()
    for kind in ("instance", "volume", "network-interface", *(set(marked) - {"instance", "volume"})):
        yield Asked("ec2:RunInstances", f"{EC2}{kind}/*", context.get(kind, {}))
    for resource in (f"{EC2}subnet/subnet-1", f"{EC2}security-group/sg-1", "arn:aws:ec2:us-east-1::image/ami-1"):
        yield Asked("ec2:RunInstances", resource, {})
    for kind in marked:
        keys = tuple(tag["Key"] for tag in marked[kind])
        yield Asked("ec2:CreateTags", f"{EC2}{kind}/*", {"ec2:createaction": "RunInstances", "aws:tagkeys": keys})
    passed = {"iam:passedtoservice": "ec2.amazonaws.com"}
    yield Asked("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{wanted['IamInstanceProfile']['Name']}", passed)


def may_launch(wanted: Any) -> bool:
    policy = policies.user_policy(IT)
    return all(verdict([policy], asked) == "allow" for asked in launch_asks(wanted))


@pytest.mark.parametrize("capacity", list(CapacityType))
def test_a_user_may_launch_what_cloudtrain_launches_and_nothing_less_safe(capacity: CapacityType) -> None:
    mine = replace(launch(capacity), owner="AIDAME")
    sound: Any = request(mine, subnet_id="subnet-1", security_group_id="sg-1")
    assert may_launch(sound)
    theirs = replace(mine, owner="AIDAOTHER")
    assert not may_launch(request(theirs, subnet_id="subnet-1", security_group_id="sg-1"))
    assert {spec["ResourceType"] for spec in sound["TagSpecifications"]} <= set(MADE_AT_LAUNCH)

    def changed(change: Any) -> Any:
        copied = copy.deepcopy(sound)
        change(copied)
        return copied

    def untag(kind: str, key: str) -> Any:
        def change(r: Any) -> None:
            for spec in r["TagSpecifications"]:
                if spec["ResourceType"] == kind:
                    spec["Tags"] = [tag for tag in spec["Tags"] if tag["Key"] != key]

        return change

    for spec in sound["TagSpecifications"]:
        for key in ("cloudtrain:job", "cloudtrain:owner"):
            assert not may_launch(changed(untag(spec["ResourceType"], key))), (spec["ResourceType"], key)
    for spec in sound["TagSpecifications"]:
        kind = spec["ResourceType"]

        def add(r: Any, kind: str = kind) -> None:
            for spec in r["TagSpecifications"]:
                if spec["ResourceType"] == kind:
                    spec["Tags"].append({"Key": "team", "Value": "payroll"})

        assert not may_launch(changed(add)), kind
    assert not may_launch(changed(lambda r: r["MetadataOptions"].update(HttpTokens="optional")))
    assert not may_launch(changed(lambda r: r["MetadataOptions"].update(HttpPutResponseHopLimit=2)))
    assert not may_launch(changed(lambda r: r["IamInstanceProfile"].update(Name="admin")))
    assert not may_launch(changed(lambda r: r["BlockDeviceMappings"][0]["Ebs"].update(Encrypted=False)))


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("ec2:TerminateInstances", "instance"),
        ("ec2:DeleteVolume", "volume"),
        ("ec2:DeleteNetworkInterface", "network-interface"),
        ("ec2:DeleteKeyPair", "key-pair"),
        ("ec2:CancelSpotInstanceRequests", "spot-instances-request"),
        ("ec2:DeleteSecurityGroup", "security-group"),
        ("ec2:AuthorizeSecurityGroupIngress", "security-group"),
        ("ec2:RevokeSecurityGroupIngress", "security-group"),
    ],
)
def test_a_user_may_end_and_change_only_what_belongs_to_a_job_of_his_own(action: str, kind: str) -> None:
    policy, resource = policies.user_policy(IT), f"{EC2}{kind}/x-1"
    assert verdict([policy], Asked(action, resource, MINE)) == "allow"
    assert not may(policy, action, resource)
    for name in ("aws:resourcetag/cloudtrain:job", "aws:resourcetag/cloudtrain:owner", "aws:userid"):
        less = {key: value for key, value in MINE.items() if key != name}
        assert verdict([policy], Asked(action, resource, less)) == "none", name
    assert verdict([policy], Asked(action, resource, {**MINE, "aws:userid": "AIDAOTHER"})) == "none"


def test_a_role_that_is_its_own_owner_may_end_what_it_made() -> None:
    role = wanted(ACCOUNT, "us-east-1", "AROAROLE")
    theirs = {**MINE, "aws:userid": "AROAROLE:botocore-session-7", "aws:resourcetag/cloudtrain:owner": "AROAROLE"}
    asked = Asked("ec2:TerminateInstances", f"{EC2}instance/i-1", theirs)
    assert verdict([policies.user_policy(role)], asked) == "allow"
    assert verdict([policies.user_policy(IT)], asked) == "none"
    person = wanted(ACCOUNT, "us-east-1", "AROAROLE:ann@example.com")  # its session's name says who it is
    assert "AROAROLE" not in json.dumps(policies.user_policy(person))


def test_a_group_is_made_with_the_jobs_tags_alone() -> None:
    policy = policies.user_policy(IT)
    marks: dict[str, Any] = {f"aws:requesttag/{tag['Key']}": tag["Value"] for tag in tags("digits-1", "AIDAME")}
    marks |= {**ME, "aws:tagkeys": tuple(tag["Key"] for tag in tags("digits-1", "AIDAME"))}
    group = f"{EC2}security-group/*"
    assert verdict([policy], Asked("ec2:CreateSecurityGroup", group, marks)) == "allow"
    assert may(policy, "ec2:CreateSecurityGroup", f"{EC2}vpc/vpc-1")
    assert not may(policy, "ec2:CreateSecurityGroup", group)
    made = {"ec2:createaction": "CreateSecurityGroup", "aws:tagkeys": marks["aws:tagkeys"]}
    assert verdict([policy], Asked("ec2:CreateTags", group, made)) == "allow"
    assert verdict([policy], Asked("ec2:CreateTags", group, {**made, "aws:tagkeys": ("Name", "team")})) == "none"
    assert not may(policy, "ec2:CreateTags", f"{EC2}instance/i-1")


def test_a_role_goes_to_ec2_and_the_spot_role_to_spot_alone() -> None:
    policy = both(IT)
    role = f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"
    assert may(policy, "iam:PassRole", role, iam__passedtoservice="ec2.amazonaws.com")
    assert not may(policy, "iam:PassRole", role, iam__passedtoservice="lambda.amazonaws.com")
    assert not may(
        policy, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", iam__passedtoservice="ec2.amazonaws.com"
    )
    spot = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
    assert may(policy, "iam:CreateServiceLinkedRole", spot, iam__awsservicename="spot.amazonaws.com")
    assert not may(policy, "iam:CreateServiceLinkedRole", spot, iam__awsservicename="ecs.amazonaws.com")


@pytest.mark.parametrize(
    ("action", "key", "wanted"),
    [
        ("s3:GetObject", "jobs/a/latest.json", True),
        ("s3:PutObject", "jobs/a/latest.json", True),
        ("s3:AbortMultipartUpload", "jobs/a/checkpoints/g0001-step-1/model.pt", True),
        ("s3:DeleteObject", "jobs/a/checkpoints/g0001-step-1/model.pt", True),
        ("s3:DeleteObject", "jobs/a/latest.json", False),
        ("s3:DeleteObject", "jobs/a/outputs/x", False),
        ("s3:GetObject", "files/0a1b", True),
        ("s3:PutObject", "files/0a1b", False),
        ("s3:GetObject", "mounts/a/index", True),
        ("s3:PutObject", "mounts/a/index", False),
        ("s3:DeleteObject", "files/0a1b", False),
        ("s3:GetObject", "control/a/record.json", False),
        ("s3:PutObject", "control/a/record.json", False),
        ("s3:GetObject", "other", False),
    ],
)
def test_a_machine_reaches_jobs_and_files_and_nothing_of_the_controllers(action: str, key: str, wanted: bool) -> None:
    asked = Asked(action, f"{BUCKET}/{key}", IN_OUR_ACCOUNT)
    assert (verdict([policies.machine_policy(IT)], asked) == "allow") == wanted
    taken = Asked(action, f"{BUCKET}/{key}", {"aws:resourceaccount": "999999999999"})
    assert verdict([policies.machine_policy(IT)], taken) == "none"


@pytest.mark.parametrize(
    ("prefix", "wanted"), [("jobs/a/", True), ("files/", True), ("mounts/a", True), ("control/", False), ("", False)]
)
def test_a_machine_lists_what_it_may_read(prefix: str, wanted: bool) -> None:
    asked = Asked("s3:ListBucket", BUCKET, {**IN_OUR_ACCOUNT, "s3:prefix": prefix})
    assert (verdict([policies.machine_policy(IT)], asked) == "allow") == wanted


def test_a_machine_reads_the_data_that_was_named_and_no_more() -> None:
    policy = policies.read_policy(IT)
    assert may(policy, "s3:GetObject", "arn:aws:s3:::data/train/0.tar")
    assert not may(policy, "s3:GetObject", "arn:aws:s3:::data/test/0.tar")
    assert not may(policy, "s3:PutObject", "arn:aws:s3:::data/train/0.tar")
    assert may(policy, "s3:ListBucket", "arn:aws:s3:::data", s3__prefix="train/")
    assert not may(policy, "s3:ListBucket", "arn:aws:s3:::data", s3__prefix="")


def asked_of_bucket(key: str = "jobs/a", **changes: str) -> Asked:
    sound = {
        "aws:securetransport": "true",
        "s3:tlsversion": "1.3",
        "aws:principalaccount": ACCOUNT,
        "aws:principalarn": f"arn:aws:iam::{ACCOUNT}:user/ann",
        "aws:principalisawsservice": "false",
    }
    return Asked("s3:GetObject", f"{BUCKET}/{key}", sound | {k.replace("__", ":"): v for k, v in changes.items()})


def test_the_bucket_denies_plain_http_old_tls_strangers_and_machines_among_the_controllers() -> None:
    policy, me = [policies.bucket_policy(IT)], f"arn:aws:iam::{ACCOUNT}:user/ann"
    machine = f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"
    for allowed in (
        asked_of_bucket(),
        asked_of_bucket("control/a"),
        asked_of_bucket(s3__tlsversion="1.2"),
        asked_of_bucket(aws__principalarn=machine),
    ):
        assert verdict(policy, allowed, me) == "none"  # what allows it is the caller's own policy
    for denied in (
        asked_of_bucket(aws__securetransport="false"),
        asked_of_bucket(s3__tlsversion="1.1"),
        asked_of_bucket(aws__principalaccount="999999999999"),
        asked_of_bucket("control/a", aws__principalarn=machine),
    ):
        assert verdict(policy, denied, me) == "deny"
    assert verdict(policy, asked_of_bucket(aws__principalaccount="", aws__principalisawsservice="true"), me) == "none"
    anonymous = Asked("s3:GetObject", f"{BUCKET}/jobs/a", {"aws:securetransport": "true", "s3:tlsversion": "1.3"})
    assert verdict(policy, anonymous, me) == "deny"


# ---- the key


def test_the_key_is_used_through_s3_and_ec2_alone_and_for_no_grant_but_ec2s() -> None:
    s3, ec2 = {"kms:viaservice": "s3.us-east-1.amazonaws.com"}, {"kms:viaservice": "ec2.us-east-1.amazonaws.com"}
    machine, person = [policies.machine_policy(WITH_KEY)], [policies.user_policy(WITH_KEY)]
    for action in ("kms:Decrypt", "kms:GenerateDataKey"):
        assert verdict(machine, Asked(action, KEY, s3)) == verdict(person, Asked(action, KEY, s3)) == "allow"
        assert verdict(machine, Asked(action, KEY, {})) == verdict(machine, Asked(action, KEY, ec2)) == "none"
        assert verdict(machine, Asked(action, KEY.replace("1111", "9"), s3)) == "none"
    assert verdict(person, Asked("kms:GenerateDataKeyWithoutPlaintext", KEY, ec2)) == "allow"
    for_aws = {"kms:grantisforawsresource": "true"}
    assert verdict(person, Asked("kms:CreateGrant", KEY, ec2 | for_aws)) == "allow"
    assert verdict(person, Asked("kms:CreateGrant", KEY, ec2)) == "none"
    assert verdict(machine, Asked("kms:CreateGrant", KEY, ec2 | for_aws)) == "none"
    administrator = [policies.administrator_policy(WITH_KEY)]
    spot = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
    assert verdict(administrator, Asked("kms:CreateGrant", KEY, {"kms:granteeprincipal": spot})) == "allow"
    assert verdict(administrator, Asked("kms:CreateGrant", KEY, {"kms:granteeprincipal": "arn:x"})) == "none"
    assert "kms:Decrypt" not in json.dumps([policies.machine_policy(IT), policies.user_policy(IT)])


# ---- the template


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    else:
        yield str(value)


def test_the_template_makes_what_setup_makes() -> None:
    resources = setup_template.template(IT)["Resources"]
    bucket, role = resources["Bucket"]["Properties"], resources["MachineRole"]["Properties"]
    assert (bucket["BucketName"], bucket["BucketNamespace"]) == (IT.bucket, "account-regional")
    assert resources["BucketPolicy"]["Properties"]["PolicyDocument"] == policies.bucket_policy(IT)
    assert role["RoleName"] == resources["MachineProfile"]["Properties"]["InstanceProfileName"] == ROLE
    assert {policy["PolicyName"] for policy in role["Policies"]} == {
        IT.role_policy,
        "cloudtrain-read",
        "cloudtrain-ssm",
    }
    assert resources["UserPolicy"]["Properties"]["PolicyDocument"] == policies.user_policy(IT)
    assert resources["UserLookPolicy"]["Properties"]["PolicyDocument"] == policies.look_policy(IT)
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    (rule,) = setup_template.template(WITH_KEY)["Resources"]["Bucket"]["Properties"]["BucketEncryption"][
        "ServerSideEncryptionConfiguration"
    ]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
    assert "BucketNamespace" not in setup_template.template(wanted(ACCOUNT, "me-south-1", ""))["Resources"]["Bucket"]


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "eusc-de-east-1"])
def test_another_partition_is_named_throughout(region: str) -> None:
    key = f"arn:{partition_of(region)}:kms:{region}:{ACCOUNT}:key/1"
    it: Wanted = wanted(ACCOUNT, region, "AIDA", reads=["s3://data"], ssm=True, kms_key=key)
    arns = [text for text in strings(setup_template.all_policies(it)) if text.startswith("arn:")]
    assert len(arns) > 20
    assert {arn.split(":")[1] for arn in arns} == {it.partition}
