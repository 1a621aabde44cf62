"""`setup` against moto: an empty account in each test."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.iam.models import iam_backends

from cloudtrain.provisioner.account import policies, setup_plan
from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.account.setup_plan import ROLE, SPOT_ROLE, Wanted, wanted
from cloudtrain.provisioner.adapters import account_setup, account_teardown
from cloudtrain.provisioner.adapters.account_facts import bucket
from cloudtrain.provisioner.adapters.account_parts import account, parts
from cloudtrain.provisioner.adapters.account_setup import State, bucket_region, carry_out, find_bucket, survey
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import AccessError, RegionDenied, UsageError

ACCOUNT = "123456789012"
US, EU = "us-east-1", "eu-west-1"
ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann", "AIDAEXAMPLE", None)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    """Clients of an account in which nothing was set up, whose IAM names the spot role as AWS does."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setattr(account_setup, "_WAIT_S", 0.0)
    with mock_aws():
        made = Clients("aws")

        def spot_role(**_: Any) -> Any:
            backend = iam_backends[ACCOUNT]["aws"]
            if any(role.name == SPOT_ROLE for role in backend.roles.values()):
                text = f"Service role name {SPOT_ROLE} has been taken in this account, please try a different suffix."
                raise ClientError({"Error": {"Code": "InvalidInput", "Message": text}}, "CreateServiceLinkedRole")
            backend.create_role(SPOT_ROLE, "{}", "/", None, "", [], "3600")
            return {}

        for region in (US, EU):
            monkeypatch.setattr(made.client("iam", region), "create_service_linked_role", spot_role)
        yield made


def want(region: str = US, **more: Any) -> Wanted:
    return wanted(ACCOUNT, region, "AROAEXAMPLE:ann,b", **more)


def set_up(clients: Clients, it: Wanted) -> dict[str, str | None]:
    """Part and trouble of all that was done."""
    return {made.part.what: made.trouble for made in carry_out(survey(parts(account(clients, ME, it))))}


def states(clients: Clients, it: Wanted) -> set[State]:
    return {seen.state for seen in survey(parts(account(clients, ME, it))).values()}


def refuse(clients: Clients, service: Any, operation: str, code: str = "AccessDenied", times: int = 10**6) -> None:
    """Refuse an operation, as IAM does."""
    client, left = clients.client(service, US), [times]
    text = f"User: {ME.arn} is not authorized to perform: {operation}"
    parsed = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": 403, "RequestId": "r"}}

    class Reply:
        status_code = 403

    def answer(**_: Any) -> Any:
        left[0] -= 1
        return (Reply(), parsed) if left[0] >= 0 else None

    client.meta.events.register_first(f"before-call.{service}.{operation}", answer)


@pytest.mark.parametrize("region", [US, EU])
def test_an_empty_account_is_set_up_whole_and_then_there_is_nothing_to_do(clients: Clients, region: str) -> None:
    it = want(region, reads=["s3://data/train/"], ssm=True)
    assert find_bucket(clients, ME, region) is None
    assert states(clients, it) == {State.MISSING}
    assert set(set_up(clients, it).values()) == {None}
    assert states(clients, it) == {State.THERE}
    assert set_up(clients, it) == {}

    s3, name = clients.client("s3", region), f"cloudtrain-{ACCOUNT}-{region}-an"
    assert find_bucket(clients, ME, region) == name
    assert bucket_region(clients, ME, name, US) == region
    tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=name)["TagSet"]}
    assert tags == {"cloudtrain:made-by": "setup", "cloudtrain:owner": "AROAEXAMPLE:ann_b"}
    assert json.loads(s3.get_bucket_policy(Bucket=name)["Policy"]) == policies.bucket_policy(it)
    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    assert all(block.values()) and len(block) == 4

    iam = clients.client("iam", region)
    profile = iam.get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == [ROLE]
    names = iam.list_role_policies(RoleName=ROLE)["PolicyNames"]
    assert sorted(names) == sorted([f"cloudtrain-{region}", "cloudtrain-read", "cloudtrain-ssm"])
    shown = iam.get_role_policy(RoleName=ROLE, PolicyName=f"cloudtrain-{region}")["PolicyDocument"]
    assert shown == policies.machine_policy(it)


def test_another_region_gets_its_bucket_and_the_role_rights_to_both(clients: Clients) -> None:
    set_up(clients, want(US))
    done = set_up(clients, want(EU))
    assert "machine role" not in done and done["bucket"] is None
    names = clients.client("iam", US).list_role_policies(RoleName=ROLE)["PolicyNames"]
    assert sorted(names) == [f"cloudtrain-{EU}", f"cloudtrain-{US}"]


def test_the_bucket_of_the_common_namespace_serves_where_it_is_there(clients: Clients) -> None:
    name = f"cloudtrain-{ACCOUNT}-{US}"
    clients.client("s3", US).create_bucket(Bucket=name)
    assert set(set_up(clients, want()).values()) == {None}
    assert find_bucket(clients, ME, US) == name


def test_what_an_administrator_added_is_kept(clients: Clients) -> None:
    it = want()
    set_up(clients, it)
    s3 = clients.client("s3", US)
    theirs: Any = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}
    s3.put_bucket_lifecycle_configuration(Bucket=it.bucket, LifecycleConfiguration={"Rules": [theirs]})
    statement = {**policies.bucket_policy(it)["Statement"][0], "Sid": "Theirs"}
    s3.put_bucket_policy(Bucket=it.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    assert set_up(clients, it) == {"bucket policy": None, "upload clean-up": None}
    rules = s3.get_bucket_lifecycle_configuration(Bucket=it.bucket)["Rules"]
    assert [rule["ID"] for rule in rules] == ["theirs", setup_plan.LIFECYCLE_ID]
    sids = [s["Sid"] for s in json.loads(s3.get_bucket_policy(Bucket=it.bucket)["Policy"])["Statement"]]
    assert sids == ["Theirs", *(s["Sid"] for s in policies.bucket_policy(it)["Statement"])]


def test_reads_are_added_and_never_taken_away(clients: Clients) -> None:
    set_up(clients, want(reads=["s3://one"]))
    assert set_up(clients, want(reads=["s3://two/x"])) == {"role's data rights": None}
    assert set_up(clients, want(reads=["s3://one", "s3://two/x"])) == {}
    assert set_up(clients, want()) == {}


def test_without_a_permission_the_rest_is_made_and_the_missing_action_is_named(clients: Clients) -> None:
    refuse(clients, "iam", "CreateRole")
    refuse(clients, "s3", "PutBucketPolicy")
    done = set_up(clients, want())
    troubles = {what: trouble for what, trouble in done.items() if trouble is not None}
    assert set(troubles) == {"machine role", "role's bucket rights", "bucket policy", "role in the profile"}
    assert "iam:CreateRole" in troubles["machine role"]
    assert "s3:PutBucketPolicy" in troubles["bucket policy"]
    assert troubles["role's bucket rights"] == "role's bucket rights cloudtrain-us-east-1: it needs the machine role"
    assert find_bucket(clients, ME, US)


def test_what_may_not_be_looked_at_is_not_changed(clients: Clients) -> None:
    it = want()
    set_up(clients, it)
    refuse(clients, "s3", "GetBucketPolicy")
    clients.client("s3", US).delete_bucket_policy(Bucket=it.bucket)
    done = set_up(clients, it)
    assert done == {"bucket policy": "bucket policy: you lack s3:GetBucketPolicy"}


def test_a_role_and_a_bucket_of_somebody_elses_are_left_as_they_are(clients: Clients) -> None:
    it = want()
    iam, s3 = clients.client("iam", US), clients.client("s3", US)
    iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
    s3.create_bucket(Bucket=it.bucket)
    s3.put_bucket_tagging(Bucket=it.bucket, Tagging={"TagSet": [{"Key": "team", "Value": "x"}]})
    done = set_up(clients, it)
    assert "bucket" not in done and "machine role" not in done
    assert "not made by setup" in str(done["bucket policy"]) and "by hand" in str(done["role's bucket rights"])
    assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == []
    with pytest.raises(ClientError, match="NoSuchBucketPolicy"):
        s3.get_bucket_policy(Bucket=it.bucket)
    assert done["instance profile"] is None and done["role in the profile"] is None


def test_a_name_that_another_account_has_is_said(clients: Clients) -> None:
    refuse(clients, "s3", "HeadBucket", "403")
    with pytest.raises(AccessError, match="another account's, or you lack s3:ListBucket"):
        find_bucket(clients, ME, US)
    with pytest.raises(AccessError, match="has no bucket data, or you lack"):
        bucket_region(clients, ME, "data", US)
    done = set_up(clients, want())
    assert "s3:ListBucket" in str(done["bucket"])
    assert done["machine role"] is None


def test_a_customer_key_of_the_bucket_that_no_policy_can_name_is_kept_and_said(clients: Clients) -> None:
    it, key = want(), "alias/theirs"
    set_up(clients, it)
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    encryption: Any = {"Rules": [rule]}
    clients.client("s3", US).put_bucket_encryption(Bucket=it.bucket, ServerSideEncryptionConfiguration=encryption)
    seen = {part.what: found for part, found in survey(parts(account(clients, ME, it))).items()}
    assert seen["encryption"].state is State.THERE
    assert seen["encryption"].note == f"under {key}: name its ARN with --kms-key, or the machines' role may not use it"
    assert seen["upload clean-up"].note == ""


def test_a_second_name_that_another_account_has_taken_keeps_nobody_from_the_first(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = clients.client("s3", US)
    taken = f"cloudtrain-{ACCOUNT}-{US}"
    real = s3.head_bucket

    def head(**asked: Any) -> Any:
        if asked["Bucket"] == taken:
            raise ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, "HeadBucket")
        return real(**asked)

    monkeypatch.setattr(s3, "head_bucket", head)
    assert find_bucket(clients, ME, US) is None
    found = bucket(clients, ME, US)
    assert (found.name, found.denied) == (None, None)
    assert set_up(clients, want())["bucket"] is None
    assert find_bucket(clients, ME, US) == f"{taken}-an"


def test_a_region_that_an_organization_has_closed_keeps_no_account_from_being_taken_down(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = account(clients, ME, want())
    regions = {"Regions": [{"RegionName": US}, {"RegionName": EU}]}  # moto takes seconds for each
    monkeypatch.setattr(clients.client("ec2", US), "describe_regions", lambda: regions)
    closed = clients.client("ec2", EU)
    response: Any = {"Error": {"Code": "UnauthorizedOperation", "Message": "explicit deny in a service control policy"}}

    def deny(**_: Any) -> Any:
        raise ClientError(response, "DescribeInstances")

    closed.meta.events.register_first("before-call.ec2.DescribeInstances", deny)
    assert account_teardown.machines(it) == ()
    clients.client("ec2", US).meta.events.register_first("before-call.ec2.DescribeInstances", deny)
    with pytest.raises(RegionDenied, match=f"looking for machines in {US}"):
        account_teardown.machines(it)


def test_a_role_that_iam_still_holds_to_be_in_its_profile_is_deleted_a_moment_later(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(clients, want())
    refuse(clients, "iam", "DeleteRole", "DeleteConflict", times=2)
    for removal in account_teardown.removals(account(clients, ME, want())):
        assert account_teardown.take_away(removal) is None
    with pytest.raises(ClientError, match="NoSuchEntity"):
        clients.client("iam", US).get_role(RoleName=ROLE)


def test_a_name_that_another_account_takes_meanwhile_is_said(clients: Clients) -> None:
    refuse(clients, "s3", "CreateBucket", "BucketAlreadyExists")
    done = set_up(clients, want())
    assert "is taken by another account" in str(done["bucket"])
    assert done["bucket policy"] == "bucket policy: it needs the bucket"
    assert done["machine role"] is None


def test_a_role_that_is_not_known_everywhere_yet_is_waited_for(clients: Clients) -> None:
    refuse(clients, "iam", "PutRolePolicy", "NoSuchEntity", times=3)
    refuse(clients, "iam", "AddRoleToInstanceProfile", "NoSuchEntity", times=3)
    assert set(set_up(clients, want()).values()) == {None}


def test_a_role_that_never_comes_is_given_up(clients: Clients) -> None:
    refuse(clients, "iam", "PutRolePolicy", "NoSuchEntity")
    assert "NoSuchEntity" in str(set_up(clients, want())["role's bucket rights"])


def test_a_run_that_ended_between_making_and_marking_is_finished(clients: Clients) -> None:
    it = want()
    refuse(clients, "s3", "PutBucketTagging", "InternalError", times=1)
    assert set_up(clients, it)["bucket"] is not None
    assert set_up(clients, it)["bucket"] is None
    assert states(clients, it) == {State.THERE}


def test_two_at_once_both_end_well(clients: Clients) -> None:
    it = want()
    seen = [survey(parts(account(clients, ME, it))) for _ in range(2)]
    gate, troubles = threading.Barrier(2), list[str | None]()

    def run(index: int) -> None:
        gate.wait()
        troubles.extend(made.trouble for made in carry_out(seen[index]))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(troubles) == {None}
    assert states(clients, it) == {State.THERE}


def kms_key(clients: Clients, region: str = US) -> str:
    made: Any = clients.client("kms", region).create_key()
    return str(made["KeyMetadata"]["Arn"])


def test_a_key_of_ones_own_encrypts_the_bucket_and_the_spot_role_may_use_it(clients: Clients) -> None:
    it = want(kms_key=kms_key(clients))
    assert set(set_up(clients, it).values()) == {None}
    assert states(clients, it) == {State.THERE}
    name = f"cloudtrain-{ACCOUNT}-{US}-an"
    (rule,) = clients.client("s3", US).get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": it.kms_key}
    (grant,) = clients.client("kms", US).list_grants(KeyId=it.kms_key)["Grants"]
    assert grant["GranteePrincipal"].endswith(f"spot.amazonaws.com/{SPOT_ROLE}")
    assert {"Decrypt", "CreateGrant"} <= set(grant["Operations"])
    shown = clients.client("iam", US).get_role_policy(RoleName=ROLE, PolicyName=f"cloudtrain-{US}")["PolicyDocument"]
    assert shown == policies.machine_policy(it)
    assert "UseTheKeyForObjects" in json.dumps(shown)


def test_a_key_that_the_bucket_has_stays_and_the_role_keeps_its_use(clients: Clients) -> None:
    set_up(clients, want(kms_key=kms_key(clients)))
    assert set_up(clients, want()) == {}, "without --kms-key there is nothing to change"
    iam = clients.client("iam", US)
    iam.delete_role_policy(RoleName=ROLE, PolicyName=f"cloudtrain-{US}")
    assert set_up(clients, want()) == {"role's bucket rights": None}
    shown = iam.get_role_policy(RoleName=ROLE, PolicyName=f"cloudtrain-{US}")["PolicyDocument"]
    assert "UseTheKeyForObjects" in json.dumps(shown), "machines could write nothing"


def test_a_key_is_put_in_the_place_of_another_only_when_it_is_asked_for(clients: Clients) -> None:
    set_up(clients, want())
    it = want(kms_key=kms_key(clients))
    seen = {part.what: found for part, found in survey(parts(account(clients, ME, it))).items()}
    assert seen["encryption"].state is State.DIFFERS
    assert "stay as they are encrypted" in seen["encryption"].note
    done = set_up(clients, it)
    assert done == {"encryption": None, "role's bucket rights": None, "key for spot machines": None}


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("alias/mine", "write the key's ARN"),
        (f"arn:aws:kms:us-east-1:{ACCOUNT}:alias/mine", "write the key's ARN"),
        (f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/1", "encrypts no bucket in us-east-1"),
        (f"arn:aws-cn:kms:us-east-1:{ACCOUNT}:key/1", "encrypts no bucket"),
        (f'arn:aws:kms:us-east-1:{ACCOUNT}:key/1", "*', "write the key's ARN"),
    ],
)
def test_what_is_no_key_of_the_region_is_refused(key: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        want(kms_key=key)
