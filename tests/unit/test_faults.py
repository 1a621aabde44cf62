from __future__ import annotations

import pytest

from cloudtrain.provisioner.localcloud.faults import Call, Fault, Faults


def call(action: str = "RunInstances", **fields: str) -> Call:
    return Call("ec2", action, fields)


def test_a_rule_meets_its_action_and_fields_only() -> None:
    faults = Faults()
    faults.add(
        Fault("RunInstances", "InsufficientInstanceCapacity", {"zone_id": "use1-az1", "instance_type": "g4dn.*"})
    )
    assert faults.meet(call("DescribeInstances", zone_id="use1-az1", instance_type="g4dn.xlarge")) is None
    assert faults.meet(call(zone_id="use1-az2", instance_type="g4dn.xlarge")) is None
    assert faults.meet(call(zone_id="use1-az1")) is None
    assert faults.meet(call(zone_id="use1-az1", instance_type="g4dn.xlarge")) is not None


def test_a_rule_is_spent_after_its_times_and_still_shown() -> None:
    faults = Faults()
    faults.add(Fault("*", "InternalError", times=2))
    assert [faults.meet(call()) is not None for _ in range(4)] == [True, True, False, False]
    [document] = faults.documents()
    assert (document["met"], len(document["calls"])) == (2, 2)


def test_the_first_rule_counts_and_the_next_follows_it() -> None:
    faults = Faults()
    faults.add(Fault("RunInstances", "RequestLimitExceeded", times=1))
    faults.add(Fault("RunInstances", "VcpuLimitExceeded"))
    met = [faults.meet(call()) for _ in range(3)]
    assert [fault.code for fault in met if fault] == ["RequestLimitExceeded", "VcpuLimitExceeded", "VcpuLimitExceeded"]


def test_what_was_met_is_kept_for_tests_to_count_by_pool() -> None:
    faults = Faults()
    faults.add(Fault("RunInstances", "InsufficientInstanceCapacity"))
    for zone in ("use1-az1", "use1-az2"):
        faults.meet(call(zone_id=zone, instance_type="g4dn.xlarge", ImageId="ami-1"))
    assert faults.documents()[0]["calls"] == [
        {"action": "RunInstances", "instance_type": "g4dn.xlarge", "zone_id": "use1-az1"},
        {"action": "RunInstances", "instance_type": "g4dn.xlarge", "zone_id": "use1-az2"},
    ]


@pytest.mark.parametrize(
    ("code", "status"),
    [("InsufficientInstanceCapacity", 500), ("RequestLimitExceeded", 503), ("VcpuLimitExceeded", 400), ("New", 400)],
)
def test_the_status_follows_the_code(code: str, status: int) -> None:
    assert Fault("RunInstances", code).http_status() == status
    assert Fault("RunInstances", code, status=418).http_status() == 418


def test_the_message_names_the_pool() -> None:
    fault = Fault("RunInstances", "InsufficientInstanceCapacity")
    assert "g6.xlarge capacity" in fault.text(call(instance_type="g6.xlarge", zone_id="use1-az4"))
    assert fault.text(call()).startswith("We currently do not have")


def test_a_share_of_the_calls_meets_it() -> None:
    faults = Faults()
    faults.add(Fault("*", "RequestLimitExceeded", share=0.05))
    met = sum(faults.meet(call()) is not None for _ in range(2000))
    assert 60 < met < 140


def test_clear_drops_one_or_all() -> None:
    faults = Faults()
    first = faults.add(Fault("A", "X"))
    faults.add(Fault("B", "X"))
    faults.add(Fault("C", "X"))
    assert faults.clear(first.id) == 1
    assert [document["action"] for document in faults.documents()] == ["B", "C"]
    assert faults.clear() == 2
    assert faults.documents() == []


@pytest.mark.parametrize(
    ("fault", "meets"),
    [
        (Fault("RunInstances", "InsufficientInstanceCapacity"), False),
        (Fault("RunInstances", "InternalError", lost=True), False),
        (Fault("RunInstances", "UnauthorizedOperation"), True),
    ],
)
def test_a_dry_run_does_not_use_up_what_is_meant_for_the_launch(fault: Fault, meets: bool) -> None:
    assert fault.meets(call(DryRun="true")) is meets
    assert fault.meets(call(DryRun="false"))
