"""The RunInstances requests as they go over the wire, against golden files whose every field has a source."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from botocore.awsrequest import AWSPreparedRequest

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.adapters.images import image_for
from cloudtrain.provisioner.adapters.run_instances import request
from cloudtrain.provisioner.model import Attempt, Image, LaunchRequest, Phase
from cloudtrain.provisioner.spec import AWS_DEFAULTS, AwsOptions
from tests.moto.worlds import MotoWorld

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
SOURCES = REPOSITORY / "docs" / "aws" / "run-instances.md"
HIDDEN = AwsOptions(public_ip=False, volume_throughput=1000, kms_key="alias/training")
WAYS = {
    "spot": (CapacityType.SPOT, AwsOptions()),
    "on_demand": (CapacityType.ON_DEMAND, AwsOptions()),
    "private": (CapacityType.ON_DEMAND, HIDDEN),  # no public address, and a faster disk
}


def launch(
    capacity: CapacityType,
    options: AwsOptions = AWS_DEFAULTS,
    *,
    disk_gib: int = 200,
) -> LaunchRequest:
    image = image_for("g4dn.xlarge")
    assert isinstance(image, Image)
    pool = Pool("aws", "us-east-1", "use1-az4", "g4dn.xlarge", capacity)
    attempt = Attempt(3, pool, "ct-0123456789abcdef", Phase.CLAIMED, 1_800_000_000.0)
    return LaunchRequest(
        "digits-1a2b",
        "AIDAOWNER",
        attempt,
        image,
        "ami-0123456789abcdef0",
        disk_gib,
        "#cloud-config\n{}\n",
        "cloudtrain-machine",
        options,
    )


def sent(world: MotoWorld, wanted: Any) -> dict[str, str]:
    """What boto3 puts on the wire, field by field."""
    bodies: list[Any] = []

    def look(outgoing: AWSPreparedRequest) -> None:
        bodies.append(outgoing.body)
        raise InterruptedError

    world.on_send("RunInstances", look)
    with pytest.raises(InterruptedError):
        world.clients.launcher("us-east-1").run_instances(**wanted)
    (body,) = bodies
    pairs = parse_qsl(body.decode() if isinstance(body, bytes) else body, keep_blank_values=True, strict_parsing=True)
    assert len(dict(pairs)) == len(pairs)
    return dict(sorted(pairs))


def generic(field: str) -> str:
    """A field without the numbers of its list entries: ``TagSpecification.N.Tag.N.Key``."""
    return re.sub(r"\.\d+(?=\.|$)", ".N", field)


def documented() -> dict[str, str]:
    """The fields that the document explains, with the last column of their row: the source."""
    rows = [line.split("|") for line in SOURCES.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert all(len(row) == 6 for row in rows)
    return {field: row[4].strip() for row in rows for field in re.findall(r"`([^`]+)`", row[1])}


@pytest.mark.parametrize("name", sorted(WAYS))
def test_the_request_is_the_golden_one(moto_world: MotoWorld, name: str) -> None:
    wanted = request(launch(*WAYS[name]), subnet_id="subnet-0aaa", security_group_id="sg-0bbb")
    golden = json.loads((GOLDEN / f"run_instances_{name}.json").read_text(encoding="utf-8"))
    assert sent(moto_world, wanted) == golden


@pytest.mark.parametrize("name", sorted(WAYS))
def test_every_field_has_a_source_in_aws_documentation(name: str) -> None:
    golden = json.loads((GOLDEN / f"run_instances_{name}.json").read_text(encoding="utf-8"))
    sources = documented()
    missing = {generic(field) for field in golden} - sources.keys()
    assert not missing
    assert all("AWS" in source or "EC2" in source for source in sources.values())


def test_no_source_is_left_over() -> None:
    names = [json.loads((GOLDEN / f"run_instances_{name}.json").read_text(encoding="utf-8")) for name in WAYS]
    assert documented().keys() == {generic(field) for golden in names for field in golden}


def test_spot_differs_from_on_demand_in_what_spot_needs_alone() -> None:
    spot, on_demand = (
        request(launch(capacity), subnet_id="s", security_group_id="g")
        for capacity in (CapacityType.SPOT, CapacityType.ON_DEMAND)
    )
    assert spot.keys() - on_demand.keys() == {"InstanceMarketOptions"}
    assert spot["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
    kinds = [entry["ResourceType"] for entry in spot["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface", "spot-instances-request"]
    assert [entry["ResourceType"] for entry in on_demand["TagSpecifications"]] == kinds[:3]
    assert {json.dumps(entry["Tags"]) for entry in spot["TagSpecifications"]} == {
        json.dumps(on_demand["TagSpecifications"][0]["Tags"])
    }


def test_the_root_volume_is_never_smaller_than_the_image() -> None:
    small = request(launch(CapacityType.SPOT, disk_gib=20), subnet_id="s", security_group_id="g")
    assert small["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 100


def test_user_data_is_encoded_once() -> None:
    golden = json.loads((GOLDEN / "run_instances_spot.json").read_text(encoding="utf-8"))
    assert base64.b64decode(golden["UserData"]).decode() == "#cloud-config\n{}\n"
