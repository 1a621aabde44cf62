"""What fails a first run on AWS is found before any machine starts: by `doctor`, and by `launch`, each with its fix.

The faults are planted in the embedded cloud, which answers the ordinary AWS calls as such an account would; the
commands run in this process, against a daemon of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.cli.main import main
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.plants import PLANTS
from tests import forms

from .story import Person

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("e2e-account-faults")]

REGION = "us-east-1"
JOB = """\
name: doctored
resources: {{accelerators: '{gpu}', use_spot: {spot}, memory: 16+, infra: aws/us-east-1}}
run: 'true'
"""


@dataclass(frozen=True)
class Fault:
    """A planted fault: which check finds it, in which words, with which fix."""

    name: str
    check: str
    what: str
    fix: str
    gpu: str = "T4:1"
    spot: bool = True
    plant_in: str | None = None

    def __str__(self) -> str:
        return self.name


POLICY = "`cloudtrain setup --print policies`"
SETUP = "`cloudtrain setup --cloud local`"
CONSOLE = "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/"
INCREASE = "`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code "

FAULTS = [
    Fault(
        "quota-spot-zero",
        "quota",
        "is 0 vCPUs, 4 needed",
        f"{INCREASE}L-3819A6DF --desired-value 4 --region us-east-1`",
    ),
    Fault("quota-on-demand-zero", "quota", "(L-DB2E81BA) is 0 vCPUs", f"{CONSOLE}L-DB2E81BA", spot=False),
    Fault(
        "quota-p5-spot-zero",
        "quota",
        "'All P5 Spot Instance Requests' (L-C4BD4855) is 0 vCPUs, 192 needed",
        f"{INCREASE}L-C4BD4855 --desired-value 192 --region us-east-1`",
        gpu="H100:8",
    ),
    Fault(
        "no-default-vpc", "network", "us-east-1 has no default VPC", "`aws ec2 create-default-vpc --region us-east-1`"
    ),
    Fault(
        "no-subnet",
        "network",
        "no default subnet in ",
        "`aws ec2 create-default-subnet --region us-east-1 --availability-zone-id use1-az",
    ),
    Fault(
        "no-route",
        "route",
        "no route to an internet gateway",
        "`aws ec2 create-route --region us-east-1 --route-table-id rtb-",
    ),
    Fault("no-bucket", "bucket", "there is no bucket cloudtrain-", SETUP),
    Fault("bucket-denied", "bucket", "you may not use it", POLICY),
    Fault("no-role", "role", "there is no instance profile cloudtrain-machine", SETUP),
    Fault("role-without-rights", "role", "machines may not s3:GetObject, s3:PutObject", SETUP),
    Fault(
        "no-spot-role",
        "spot-role",
        "AWSServiceRoleForEC2Spot is missing",
        "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    Fault("denied-run-instances", "dry-run", "no permission for ec2:RunInstances on arn:aws:ec2:us-east-1:", POLICY),
    Fault("denied-describe", "network", "no permission for ec2:DescribeSubnets", POLICY),
    Fault("denied-describe", "rights", "ec2:DescribeInstances, ec2:DescribeSpotInstanceRequests", POLICY),
    Fault("denied-pass-role", "dry-run", "no permission for iam:PassRole on arn:aws:iam::", POLICY),
    Fault("expired-token", "credentials", "credentials have expired", "`aws sso login`"),
    Fault("no-credentials", "credentials", "AWS does not know these credentials", "`aws sts get-caller-identity`"),
    Fault(
        "region-off",
        "region",
        "us-east-2 is not enabled for this account",
        "`aws account enable-region --region-name us-east-2`",
        plant_in="us-east-2",
    ),
    Fault("clock-skew", "clock", " s behind AWS's", "`timedatectl set-ntp true`"),
    Fault(
        "image-parameter-gone",
        "image",
        "there is no image parameter /aws/service/deeplearning/",
        "`aws ssm get-parameters-by-path",
    ),
    Fault("ami-gone", "image", "does not exist in us-east-1", "resources.aws.image_id"),
    Fault(
        "kms-without-grant",
        "volume-key",
        "which EC2's spot role may not use",
        "--grantee-principal arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRole",
    ),
    Fault(
        "kms-disabled",
        "volume-key",
        "which is disabled",
        "`aws kms enable-key --region us-east-1 --key-id arn:aws:kms:",
    ),
    Fault("type-not-offered", "offered", "g4dn.xlarge", "`aws ec2 describe-instance-type-offerings --region us-east-1"),
    Fault("no-ssh-egress", "ssh-egress", "no SSH connection gets out", "resources.aws.ssh_proxy"),
]


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = Person(tmp_path_factory.mktemp("doctored"))
    person.ok("local", "up")
    yield person
    person.leave()


@pytest.fixture(autouse=True)
def at_home(person: Person, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CLOUDTRAIN_LOCAL_HOME", "AWS_PROFILE", "AWS_REGION", "CLOUDTRAIN_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(person.home))
    monkeypatch.chdir(person.home)
    yield
    client.plant_clear(person.cloud())


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    forms.check(arguments, out)
    return code, out, err


def doctor(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[dict[str, Any]]]:
    code, out, err = said(capsys, "doctor", "--cloud", "local", "-o", "json", *flags)
    assert out, err
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    return code, findings


def job_file(home: Path, fault: Fault) -> str:
    path = home / "job.yaml"
    text = JOB.format(gpu=fault.gpu, spot=str(fault.spot).lower())
    path.write_text(text if fault.plant_in is None else text.replace(REGION, fault.plant_in))
    return str(path)


def test_a_sound_account_passes(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = doctor(capsys, "--region", REGION)
    assert (code, [f for f in findings if f["level"] != "ok"]) == (0, [])


def test_every_fault_that_can_be_planted_is_here() -> None:
    assert {fault.name for fault in FAULTS} == set(PLANTS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_by_doctor_and_by_launch_before_anything_starts(
    person: Person, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    client.plant(person.cloud(), fault.name, fault.plant_in)
    path = job_file(person.home, fault)

    code, findings = doctor(capsys, path)
    [found] = [f for f in findings if f["level"] == "fail" and f["check"] == fault.check and fault.what in f["what"]]
    assert code == 6
    assert fault.fix in found["fix"]

    code, out, err = said(capsys, "launch", path, "--cloud", "local", "--yes")
    assert (code, out) == (6, "")
    [line] = [line for line in err.splitlines() if fault.what in line]
    assert fault.fix in line
    assert "cloudtrain: nothing was started" in err
    assert person.machines() == []
    assert SqliteStore(person.home / "jobs.db").list() == ()


def test_a_region_that_fails_is_left_out_of_the_plan(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """The launch goes on with what is left, and says why the rest is out."""
    client.plant(person.cloud(), "quota-spot-zero", "us-east-2")
    path = person.home / "two.yaml"
    path.write_text(
        "resources: {accelerators: 'T4:1', use_spot: true, memory: 16+, infra: [aws/us-east-2, aws/us-east-1]}\n"
        "run: sleep 60\n"
    )
    code, _, err = said(capsys, "launch", str(path), "--cloud", "local", "--yes", "--detach")
    try:
        assert code == 0, err
        assert (
            "without: us-east-2: quota 'All G and VT Spot Instance Requests' (L-3819A6DF) is 0 vCPUs, 4 needed" in err
        )
        [stored] = SqliteStore(person.home / "jobs.db").list()
        assert {offering.pool.region for offering in stored.record.offerings} == {"us-east-1"}
    finally:
        said(capsys, "down", "--all", "--yes")
