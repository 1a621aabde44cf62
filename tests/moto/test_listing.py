"""Many jobs' machines, listed together: how many calls, what a throttled or broken one tells, and when by id."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ConnectTimeoutError

from cloudtrain.provisioner.adapters import listing
from cloudtrain.provisioner.errors import CloudUnreachable
from cloudtrain.provisioner.model import Machine, MachineState
from tests.contract.cloud_contract import ON_DEMAND, OTHER_ZONE, POOL, REGION, launch_request
from tests.moto.worlds import MotoWorld

MANY = 30


@pytest.fixture
def world(moto_world: MotoWorld, monkeypatch: pytest.MonkeyPatch) -> MotoWorld:
    monkeypatch.setitem(listing.GAP_S, "aws", 0.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)  # what botocore waits before its own retries
    return moto_world


def jobs(world: MotoWorld) -> list[str]:
    return [f"{world.job}{n}" for n in range(MANY)]


def launched(world: MotoWorld) -> list[str]:
    """A machine for each job; their ids."""
    return [world.cloud.launch(launch_request(world, job=job, pool=ON_DEMAND)).instance_id for job in jobs(world)]


def together(world: MotoWorld) -> list[tuple[Machine, ...] | CloudUnreachable]:
    """The answers of threads that ask at one time: the first one's call goes on until all the others have asked."""
    first = threading.Event()
    shared = world.cloud._listing(REGION)._asked

    def hold(_request: AWSPreparedRequest) -> None:
        first.set()
        deadline = monotonic() + 10
        while shared._open is None or len(shared._open.keys) < MANY - 1:
            assert monotonic() < deadline

    def one(job: str) -> tuple[Machine, ...] | CloudUnreachable:
        assert job == f"{world.job}0" or first.wait(10)
        try:
            return world.cloud.machines(job, [REGION])
        except CloudUnreachable as error:
            return error

    world.on_send("DescribeInstances", hold, times=1)
    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, jobs(world)))


def ids(seen: list[tuple[Machine, ...] | CloudUnreachable]) -> list[list[str]]:
    assert not any(isinstance(answer, CloudUnreachable) for answer in seen)
    return [[m.instance_id for m in answer] for answer in seen if not isinstance(answer, CloudUnreachable)]


def counted(world: MotoWorld, *actions: str) -> Counter[str]:
    calls: Counter[str] = Counter()
    for action in actions:
        world.on_call(action, partial(calls.update, [action]))
    return calls


def test_thirty_jobs_that_look_at_one_time_make_two_calls_and_see_their_own(world: MotoWorld) -> None:
    made = launched(world)
    calls = counted(world, "DescribeInstances", "DescribeSpotInstanceRequests")
    assert ids(together(world)) == [[instance_id] for instance_id in made]
    assert calls == {"DescribeInstances": 2}, "and nobody asks for spot requests where there are none"


def test_more_jobs_than_a_filter_takes_are_several_calls(world: MotoWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "FILTER_VALUES", 10)
    made = launched(world)
    calls = counted(world, "DescribeInstances")
    assert ids(together(world)) == [[instance_id] for instance_id in made]
    assert calls == {"DescribeInstances": 1 + 3}


def test_a_throttled_list_is_unknown_for_all_who_asked_and_no_machine_is_gone(world: MotoWorld) -> None:
    launched(world)
    world.refuse("DescribeInstances", "RequestLimitExceeded", status=503, having="Filter.1.Value.2")
    first, *others = together(world)
    assert isinstance(first, tuple), "it asked alone"
    assert all(isinstance(answer, CloudUnreachable) for answer in others)
    assert "machines in us-east-1: RequestLimitExceeded" in str(others[0])
    world.close()
    assert len(world.cloud.machines(jobs(world)[3], [REGION])) == 1


def test_after_no_answer_at_all_the_rest_of_the_list_is_not_waited_for(
    world: MotoWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FILTER_VALUES", 10)
    sent: list[str] = []

    def black_hole(request: AWSPreparedRequest) -> None:
        sent.append(str(request.body))
        if "Filter.1.Value.2" in sent[-1]:
            raise ConnectTimeoutError(endpoint_url=str(request.url))

    world.on_send("DescribeInstances", black_hole)
    first, *others = together(world)
    assert first == ()
    assert all(isinstance(answer, CloudUnreachable) for answer in others)
    assert len(sent) == 1 + 3, "the first of three calls, tried three times; the other two are not made"


def test_where_a_zone_is_broken_what_is_known_is_asked_for_by_id(world: MotoWorld) -> None:
    here = world.cloud.launch(launch_request(world, job="digits-here"))
    there = world.cloud.launch(launch_request(world, job="digits-there", pool=OTHER_ZONE))
    new = "digits-new"
    for job in ("digits-here", "digits-there"):
        world.cloud.machines(job, [REGION])
    world.cloud.launch(launch_request(world, job=new))
    world.refuse("DescribeInstances", "Unavailable", status=503, having="Filter.1")
    (seen,) = world.cloud.machines("digits-here", [REGION])
    assert (seen.instance_id, seen.state) == (here.instance_id, MachineState.RUNNING)
    assert [m.instance_id for m in world.cloud.machines("digits-there", [REGION])] == [there.instance_id]
    with pytest.raises(CloudUnreachable, match="Unavailable"):
        world.cloud.machines(new, [REGION])  # no list has shown it: an empty answer would be a lie
    world.refuse("DescribeInstances", "Unavailable", status=503, having=here.instance_id)
    with pytest.raises(CloudUnreachable, match=f"machines in {REGION}[a-f]: Unavailable"):
        world.cloud.machines("digits-here", [REGION])
    assert [m.instance_id for m in world.cloud.machines("digits-there", [REGION])] == [there.instance_id]


def test_what_was_launched_since_the_last_list_makes_ids_worthless(world: MotoWorld) -> None:
    world.cloud.launch(launch_request(world))
    world.cloud.machines(world.job, [REGION])
    world.cloud.launch(launch_request(world, generation=2, pool=POOL))
    world.refuse("DescribeInstances", "InternalError", status=500, having="Filter.1")
    with pytest.raises(CloudUnreachable):
        world.cloud.machines(world.job, [REGION])


def test_a_terminated_machine_without_its_tags_hides_no_other(world: MotoWorld) -> None:
    here, there = (world.cloud.launch(launch_request(world, job=job)) for job in ("tagless-here", "tagless-there"))
    ec2 = world.cloud._clients.client("ec2", REGION)

    def untagged(parsed: dict[str, Any], **_: object) -> None:
        for instance in (i for r in parsed.get("Reservations", ()) for i in r["Instances"]):
            if instance["InstanceId"] == here.instance_id:
                instance.pop("Tags", None)

    ec2.meta.events.register("after-call.ec2.DescribeInstances", untagged)
    assert world.cloud.machines("tagless-here", [REGION]) == ()
    assert [m.instance_id for m in world.cloud.machines("tagless-there", [REGION])] == [there.instance_id]


def test_where_a_zone_is_broken_an_id_that_ec2_has_forgotten_hides_no_other(world: MotoWorld) -> None:
    gone, here = (world.cloud.launch(launch_request(world, job=job)) for job in ("forgotten-gone", "forgotten-here"))
    for job in ("forgotten-gone", "forgotten-here"):
        world.cloud.machines(job, [REGION])
    world.refuse("DescribeInstances", "Unavailable", status=503, having="Filter.1")
    world.refuse("DescribeInstances", "InvalidInstanceID.NotFound", having=gone.instance_id)
    shared = world.cloud._listing(REGION)
    answers = shared._answers(("forgotten-gone", "forgotten-here"))
    assert answers["forgotten-gone"] == []
    seen = answers["forgotten-here"]
    assert isinstance(seen, list)
    assert [i["InstanceId"] for i, _ in seen] == [here.instance_id]
