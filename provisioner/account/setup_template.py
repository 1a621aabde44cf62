"""What an administrator is handed: all of `setup` as one CloudFormation template, and every policy by its name. Pure.

Resource types and properties: the CloudFormation template reference, read 2026-11.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.provisioner.account import policies
from cloudtrain.provisioner.account.setup_plan import (
    INCOMPLETE_DAYS,
    LIFECYCLE_ID,
    PUBLIC_ACCESS,
    READ_POLICY,
    ROLE,
    SPOT_SERVICE,
    SSM_POLICY,
    TAG_MADE_BY,
    Document,
    Wanted,
    encryption_rule,
)

# Not the mark of `setup`: a stack's things are changed and removed through the stack.
_TAGS = [{"Key": TAG_MADE_BY, "Value": "cloudformation"}]
_SPOT_TEXT = "Make EC2's spot role. No where the account has it: an account has it once it has had a spot machine."


def all_policies(it: Wanted) -> dict[str, Document]:
    """Every policy under a name: bucket, machine-trust, machine, user, user-look, administrator; read and ssm where
    wanted."""
    optional = {"machine-read": policies.read_policy(it)} if it.reads else {}
    optional |= {"machine-ssm": policies.ssm_policy()} if it.ssm else {}
    return {
        "bucket": policies.bucket_policy(it),
        "machine-trust": policies.machine_trust(it),
        "machine": policies.machine_policy(it),
        **optional,
        "user": policies.user_policy(it),
        "user-look": policies.look_policy(it),
        "administrator": policies.administrator_policy(it),
    }


def template(it: Wanted) -> Document:
    """The stack: bucket, role, profile, the spot role on request, and a managed policy to attach to people."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "What cloudtrain needs in an account: a bucket, the machines' role, and the users' policy.",
        "Parameters": {
            "CreateSpotRole": {
                "Type": "String",
                "AllowedValues": ["yes", "no"],
                "Default": "no",
                "Description": _SPOT_TEXT,
            }
        },
        "Conditions": {"WithSpotRole": {"Fn::Equals": [{"Ref": "CreateSpotRole"}, "yes"]}},
        "Resources": {**_bucket(it), **_role(it), **_people(it)},
        "Outputs": {
            "Bucket": {"Value": {"Ref": "Bucket"}, "Description": "Where jobs keep checkpoints, logs and outputs."},
            "UserPolicy": {"Value": {"Ref": "UserPolicy"}, "Description": "Attach both to whoever launches jobs."},
            "UserLookPolicy": {"Value": {"Ref": "UserLookPolicy"}, "Description": "The other one."},
        },
    }


def _bucket(it: Wanted) -> Document:
    abort = {
        "Id": LIFECYCLE_ID,
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": INCOMPLETE_DAYS},
    }
    properties = {
        "BucketName": it.bucket,
        **({"BucketNamespace": "account-regional"} if it.account_regional else {}),
        "BucketEncryption": {"ServerSideEncryptionConfiguration": [_encryption(it)]},
        "LifecycleConfiguration": {"Rules": [abort]},
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "PublicAccessBlockConfiguration": PUBLIC_ACCESS,
        "Tags": _TAGS,
    }
    policy = {"Bucket": {"Ref": "Bucket"}, "PolicyDocument": policies.bucket_policy(it)}
    return {
        # Checkpoints outlive a stack that was deleted by mistake.
        "Bucket": _resource("AWS::S3::Bucket", properties, DeletionPolicy="Retain", UpdateReplacePolicy="Retain"),
        "BucketPolicy": _resource("AWS::S3::BucketPolicy", policy),
    }


def _encryption(it: Wanted) -> Document:
    rule = encryption_rule(it.kms_key)
    default = rule.pop("ApplyServerSideEncryptionByDefault")
    return {"ServerSideEncryptionByDefault": default, **rule}


def _role(it: Wanted) -> Document:
    inline = {it.role_policy: policies.machine_policy(it)}
    inline |= {READ_POLICY: policies.read_policy(it)} if it.reads else {}
    inline |= {SSM_POLICY: policies.ssm_policy()} if it.ssm else {}
    role = {
        "RoleName": ROLE,
        "Description": "Machines of cloudtrain",
        "AssumeRolePolicyDocument": policies.machine_trust(it),
        "Policies": [{"PolicyName": name, "PolicyDocument": document} for name, document in inline.items()],
        "Tags": _TAGS,
    }
    profile = {"InstanceProfileName": ROLE, "Roles": [{"Ref": "MachineRole"}]}
    return {
        "MachineRole": _resource("AWS::IAM::Role", role),
        "MachineProfile": _resource("AWS::IAM::InstanceProfile", profile),
        "SpotRole": _resource(
            "AWS::IAM::ServiceLinkedRole", {"AWSServiceName": SPOT_SERVICE}, Condition="WithSpotRole"
        ),
    }


def _people(it: Wanted) -> Document:
    def managed(text: str, document: Document) -> Document:
        return _resource("AWS::IAM::ManagedPolicy", {"Description": text, "PolicyDocument": document})

    return {
        "UserPolicy": managed("Launch and end cloudtrain jobs", policies.user_policy(it)),
        "UserLookPolicy": managed("Watch cloudtrain jobs, and look at the account", policies.look_policy(it)),
    }


def _resource(kind: str, properties: Document, **attributes: Any) -> Document:
    return {"Type": kind, **attributes, "Properties": properties}
