"""`setup` as a person meets it, against the embedded cloud with nothing set up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.provisioner.account.setup_plan import ROLE
from cloudtrain.provisioner.launch import access
from cloudtrain.provisioner.localcloud.faults import Fault
from tests.moto.local_server import Cloud, serving
from tests.records import job

from .world import World

ACCOUNT = "123456789012"
THEIRS = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::theirs/*"}],
}
BUCKET = f"cloudtrain-{ACCOUNT}-us-east-1-an"


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with serving(home / "local", account="empty") as running:
        monkeypatch.setattr(access, "ensure_up", lambda local_home: running.local)
        yield running


def lines(text: str) -> list[str]:
    assert all(len(line) <= 80 for line in text.splitlines()), text
    return text.splitlines()


def test_from_an_empty_account_and_back(cloud: Cloud, world: World) -> None:
    code, out, err = world.run("setup", "--cloud", "local", "--yes")
    assert code == 0
    assert lines(out)[0] == f"made bucket {BUCKET}"
    assert len(lines(out)) == 11
    assert "  make   machine role           cloudtrain-machine" in lines(err)
    assert lines(err)[-1] == "next: `cloudtrain doctor --cloud local`"

    code, out, err = world.run("setup", "--cloud", "local", "--yes")
    assert (code, out) == (0, f"nothing to do: account {ACCOUNT} is set up in us-east-1\n")

    code, out, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert code == 0
    assert lines(out) == [
        f"removed instance profile {ROLE}",
        f"removed machine role {ROLE}",
        f"removed bucket {BUCKET}",
    ]
    assert "  keep   EC2's spot role        AWSServiceRoleForEC2Spot" in lines(err)

    code, out, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert (code, out) == (0, "nothing to remove\n")


def test_a_bucket_with_objects_stays_and_is_named_with_what_it_holds(cloud: Cloud, world: World) -> None:
    world.run("setup", "--cloud", "local", "--yes")
    s3 = cloud.clients.client("s3", "us-east-1")
    for key in ("jobs/a/latest.json", "jobs/b/latest.json"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"{}")
    code, out, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert code == 0
    assert BUCKET not in out
    assert f"it holds 2 objects, 0.0 MB; `aws s3 rb s3://{BUCKET} --force`" in err
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 2


def test_what_somebody_else_made_or_added_stays(cloud: Cloud, world: World) -> None:
    iam = cloud.clients.client("iam", "us-east-1")
    world.run("setup", "--cloud", "local", "--yes")
    iam.put_role_policy(RoleName=ROLE, PolicyName="theirs", PolicyDocument=json.dumps(THEIRS))
    s3 = cloud.clients.client("s3", "us-east-1")
    s3.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": [{"Key": "team", "Value": "x"}]})
    code, out, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert (code, out) == (0, f"removed instance profile {ROLE}\n")
    assert "it has theirs, which setup did not give it" in err
    assert err.count("not made by setup") == 1
    assert iam.get_role(RoleName=ROLE)


def test_another_regions_rights_keep_the_role(cloud: Cloud, world: World) -> None:
    for region in ("us-east-1", "eu-west-1"):
        assert world.run("setup", "--cloud", "local", "--region", region, "--yes")[0] == 0
    _, out, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert lines(out) == ["removed role's bucket rights cloudtrain-us-east-1", f"removed bucket {BUCKET}"]
    assert "machines of eu-west-1 need it" in err
    iam = cloud.clients.client("iam", "us-east-1")
    assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == ["cloudtrain-eu-west-1"]


def test_nothing_is_taken_from_under_a_job(cloud: Cloud, world: World) -> None:
    world.run("setup", "--cloud", "local", "--yes")
    tagged: Any = [{"ResourceType": "instance", "Tags": [{"Key": "cloudtrain:job", "Value": "other-1"}]}]
    instance = cloud.up(TagSpecifications=tagged)
    code, _, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert code == 2
    assert f"{instance} in us-east-1 (job other-1)" in err
    record = world.add(replace(job(), cloud="local", cloud_id="testcloud"))
    code, _, err = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert code == 2
    assert f"`cloudtrain down {record.job_id}`" in err


def test_a_job_whose_record_is_gone_from_the_bucket_holds_nothing_back(cloud: Cloud, world: World) -> None:
    """Another computer took it over and finished it; then the bucket was emptied."""
    world.run("setup", "--cloud", "local", "--yes")
    record = world.add(replace(job(), cloud="local", cloud_id="testcloud", bucket=BUCKET))
    assert world.run("setup", "--cloud", "local", "--destroy", "--yes")[0] == 2  # its record is not there yet
    stored = world.store.get(record.job_id)
    world.store.save(stored.record, version=stored.version, etag='"1"')
    code, out, _ = world.run("setup", "--cloud", "local", "--destroy", "--yes")
    assert (code, lines(out)[-1]) == (0, f"removed bucket {BUCKET}")


def test_it_asks_and_takes_no_for_an_answer(cloud: Cloud, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = world.run("setup", "--cloud", "local")
    assert code == 2
    assert "add --yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *args, **kwargs: False)
    code, out, err = world.run("setup", "--cloud", "local")
    assert (code, out) == (0, "")
    assert lines(err)[-1] == "nothing was changed"
    world.run("setup", "--cloud", "local", "--yes")
    code, out, err = world.run("setup", "--cloud", "local", "--destroy")
    assert (code, out) == (0, "")
    assert lines(err)[-1] == "nothing was removed"


def test_a_missing_permission_is_named_and_ends_with_6(cloud: Cloud, world: World) -> None:
    cloud.state.faults.add(Fault("CreateRole", "AccessDenied"))
    code, out, err = world.run("setup", "--cloud", "local", "--yes")
    assert code == 6
    assert f"made bucket {BUCKET}" in out
    assert "not made: machine role cloudtrain-machine: AccessDenied" in err
    assert "(it needs iam:CreateRole)" in err
    assert "setup --print cloudformation" in err.splitlines()[-1]


def test_what_is_printed_needs_no_account(world: World) -> None:
    where = ("--account", ACCOUNT, "--region", "us-east-1")
    code, out, err = world.run("setup", "--print", "cloudformation", *where)
    assert code == 0
    assert yaml.safe_load(out)["Resources"]["Bucket"]["Properties"]["BucketName"] == BUCKET
    assert not any(line.lstrip().startswith(("*", "&")) for line in out.splitlines())
    assert "aws cloudformation deploy" in err
    code, out, err = world.run("setup", "--print", "policies", "--read", "s3://data", "--ssm", *where)
    assert code == 0
    assert set(json.loads(out)) == {
        *("bucket", "machine-trust", "machine", "machine-read", "machine-ssm", "user", "user-look"),
        "administrator",
    }
    key = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1234"
    code, out, _ = world.run("setup", "--print", "policies", "--kms-key", key, *where)
    assert (code, key in out) == (0, True)
    code, _, err = world.run("setup", "--print", "policies", "--kms-key", "alias/mine", *where)
    assert (code, "write the key's ARN" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--print", "policies"), 6, "add --account ID --region REGION"),
        (("--print", "policies", "--account", ACCOUNT), 2, "--account needs --region as well"),
        (("--print", "policies", "--account", "1", "--region", "us-east-1"), 2, "an account has twelve digits"),
        (("--print", "policies", "--account", ACCOUNT, "--region", "use1"), 2, "a region looks like us-east-1"),
        (("--account", ACCOUNT, "-y"), 2, "--account goes with --print"),
        (("--destroy", "--ssm", "-y"), 2, "--destroy goes with"),
        (("--read", "data", "--print", "policies", "--account", ACCOUNT, "--region", "eu-west-1"), 2, "s3://bucket"),
        (("-y",), 6, "Unable to locate credentials"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    world: World, args: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = world.run("setup", *args)
    assert (found, out) == (code, "")
    assert words in err
    assert len(err.splitlines()) == 1
