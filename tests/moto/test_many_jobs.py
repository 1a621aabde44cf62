"""Many jobs on one controller while calls are throttled: a slice of ``benchmarks/scale.py``, in one process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from _scale_cloud import Counting, Pretender
from _scale_controller import Costs, PretendedAgents
from _scale_jobs import add_jobs

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller import __main__ as controller
from cloudtrain.provisioner.controller import loop
from cloudtrain.provisioner.controller.wiring import Shared
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client, daemon
from cloudtrain.provisioner.localcloud.client import LOCK_FILE
from cloudtrain.provisioner.localcloud.faults import Fault
from cloudtrain.provisioner.model import JobStatus
from tests.moto.local_server import serving
from tests.waiting import until

JOBS = 12


@pytest.mark.long
def test_jobs_share_calls_go_on_while_calls_are_throttled_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path, tmp_path / "local")
    home.local_home.mkdir()
    monkeypatch.setattr(controller, "IDLE_EXIT_S", 0.1)
    monkeypatch.setattr(loop.JobLoop, "pass_once", loop.JobLoop.pass_once)  # put back at the end
    agents, costs = PretendedAgents(), Costs()
    costs.watch()
    with serving(home.local_home) as cloud, daemon._lock(home.local_home / LOCK_FILE) as lock:  # type: ignore[union-attr]
        assert lock
        monkeypatch.setattr(cloud.server.machines, "_start", lambda _kind, _spec: Pretender())
        cloud.state.faults = calls = Counting()
        calls.add(Fault("*", "RequestLimitExceeded", share=0.05))
        daemon._announce(cloud.state, cloud.server.port, home.local_home)
        found = client.find(home.local_home)
        assert found is not None
        add_jobs(home, found, JOBS)
        store = SqliteStore(home.db)
        driving = threading.Thread(target=controller.Controller(home, store, SystemClock(), Shared(agents)).run)
        driving.start()
        until(lambda: len(agents) == JOBS)
        passes, described = costs.passes, calls.calls["DescribeInstances"]
        until(lambda: costs.passes > passes + 5 * JOBS)
        shared = (costs.passes - passes) / max(1, calls.calls["DescribeInstances"] - described)
        for job_id in store.heads():
            store.want(job_id, "cancel")
        driving.join(120)
        assert not driving.is_alive()
        assert {stored.record.status for stored in store.list()} == {JobStatus.CANCELLED}
        assert {machine["state"] for machine in client.status(found)["machines"]} == {"terminated"}
    assert shared > 1.5, "passes for each DescribeInstances: one each without sharing"
    assert calls.calls["TerminateInstances"] < JOBS * 3
