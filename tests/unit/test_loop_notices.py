"""Notices from both sides: the metadata service through the agent, the spot request from outside, both, or none.

A closed request is a notice and never a proof of death, and the machine is left to EC2: its first hour is then free.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from cloudtrain.provisioner import ledger
from cloudtrain.provisioner.model import EndReason, JobStatus
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.fakes import FakeInstance

NOTICE_S = 120.0


@pytest.mark.parametrize("side", ["agent", "request", "both", "request, SSH black-holed", "none"])
def test_a_job_is_recovered_whoever_hears_of_the_notice(tmp_path: Path, side: str) -> None:
    """At minute 30 (F28): a checkpoint, no Terminate by us before EC2 takes the machine, and nothing to pay for it."""
    world = World(total_steps=2400)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 1805 for a in world.agents.values()))
    (instance,) = world.cloud.live()
    (agent,) = world.agents.values()
    world.blind = side in ("request", "request, SSH black-holed", "none")
    world.cut = side == "request, SSH black-holed"
    taken_at = world.clock.now() + NOTICE_S
    calls = len(world.cloud.calls)
    if side == "none":
        world.cloud.kill(instance.instance_id, "Server.SpotInstanceTermination")
    else:
        world.cloud.interrupt(instance.instance_id, notice_s=NOTICE_S)
    if side == "agent":
        instance.spot_status = "fulfilled"
    heard_s = None
    if side != "none":
        noticed = bench.run(until=lambda: bench.store.get(bench.record.job_id).record.attempts[0].notice_at is not None)
        heard_s = (noticed.attempts[0].notice_at or 0) - (taken_at - NOTICE_S)
        assert heard_s <= 10
        assert agent.step >= 1805 and instance in world.cloud.live(), "a closed request is no proof of death"
    step_then = agent.step
    world.cut = world.cut and side != "none"
    bench.run(until=lambda: not _lives(world, instance))
    assert world.clock.now() >= taken_at or side == "none"
    ended = [text for name, text in world.cloud.calls[calls:] if name == "terminate" and instance.instance_id in text]
    assert ended == []
    world.cut = False
    record = bench.run()
    assert record.status is JobStatus.SUCCEEDED
    first, second = record.attempts
    assert (first.end_reason, first.ended_by_cloud) == (EndReason.INTERRUPTED, True)
    assert record.preemptions == 1
    line = ledger.bill(record, world.clock.now()).lines[0]
    assert (line.free, line.usd) == (True, Decimal(0)), "taken in its first hour: free"
    if side in ("agent", "request", "both"):  # a checkpoint was made for it
        assert (second.start_step or 0) >= step_then
    else:
        assert (second.start_step or 0) >= step_then - 65, "at most what one interval trains"
    nothing_left(world)


def _lives(world: World, instance: FakeInstance) -> bool:
    return any(i.instance_id == instance.instance_id for i in world.cloud.live())


def test_an_agent_that_knows_is_not_told_again(tmp_path: Path) -> None:
    world = World(total_steps=2400)
    bench = Bench(tmp_path, world)
    bench.run(until=lambda: any(a.step >= 300 for a in world.agents.values()))
    (instance,) = world.cloud.live()
    told = []
    plain = world.run

    def run(target: object, command: str, **more: object) -> object:
        told.append(command) if "stop.json" in command else None
        return plain(target, command, **more)  # type: ignore[arg-type]

    world.run = run  # type: ignore[assignment,method-assign]
    world.cloud.interrupt(instance.instance_id, notice_s=NOTICE_S)
    bench.run(until=lambda: not _lives(world, instance))
    assert told == []
