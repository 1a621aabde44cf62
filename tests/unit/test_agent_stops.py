"""What asks a job to stop: here, the limit that the machine keeps by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloudtrain.trainer.agent.decide_stop import Reason
from cloudtrain.trainer.agent.places import Places
from cloudtrain.trainer.agent.state import State
from cloudtrain.trainer.agent.stops import Stops
from cloudtrain.trainer.contract import AgentConfig


@pytest.mark.parametrize(
    ("ran_s", "sent_gb", "reason"),
    [(500, 0, None), (1001, 0, Reason.BUDGET), (500, 4, None), (500, 6, Reason.BUDGET)],
)
def test_traffic_takes_off_the_budget_what_it_costs(
    tmp_path: Path, ran_s: float, sent_gb: int, reason: Reason | None
) -> None:
    """A thousand seconds, and a GB costs as much as a hundred of them."""
    keys = {"limit_s": 1000.0, "limit_s_per_gb": 100.0, "limit": "budget"}
    config = AgentConfig("a-1", 1, "bucket", "eu-west-1", "jobs/a-1", "true", **keys)  # type: ignore[arg-type]
    places, state = Places(tmp_path), State(started=time.monotonic() - ran_s)
    places.run.mkdir(parents=True)
    Stops(config, places, state).look(None, fenced=False, going_down=False, sent_bytes=sent_gb * 10**9)
    assert (state.stop.reason if state.stop is not None else None) is reason
