"""Before a launch: may machines read what file_mounts name?"""

from __future__ import annotations

import json

import pytest

from cloudtrain.provisioner.account.account_checks import check
from cloudtrain.provisioner.account.facts import AccountFacts, Bucket, Finding, Identity, Level, MachineRole, Wants
from cloudtrain.provisioner.spec import FileMount
from tests.records import OFFERINGS

JOBS = [f"arn:aws:s3:::ours/{folder}/*" for folder in ("jobs", "files", "mounts")]


def found(*sources: str, resources: list[str]) -> list[Finding]:
    """What is said of the role and the data, but that all is well."""
    statements = [{"Effect": "Allow", "Action": "s3:*", "Resource": [*resources, "arn:aws:s3:::ours"]}]
    role = MachineRole("cloudtrain-machine", True, "cloudtrain-machine", (json.dumps({"Statement": statements}),))
    facts = AccountFacts(
        cloud="aws",
        read_at=0.0,
        caller=Identity("1", "arn:aws:iam::1:user/me", "AIDA1"),
        home_region="us-east-1",
        role=role,
        bucket=Bucket("ours", ("ours",), "us-east-1"),
    )
    mounts = tuple(FileMount(f"/data{number}", source) for number, source in enumerate(sources))
    findings = check(facts, Wants(OFFERINGS, mounts=mounts))
    return [f for f in findings if f.check in ("role", "data") and f.level is not Level.OK]


def test_a_role_of_an_earlier_setup_can_not_read_uploaded_data() -> None:
    (finding,) = found("/home/me/data", resources=JOBS[:1])
    assert finding.level is Level.FAIL and "ours/files/ and ours/mounts/" in finding.what
    assert "cloudtrain setup" in finding.fix
    assert found("/home/me/data", resources=JOBS) == []
    assert found(resources=JOBS[:1]) == []


@pytest.mark.parametrize("source", ["s3://b/set", "s3://b/set/", "s3://b"])
def test_another_bucket_is_warned_of_with_the_command(source: str) -> None:
    (finding,) = found(source, resources=JOBS)
    assert finding.level is Level.WARN and source in finding.what
    assert finding.fix == f"`cloudtrain setup --read {source}`"


@pytest.mark.parametrize("right", ["b/*", "b/set/*", "b/set*", "b/set"])
def test_a_role_that_may_read_it_is_well(right: str) -> None:
    assert found("s3://b/set", resources=[*JOBS, f"arn:aws:s3:::{right}"]) == []
    assert len(found("s3://b/other", resources=[*JOBS, "arn:aws:s3:::b/set*"])) == 1
