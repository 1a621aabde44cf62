"""The controller dies at every single point of a run, and a fresh one carries on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobRecord, JobStatus
from tests.bench import Bench
from tests.fake_agent import World

CHANGES = ("prepare", "launch", "terminate", "sweep", "put", "delete", "offer", "change")


class Crash(BaseException):
    """The controller's process dies here."""


def _story(tmp_path: Path, crash_at: int | None, *, notice_s: float | None) -> tuple[World, Bench, JobRecord, int]:
    """A whole run with one interruption; the controller dies at moment ``crash_at`` and a fresh one carries on."""
    tmp_path.mkdir()
    world = World(total_steps=90)
    bench = Bench(tmp_path, world)
    moments = 0

    def hook(call: str, when: str) -> None:
        nonlocal moments
        if call not in CHANGES:  # dying around a mere look leaves the same world as dying around the last change
            return
        moments += 1
        if moments == crash_at:
            raise Crash(f"{when} {call}")

    world.cloud.faults.hook = world.objects.faults.hook = hook
    interrupted = False
    for _ in range(5):
        try:
            if not interrupted:
                bench.run(until=lambda: any(a.step >= 65 for a in world.agents.values()))
                first = next(iter(world.cloud.instances))
                if notice_s is None:
                    world.cloud.kill(first, "Server.SpotInstanceTermination")
                else:
                    world.cloud.interrupt(first, notice_s=notice_s)
                interrupted = True
            record = bench.run()
            return world, bench, record, moments
        except Crash:
            continue
    raise AssertionError("never finished")


@pytest.mark.parametrize(
    "notice_s", [pytest.param(None, id="no-notice", marks=pytest.mark.long), pytest.param(120.0, id="notice")]
)
def test_a_crash_at_any_point_leaves_one_machine_at_most_and_the_job_done(
    tmp_path: Path, notice_s: float | None
) -> None:
    *_, total = _story(tmp_path / "whole", None, notice_s=notice_s)
    assert total > 40
    for crash_at in range(1, total + 1):
        world, _bench, record, _ = _story(tmp_path / str(crash_at), crash_at, notice_s=notice_s)
        where = f"crash at {crash_at}"
        assert record.status is JobStatus.SUCCEEDED, where
        assert world.most_live_of_one == 1, where
        assert world.most_live == 1, where
        assert world.cloud.live() == [], where
        assert world.cloud.groups == set(), where
        assert world.refused_keys == 0, f"{where}: locked out by its own change of host keys"
        tokens = [i.request.attempt.client_token for i in world.cloud.instances.values()]
        assert len(tokens) == len(set(tokens)), where
        for agent in world.agents.values():
            assert not agent.fenced or agent.phase == "stopped", where
        last = record.attempts[-1]
        assert last.start_step is not None, where
        if notice_s is not None:
            assert bill(record, world.clock.now()).lost_steps == 0, where
