"""After a refused launch exactly the pools that would say the same are left alone, for as long as they would."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing.model import CapacityType, InstanceType, Offering, Pool
from cloudtrain.provisioner.decide.absorb import absorb
from cloudtrain.provisioner.decide.limits import DEFAULT
from cloudtrain.provisioner.decide.outcomes import LaunchRefused, LaunchUnknown
from cloudtrain.provisioner.decide.refusals import avoided, leave_alone, next_offering, pause_s
from cloudtrain.provisioner.errors import (
    AttemptOver,
    CloudUnreachable,
    PoolUnavailable,
    QuotaExceeded,
    Scope,
)
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, JobStatus, Phase
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.records import T4, job, offering, over

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
NOW = 1_800_000_000.0


@pytest.fixture
def world() -> World:
    return World()


def pool(text: str) -> Pool:
    return Pool.parse(f"aws/{text}")


def offered(*texts: str) -> tuple[Offering, ...]:
    """Offerings by "REGION/ZONE/TYPE/MARKET"; g5g is Graviton's."""
    found = []
    for text in texts:
        where = pool(text)
        arm = where.instance_type.startswith("g5g.")
        kind: InstanceType = replace(T4, name=where.instance_type, architecture="arm64" if arm else "x86_64")
        found.append(replace(offering("z", "0.1"), pool=where, instance=kind))
    return tuple(found)


POOLS = (
    "us-east-1/use1-az1/g4dn.xlarge/spot",
    "us-east-1/use1-az1/g4dn.xlarge/on-demand",
    "us-east-1/use1-az1/g5.xlarge/spot",
    "us-east-1/use1-az1/p4d.24xlarge/spot",
    "us-east-1/use1-az1/p5.48xlarge/spot",
    "us-east-1/use1-az1/p5.48xlarge/on-demand",
    "us-east-1/use1-az1/p6-b200.48xlarge/spot",
    "us-east-1/use1-az1/p6-b300.48xlarge/spot",
    "us-east-1/use1-az1/g5g.xlarge/spot",
    "us-east-1/use1-az2/g4dn.xlarge/spot",
    "us-east-1/use1-az2/p3.2xlarge/spot",
    "us-west-2/usw2-az1/g4dn.xlarge/spot",
)


def left_alone(refused: str, scope: Scope) -> set[str]:
    record = replace(job(), offerings=offered(*POOLS))
    attempt = Attempt(1, pool(refused), "t", Phase.ENDED, NOW, end_reason=EndReason.NO_CAPACITY)
    record = leave_alone(record, attempt, LaunchRefused(1, "no", scope=scope), NOW, DEFAULT)
    return {str(entry.pool).removeprefix("aws/") for entry in avoided(record, NOW)}


@pytest.mark.parametrize(
    ("scope", "refused", "wanted"),
    [
        (Scope.NONE, POOLS[0], set()),
        (Scope.POOL, POOLS[0], {POOLS[0]}),
        (Scope.PLACE, POOLS[0], {POOLS[0], POOLS[1]}),
        (Scope.SUBNET, POOLS[9], {POOLS[9], POOLS[10]}),
        # "Running On-Demand G and VT" and "All G and VT Spot" count apart, and g5g with them.
        (Scope.QUOTA, POOLS[0], {POOLS[0], POOLS[2], POOLS[8], POOLS[9]}),
        # P4, P3 and P2 on spot share a quota; P5 has its own; on demand all P are one.
        (Scope.QUOTA, POOLS[3], {POOLS[3], POOLS[10]}),
        (Scope.QUOTA, POOLS[4], {POOLS[4]}),
        (Scope.QUOTA, POOLS[5], {POOLS[5]}),
        # Which quota counts P6 on spot nobody documents: the type's own.
        (Scope.QUOTA, POOLS[6], {POOLS[6]}),
        (Scope.IMAGE, POOLS[8], {POOLS[8]}),
        (Scope.IMAGE, POOLS[0], {p for p in POOLS if p.startswith("us-east-1") and "g5g" not in p}),
        (Scope.REGION, POOLS[11], {POOLS[11]}),
        (Scope.REGION, POOLS[0], {p for p in POOLS if p.startswith("us-east-1")}),
        (Scope.ACCOUNT, POOLS[0], set(POOLS)),
    ],
)
def test_what_is_left_alone(scope: Scope, refused: str, wanted: set[str]) -> None:
    assert left_alone(refused, scope) == wanted


@given(st.sampled_from(POOLS), st.sampled_from([s for s in Scope if s not in (Scope.NONE, Scope.RESOURCE)]))
def test_the_refused_pool_itself_is_always_left_alone_and_no_other_market_for_a_quota(text: str, scope: Scope) -> None:
    alone = left_alone(text, scope)
    assert text in alone
    if scope is Scope.QUOTA:
        assert {p.rpartition("/")[2] for p in alone} == {text.rpartition("/")[2]}


# ---- for how long


def rests(record: JobRecord, outcome: LaunchRefused) -> float:
    attempt = record.attempts[-1]
    (entry,) = [a for a in avoided(leave_alone(record, attempt, outcome, NOW, DEFAULT), NOW) if a.pool == attempt.pool]
    return entry.until_at - NOW


def test_capacity_rests_from_three_to_ten_minutes() -> None:
    no = over(1, 0, EndReason.NO_CAPACITY)
    for times, wanted in ((1, 180), (2, 360), (3, 600), (4, 600)):
        attempts = [replace(no, generation=n + 1, started_at=None) for n in range(times)]
        assert (
            rests(replace(job(*attempts), offerings=(offering("use1-az1", "0.1"),)), LaunchRefused(1, "no")) == wanted
        )


def test_what_does_not_change_rests_for_a_day_and_a_quota_for_minutes() -> None:
    record = replace(job(over(1, 0, EndReason.NO_CAPACITY)), offerings=(offering("use1-az1", "0.1"),))
    assert rests(record, LaunchRefused(1, "Unsupported", scope=Scope.PLACE, lasting=True)) == 86_400
    assert rests(record, LaunchRefused(1, "quota", EndReason.QUOTA, Scope.QUOTA)) == 600


def test_a_short_rest_never_cuts_a_long_one() -> None:
    record = replace(job(over(1, 0, EndReason.NO_CAPACITY)), offerings=(offering("use1-az1", "0.1"),))
    long = leave_alone(record, record.attempts[0], LaunchRefused(1, "no", lasting=True), NOW, DEFAULT)
    both = leave_alone(long, record.attempts[0], LaunchRefused(1, "no"), NOW, DEFAULT)
    assert [entry.until_at - NOW for entry in avoided(both, NOW)] == [86_400]


def test_each_pool_is_asked_once_before_any_is_asked_again() -> None:
    offerings = tuple(offering(f"use1-az{n}", "0.1") for n in range(1, 5))
    refused = tuple(
        replace(over(n, 0, EndReason.NO_CAPACITY), pool=offerings[n - 1].pool, started_at=None) for n in (1, 2)
    )
    record = replace(job(*refused), offerings=offerings)  # hours later: none is left alone any more
    third = next_offering(record, NOW + 9e5, may_wait=True)
    assert third is not None
    assert third.pool == offerings[2].pool
    all_asked = replace(record, offerings=offerings[:2])
    again = next_offering(all_asked, NOW + 9e5, may_wait=True)
    assert again is not None
    assert again.pool == offerings[0].pool
    assert next_offering(all_asked, NOW + 9e5, may_wait=False) is None, "at a launch that may not wait, one round ends"


# ---- throttled, broken, unknown


def test_pauses_grow_and_differ_from_job_to_job() -> None:
    attempts = [Attempt(1, offering("z", "1").pool, f"ct-job{n}-1-x", Phase.CLAIMED, NOW) for n in range(1000)]
    for tries, base in ((0, 2.0), (1, 4.0), (3, 16.0), (4, 30.0), (50, 30.0)):
        pauses = [pause_s(replace(attempt, unknown_launches=tries), DEFAULT) for attempt in attempts]
        assert base * 0.5 <= min(pauses) < base * 0.6
        assert base * 1.4 < max(pauses) <= base * 1.5
        assert len(set(pauses)) > 100


def test_a_cloud_with_a_fault_of_its_own_is_asked_five_times_then_the_pool_is_left_alone() -> None:
    offerings = (offering("use1-az1", "0.1"), offering("use1-az2", "0.2"))
    claimed = Attempt(1, offerings[0].pool, "ct-1", Phase.CLAIMED, NOW, launch_asked_at=NOW)
    record = replace(job(claimed), offerings=offerings)
    for tries in range(1, 6):
        record = absorb(record, LaunchUnknown(1, "InternalError", asked=True, broken=True), NOW + tries).record
        assert (record.attempts[0].given_up is not None) == (tries == 5)
    assert record.attempts[0].phase is Phase.CLAIMED, "what it may have made is looked for first"
    assert [entry.pool for entry in avoided(record, NOW + 6)] == [offerings[0].pool]


def test_throttling_is_not_counted_so_and_gives_up_with_the_region_after_minutes() -> None:
    offerings = (offering("use1-az1", "0.1"), offering("use1-az2", "0.2"))
    claimed = Attempt(1, offerings[0].pool, "ct-1", Phase.CLAIMED, NOW, launch_asked_at=NOW)
    record = replace(job(claimed), offerings=offerings)
    for tries in range(1, 9):
        record = absorb(record, LaunchUnknown(1, "RequestLimitExceeded", asked=True), NOW + tries).record
    assert record.attempts[0].phase is Phase.CLAIMED
    assert record.attempts[0].client_token == "ct-1"
    record = absorb(record, LaunchUnknown(1, "RequestLimitExceeded", asked=True), NOW + 301).record
    assert len(avoided(record, NOW + 302)) == 2


# ---- the failure reports, through the whole loop


def test_f31_capacity_in_the_last_of_thirty_pools_is_found_and_the_others_are_named(
    tmp_path: Path, world: World
) -> None:
    bench = Bench(tmp_path, world, tuple(offering(f"use1-az{n}", "0.1") for n in range(1, 31)))
    world.cloud.refuse(lambda p: p.zone_id != "use1-az30", PoolUnavailable("full", code="InsufficientInstanceCapacity"))
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert world.cloud.count("launch") == 30
    assert {f"attempt {n}: no-capacity: full" for n in range(1, 30)} <= set(bench.events().splitlines())
    nothing_left(world)


def test_f31_a_code_that_nobody_knows_is_tried_once_in_each_pool_and_never_again(tmp_path: Path, world: World) -> None:
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 100 for a in world.agents.values()))
    (first,) = world.cloud.live()
    world.cloud.kill(first.instance_id, "Server.SpotInstanceTermination")
    asked = world.cloud.count("launch")
    said = PoolUnavailable("launch in P: BrandNew_WITH_DETAILS: no (request req-9)", code="BrandNew", lasting=True)
    world.cloud.refuse(lambda _: True, said)
    with contextlib.suppress(AssertionError):  # it waits for capacity, which is not what ends here
        bench.run(passes=1500)  # two hours of passes
    assert world.cloud.count("launch") - asked <= 3
    assert "BrandNew_WITH_DETAILS: no (request req-9)" in bench.events()


def test_f32_a_quota_is_asked_once_and_the_other_market_is_next(tmp_path: Path, world: World) -> None:
    spot = tuple(offering(f"use1-az{n}", "0.1") for n in range(1, 7))
    bench = Bench(tmp_path, world, (*spot, offering("use1-az1", "0.5", ON_DEMAND)))
    said = QuotaExceeded(
        "quota 'All G and VT Spot Instance Requests' (L-3819A6DF)", code="MaxSpotInstanceCountExceeded"
    )
    world.cloud.refuse(lambda p: p.capacity_type is SPOT, said)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [a.pool.capacity_type for a in record.attempts] == [SPOT, ON_DEMAND]
    assert "L-3819A6DF" in bench.events()


def test_f34_an_image_that_a_region_lacks_costs_the_region_s_pools_and_no_more(tmp_path: Path, world: World) -> None:
    elsewhere = replace(offering("use1-az1", "0.9"), pool=pool("us-west-2/usw2-az1/g4dn.xlarge/spot"))
    bench = Bench(tmp_path, world, (offering("use1-az1", "0.1"), offering("use1-az2", "0.2"), elsewhere))
    gone = PoolUnavailable("no such image", code="InvalidAMIID.NotFound", scope=Scope.IMAGE, lasting=True)
    world.cloud.refuse("us-east-1", gone)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert [a.pool.region for a in record.attempts] == ["us-east-1", "us-west-2"]


@pytest.mark.parametrize("code", ["IdempotentParameterMismatch", "IdempotentInstanceTerminated"])
def test_f07_f08_a_token_that_made_a_machine_finds_it_by_its_tag(tmp_path: Path, world: World, code: str) -> None:
    """The launch took effect, its reply was lost, and asked again EC2 says that the token is spent."""
    bench = Bench(tmp_path, world)
    world.cloud.faults.add("launch", CloudUnreachable("no reply"), when="after")
    world.cloud.hidden_s = 60.0
    bench.run(until=lambda: bool(world.cloud.instances))
    world.cloud.faults.add("launch", AttemptOver(f"launch: {code}", code=code), when="before")
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert len(record.attempts) == 1, "the machine was in fact running"
    assert len(world.cloud.instances) == 1
    nothing_left(world)


def test_f07_a_token_whose_machine_died_ends_the_attempt_and_the_next_has_another(tmp_path: Path, world: World) -> None:
    bench = Bench(tmp_path, world)
    world.cloud.faults.add("launch", CloudUnreachable("no reply"), when="after")
    world.cloud.shutdown_s = 0.0
    world.cloud.hidden_s = 1e9
    bench.run(until=lambda: bool(world.cloud.instances))
    (only,) = world.cloud.instances.values()  # never listed: only the token tells that it was
    world.cloud.hidden_s = 2.0
    world.cloud.kill(only.instance_id)
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    one, two = record.attempts[0], record.attempts[-1]
    assert one.end_reason is EndReason.MACHINE_LOST
    assert "terminated" in (one.end_detail or "")
    assert one.client_token != two.client_token
    assert world.cloud.count("launch") < 20, "asked less and less often"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_f42_half_of_all_calls_throttled_makes_no_second_machine_and_fails_nothing(
    tmp_path: Path, world: World, seed: int
) -> None:
    bench = Bench(tmp_path, world)
    chance = random.Random(seed)

    def half(call: str, when: str) -> None:
        if when == "before" and chance.random() < 0.5:
            raise CloudUnreachable("RequestLimitExceeded: Request limit exceeded.")

    world.cloud.faults.hook = half
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    assert len(world.cloud.instances) == 1
    nothing_left(world)
