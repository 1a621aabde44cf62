from __future__ import annotations

import os
import pwd

import pytest

from cloudtrain.provisioner.adapters.images import IMAGES, REASONS, image_for, login_user
from cloudtrain.provisioner.model import Image


@pytest.mark.parametrize("family", sorted(IMAGES))
def test_each_row_is_whole(family: str) -> None:
    image = image_for(f"{family}.xlarge")
    assert isinstance(image, Image)
    assert image.ssm_parameter.startswith(f"/aws/service/deeplearning/ami/{image.architecture}/")
    assert image.ssm_parameter.endswith("/latest/ami-id")
    assert (image.login_user, image.root_device, image.root_gib) == ("ubuntu", "/dev/sda1", 100)
    assert image.agent_brings_boto3


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


def test_a_local_host_has_its_own_python_and_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    real, local = image_for("g4dn.xlarge"), image_for("g4dn.xlarge", "local")
    assert isinstance(real, Image)
    assert isinstance(local, Image)
    assert (local.ssm_parameter, local.root_gib, local.root_device) == (
        real.ssm_parameter,
        real.root_gib,
        real.root_device,
    )
    assert (local.python, local.activate, local.agent_brings_boto3) == ("python", None, False)
    assert local.login_user == login_user("local", real) == pwd.getpwuid(os.getuid()).pw_name
    assert login_user("aws", real) == "ubuntu"
