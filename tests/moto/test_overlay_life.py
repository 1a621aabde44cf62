"""The life of a machine as EC2 shows it: boot, notice, end, and what can be seen when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.localcloud import client
from tests.moto.local_server import KIND, Cloud, serving, tagged, until


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud


@pytest.fixture(autouse=True)
def fresh(cloud: Cloud) -> Iterator[None]:
    """Every test begins at the real time, with hosts that boot and nothing asked for."""
    yield
    cloud.clock.ahead_s = 0.0
    cloud.boot.set()
    cloud.state.interrupts.clear()


def code_of(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


# Boot


def test_pending_until_the_host_answers(cloud: Cloud) -> None:
    cloud.boot.clear()
    instance_id = cloud.run()["InstanceId"]
    pending = cloud.describe(instance_id)
    assert pending["State"]["Name"] == "pending"
    assert "Tags" not in pending
    cloud.boot.set()
    running = cloud.wait(instance_id, "running")
    assert running["PublicIpAddress"] == "127.0.0.1"
    assert {"Key": "cloudtrain:local-ssh", "Value": "127.0.0.1:2222"} in running["Tags"]
    assert "StateReason" not in running


def test_console_output_has_the_host_keys_once_it_booted(cloud: Cloud) -> None:
    cloud.boot.clear()
    instance_id = cloud.run()["InstanceId"]
    assert not cloud.ec2.get_console_output(InstanceId=instance_id, Latest=True).get("Output")
    cloud.boot.set()
    cloud.wait(instance_id, "running")
    output = cloud.ec2.get_console_output(InstanceId=instance_id, Latest=True)["Output"]
    assert "BEGIN SSH HOST KEY KEYS" in output


def test_a_machine_that_ends_while_it_boots_leaves_no_host(cloud: Cloud) -> None:
    cloud.boot.clear()
    instance_id = cloud.run()["InstanceId"]
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    assert cloud.describe(instance_id)["State"]["Name"] == "shutting-down"
    cloud.boot.set()
    cloud.wait(instance_id, "terminated")
    assert instance_id not in cloud.hosts or cloud.hosts[instance_id].killed


# What is seen when


def test_terminated_machines_disappear_after_an_hour(cloud: Cloud) -> None:
    instance_id = cloud.up()
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud.wait(instance_id, "terminated")
    cloud.clock.ahead_s = 3500
    assert cloud.describe(instance_id)["State"]["Name"] == "terminated"
    cloud.clock.ahead_s = 3700
    assert code_of(cloud.ec2.describe_instances, InstanceIds=[instance_id]) == "InvalidInstanceID.NotFound"


def test_filters_by_state_and_lifecycle(cloud: Cloud) -> None:
    spot = cloud.up(TagSpecifications=tagged("filters"))
    on_demand = cloud.up(TagSpecifications=tagged("filters"), InstanceMarketOptions=None)
    cloud.ec2.terminate_instances(InstanceIds=[on_demand])
    cloud.wait(on_demand, "terminated")

    def found(name: str, *values: str) -> list[str]:
        filters = [{"Name": "tag:cloudtrain:job", "Values": ["filters"]}, {"Name": name, "Values": list(values)}]
        pages = cloud.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]

    assert found("instance-state-name", "pending", "running") == [spot]
    assert found("instance-state-name", "terminated") == [on_demand]
    assert found("instance-lifecycle", "spot") == [spot]
    assert set(found("instance-type", KIND)) == {spot, on_demand}


def test_an_unknown_filter_is_an_error_that_names_it(cloud: Cloud) -> None:
    with pytest.raises(ClientError) as caught:
        cloud.ec2.describe_instances(Filters=[{"Name": "shoe-size", "Values": ["42"]}])
    assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert "shoe-size" in caught.value.response["Error"]["Message"]


# Terminate


def test_terminate_takes_time_and_kills_the_host_first(cloud: Cloud) -> None:
    instance_id = cloud.up()
    reply = cloud.ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"][0]
    assert (reply["PreviousState"]["Name"], reply["CurrentState"]["Name"]) == ("running", "shutting-down")
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert cloud.hosts[instance_id].killed == [1.0]
    status = cloud.spot_request(instance_id)
    assert (status["State"], status["Status"]["Code"]) == ("closed", "instance-terminated-by-user")


def test_terminate_may_be_repeated(cloud: Cloud) -> None:
    instance_id = cloud.up()
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud.wait(instance_id, "terminated")
    reply = cloud.ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"][0]
    assert (reply["PreviousState"]["Name"], reply["CurrentState"]["Name"]) == ("terminated", "terminated")
    assert len(cloud.hosts[instance_id].killed) == 1


def test_with_one_unknown_id_none_is_terminated(cloud: Cloud) -> None:
    instance_id = cloud.up()
    ids = [instance_id, "i-0123456789abcdef0"]
    assert code_of(cloud.ec2.terminate_instances, InstanceIds=ids) == "InvalidInstanceID.NotFound"
    assert cloud.describe(instance_id)["State"]["Name"] == "running"


def test_a_power_off_ends_the_machine_by_itself(cloud: Cloud) -> None:
    instance_id = cloud.up()
    cloud.hosts[instance_id].wants_off = True
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_a_power_off_only_stops_a_machine_launched_without_the_behaviour(cloud: Cloud) -> None:
    instance_id = cloud.up(InstanceInitiatedShutdownBehavior=None, InstanceMarketOptions=None)
    cloud.hosts[instance_id].wants_off = True
    cloud.wait(instance_id, "stopped")
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud.wait(instance_id, "terminated")


# Spot requests and interruptions


def test_a_spot_request_is_fulfilled_while_the_machine_runs(cloud: Cloud) -> None:
    instance_id = cloud.up()
    status = cloud.spot_request(instance_id)
    assert (status["State"], status["Status"]["Code"]) == ("active", "fulfilled")
    assert status["SpotInstanceRequestId"] == cloud.describe(instance_id)["SpotInstanceRequestId"]


def test_an_unknown_spot_request_is_not_found(cloud: Cloud) -> None:
    code = code_of(cloud.ec2.describe_spot_instance_requests, SpotInstanceRequestIds=["sir-nothing0"])
    assert code == "InvalidSpotInstanceRequestID.NotFound"


def test_cancelling_a_request_leaves_the_machine(cloud: Cloud) -> None:
    instance_id = cloud.up()
    request_id = cloud.spot_request(instance_id)["SpotInstanceRequestId"]
    cloud.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request_id])
    status = cloud.spot_request(instance_id)
    assert (status["State"], status["Status"]["Code"]) == ("cancelled", "request-canceled-and-instance-running")
    assert cloud.describe(instance_id)["State"]["Name"] == "running"


def test_a_reclaim_closes_the_request_at_once_and_the_machine_after_the_notice(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("reclaim-1"))
    assert client.interrupt(cloud.local, "reclaim-1", notice_s=100)
    status = until(lambda: cloud.spot_request(instance_id), lambda found: found["State"] == "closed")
    assert status["Status"]["Code"] == "instance-terminated-no-capacity"
    assert cloud.describe(instance_id)["State"]["Name"] == "running"
    cloud.clock.ahead_s = 99
    time.sleep(0.15)
    assert cloud.describe(instance_id)["State"]["Name"] == "running"
    cloud.clock.ahead_s = 101
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert cloud.hosts[instance_id].killed == [1.0]


def test_a_machine_that_is_terminated_during_its_notice_keeps_the_cause_of_the_request(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("reclaim-2"))
    client.interrupt(cloud.local, "reclaim-2", notice_s=100)
    until(lambda: cloud.spot_request(instance_id), lambda found: found["State"] == "closed")
    cloud.ec2.terminate_instances(InstanceIds=[instance_id])
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert cloud.spot_request(instance_id)["Status"]["Code"] == "instance-terminated-no-capacity"


def test_no_notice_kills_at_once(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("crash"))
    client.interrupt(cloud.local, "crash", notice_s=0)
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert cloud.hosts[instance_id].killed == [0]


def test_an_interruption_waits_for_the_step(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("steps"))
    client.interrupt(cloud.local, "steps", at_step=10, notice_s=100)
    for step in (None, 0, 9):
        cloud.hosts[instance_id].at_step = step
        time.sleep(0.12)
        assert cloud.spot_request(instance_id)["State"] == "active"
    cloud.hosts[instance_id].at_step = 12
    until(lambda: cloud.spot_request(instance_id), lambda found: found["State"] == "closed")


def test_an_interruption_waits_for_the_machine(cloud: Cloud) -> None:
    assert client.interrupt(cloud.local, "later", notice_s=100) is False
    instance_id = cloud.up(TagSpecifications=tagged("later"))
    until(lambda: cloud.spot_request(instance_id), lambda found: found["State"] == "closed")
    assert client.status(cloud.local)["interrupts"] == []


def test_one_interruption_takes_one_machine_of_the_job(cloud: Cloud) -> None:
    first = cloud.up(TagSpecifications=tagged("once"))
    client.interrupt(cloud.local, "once", notice_s=0)
    cloud.wait(first, "terminated")
    second = cloud.up(TagSpecifications=tagged("once"))
    time.sleep(0.2)
    assert cloud.describe(second)["State"]["Name"] == "running"


def test_a_job_is_named_by_its_id_its_beginning_or_its_name(cloud: Cloud) -> None:
    digits = cloud.up(TagSpecifications=tagged("digits-ab12cd"))
    bigger = cloud.up(TagSpecifications=tagged("digits-big-ef34ab"))
    with pytest.raises(UsageError, match="2 jobs"):
        client.interrupt(cloud.local, "dig")
    client.interrupt(cloud.local, "digits", notice_s=0)
    cloud.wait(digits, "terminated")
    assert cloud.describe(bigger)["State"]["Name"] == "running"
    client.interrupt(cloud.local, "digits-b", notice_s=0)
    cloud.wait(bigger, "terminated")


def test_on_demand_is_never_reclaimed_but_may_be_lost(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("owned"), InstanceMarketOptions=None)
    with pytest.raises(UsageError, match="on demand"):
        client.interrupt(cloud.local, "owned", notice_s=10)
    client.interrupt(cloud.local, "owned", notice_s=0)
    dead = cloud.wait(instance_id, "terminated")
    assert dead["StateReason"]["Code"] == "Server.InternalError"


def test_the_network_to_a_host_is_cut_and_joined(cloud: Cloud) -> None:
    instance_id = cloud.up(TagSpecifications=tagged("cut"))
    assert client.cutoff(cloud.local, "cut") == [instance_id]
    assert cloud.hosts[instance_id].cut
    client.cutoff(cloud.local, "cut", cut=False)
    assert not cloud.hosts[instance_id].cut
    with pytest.raises(NotFound, match="no machine"):
        client.cutoff(cloud.local, "nobody")


def test_prices_move_by_zone_and_reach_back_to_start_time(cloud: Cloud) -> None:
    now = time.time()
    reply = cloud.ec2.describe_spot_price_history(
        InstanceTypes=[KIND], ProductDescriptions=["Linux/UNIX"], StartTime=now - 600, EndTime=now
    )["SpotPriceHistory"]
    zones = {row["AvailabilityZoneId"] for row in reply}
    assert zones == {"use1-az4", "use1-az6"}
    for zone in zones:
        rows = [row for row in reply if row["AvailabilityZoneId"] == zone]
        times = [row["Timestamp"].timestamp() for row in rows]
        assert times == sorted(times, reverse=True)
        assert times[-1] <= now - 600 < times[-2]
        assert len({row["SpotPrice"] for row in rows}) > 1
    names = {row["AvailabilityZone"] for row in reply if row["AvailabilityZoneId"] == "use1-az4"}
    assert names == {"us-east-1d"}


def test_the_price_of_one_pool_now_is_one_row(cloud: Cloud) -> None:
    reply = cloud.ec2.describe_spot_price_history(
        InstanceTypes=[KIND],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=time.time(),
        Filters=[{"Name": "availability-zone", "Values": ["us-east-1d"]}],
    )["SpotPriceHistory"]
    assert [row["AvailabilityZoneId"] for row in reply] == ["use1-az4"]
    assert 0.17 <= float(reply[0]["SpotPrice"]) <= 0.23


def test_prices_come_in_pages(cloud: Cloud) -> None:
    pages = cloud.ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[KIND], StartTime=time.time() - 900, PaginationConfig={"PageSize": 7}
    )
    sizes = [len(page["SpotPriceHistory"]) for page in pages]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {7}
