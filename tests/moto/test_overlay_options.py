"""What the daemon's options change. Each test has a cloud of its own: moto's state is one for the whole process."""

from __future__ import annotations

import time

import pytest
from botocore.exceptions import ClientError

from tests.moto.local_server import serving, tagged


def test_a_boot_takes_its_time(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("slow"), boot_s=0.3) as slow:
        began = time.monotonic()
        slow.up()
        assert time.monotonic() - began >= 0.3


def test_a_new_id_is_hidden_at_first(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("hidden"), hide_s=1000) as hidden:
        instance_id = hidden.run(TagSpecifications=tagged("hide"))["InstanceId"]
        for call in (hidden.ec2.describe_instances, hidden.ec2.terminate_instances):
            with pytest.raises(ClientError) as caught:
                call(InstanceIds=[instance_id])
            assert caught.value.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
        by_tag = [{"Name": "tag:cloudtrain:job", "Values": ["hide"]}]
        assert hidden.ec2.describe_instances(Filters=by_tag)["Reservations"] == []
        hidden.clock.ahead_s = 1001
        assert len(hidden.ec2.describe_instances(Filters=by_tag)["Reservations"]) == 1


def test_moto_is_put_back_as_it_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    from moto import settings
    from moto.ec2.models import EC2Backend
    from moto.ec2.models.instances import Instance
    from moto.ec2.responses.instances import InstanceResponse
    from moto.ec2.utils import filter_dict_attribute_mapping

    def parts() -> list[object]:
        changed = [InstanceResponse.run_instances, EC2Backend.all_reservations, Instance.setup_defaults]
        return [*changed, settings.ENABLE_AMI_VALIDATION, dict(filter_dict_attribute_mapping)]

    before = parts()
    with serving(tmp_path_factory.mktemp("back")):
        assert all(now != then for now, then in zip(parts(), before, strict=True))
    assert parts() == before
