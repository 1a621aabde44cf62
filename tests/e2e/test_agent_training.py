"""The agent and the shipped trainer together: interrupted, resumed elsewhere, equal to the last bit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.trainer.contract import FINAL_PHASES, AgentStatus, Latest
from tests.e2e.agent_site import Machine, bucket_at, metadata_server, s3_server

pytestmark = pytest.mark.slow

RUN = "python -m cloudtrain.trainer --epochs 8 --seed 5"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Two machines of one job, and one of a job that nobody interrupts. Each has a metadata service of its own."""
    with s3_server() as s3, metadata_server() as (metadata, imds), metadata_server() as (_, quiet):
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        objects = bucket_at(s3, bucket)
        other = f"bucket-{uuid.uuid4().hex[:12]}"
        made = [
            Machine(tmp_path / "first", objects, bucket, s3, imds),
            Machine(tmp_path / "second", objects, bucket, s3, quiet),
            Machine(tmp_path / "undisturbed", bucket_at(s3, other), other, s3, quiet),
        ]
        made[0].metadata = metadata
        yield made
        for machine in made:
            machine.destroy()


def final(status: AgentStatus) -> bool:
    return status.phase in FINAL_PHASES


def test_interrupted_and_resumed_training_is_the_same_training(machines: list[Machine]) -> None:
    first, second, undisturbed = machines
    for machine in (first, undisturbed):
        machine.claim(Latest(1))
    envs = {"OMP_NUM_THREADS": "1"}
    first.ship(run=RUN, grace_seconds=20.0, envs=envs)
    first.bootstrap()
    first.wait(lambda status: status.progress.step >= 60, timeout_s=120)
    assert first.metadata is not None
    taken_at = first.metadata.notice(15)
    stopped = first.wait(final)
    assert time.time() < taken_at
    assert stopped.phase == "stopped"
    assert stopped.progress.step == stopped.durable_step, "no step was lost"

    latest = first.latest()
    assert latest is not None
    second.claim(Latest(2, latest.step, latest.key, latest.manifest_sha256))
    second.ship(run=RUN, generation=2, grace_seconds=20.0, envs=envs)
    second.bootstrap()
    resumed = second.wait(final, timeout_s=120)
    assert (resumed.phase, resumed.resumed_step, resumed.progress.start_step) == ("done", latest.step, latest.step)

    undisturbed.ship(run=RUN, envs=envs)
    undisturbed.bootstrap()
    whole = undisturbed.wait(final, timeout_s=120)
    assert whole.progress.step == resumed.progress.step
    assert whole.progress.metrics == resumed.progress.metrics
    assert whole.progress.loss is not None and whole.progress.loss == resumed.progress.loss
