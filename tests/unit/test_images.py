from __future__ import annotations

import os
import pwd

import pytest

from cloudtrain.provisioner.adapters.images import IMAGES, REASONS, image_for, login_user, user_named_by
from cloudtrain.provisioner.model import Image
from cloudtrain.provisioner.spec import AwsOptions


@pytest.mark.parametrize("family", sorted(IMAGES))
def test_each_row_is_whole(family: str) -> None:
    image = image_for(f"{family}.xlarge")
    assert isinstance(image, Image)
    assert image.ssm_parameter.startswith(f"/aws/service/deeplearning/ami/{image.architecture}/")
    assert image.ssm_parameter.endswith("/latest/ami-id")
    assert (image.login_user, image.root_device, image.root_gib) == ("ubuntu", "/dev/sda1", 100)
    assert image.agent_brings_boto3
    assert (image.venv, image.scratch) == ("/opt/pytorch", "/opt/dlami/nvme")


def test_graviton_boots_the_arm_image() -> None:
    image = image_for("g5g.xlarge")
    assert isinstance(image, Image)
    assert image.architecture == "arm64"


@pytest.mark.parametrize("family", [*sorted(REASONS), "m7i", ""])
def test_a_family_without_an_image_says_why(family: str) -> None:
    reason = image_for(f"{family}.xlarge")
    assert isinstance(reason, str)
    assert family in reason
    assert "{" not in reason


def test_no_family_is_in_both_tables() -> None:
    assert not IMAGES.keys() & REASONS.keys()


def test_a_local_host_brings_its_own_libraries_and_has_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    real, local = image_for("g4dn.xlarge"), image_for("g4dn.xlarge", "local")
    assert isinstance(real, Image)
    assert isinstance(local, Image)
    assert (local.ssm_parameter, local.root_gib, local.root_device) == (
        real.ssm_parameter,
        real.root_gib,
        real.root_device,
    )
    assert (local.venv, local.agent_brings_boto3) == (real.venv, False)
    assert local.login_user == login_user("local", real) == pwd.getpwuid(os.getuid()).pw_name
    assert login_user("aws", real) == "ubuntu"


def test_an_own_image_takes_the_place_of_the_row_and_serves_families_without_one() -> None:
    own = AwsOptions(image_id="ami-0abc", ssh_user="me")
    for family, architecture in (("g4dn", "x86_64"), ("g5g", "arm64"), ("g7", "x86_64"), ("p6e-gb200", "arm64")):
        image = image_for(f"{family}.xlarge", options=own)
        assert isinstance(image, Image)
        assert (image.own_id, image.ssm_parameter, image.architecture) == ("ami-0abc", "", architecture)
        assert (image.login_user, image.root_gib) == ("me", 0)
    assert isinstance(image_for("g7.xlarge", options=AwsOptions()), str)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.12 (Ubuntu 24.04) 20261005", "ubuntu"),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) 20261001", "ec2-user"),
        ("al2023-ami-2023.9.20261020.0-kernel-6.12-x86_64", "ec2-user"),
        ("amzn2-ami-kernel-5.10-hvm-2.0.20251001.0-x86_64-gp2", "ec2-user"),
        ("ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261001", "ubuntu"),
        ("debian-12-amd64-20261001-1234", "admin"),
        ("Rocky-9-EC2-Base-9.6-20260530.0.x86_64", "rocky"),
        ("RHEL-9.6.0_HVM-20261001-x86_64-0-Hourly2-GP3", "ec2-user"),
        ("our training image v7", None),
        ("normal-image", None),
    ],
)
def test_an_images_name_tells_who_logs_in(name: str, user: str | None) -> None:
    assert user_named_by(name) == user
