"""When a machine that went did so, and who ended it: what its bill rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.provisioner.decide.attempts import advance
from cloudtrain.provisioner.decide.departures import departed, ended_by_cloud
from cloudtrain.provisioner.decide.limits import DEFAULT
from cloudtrain.provisioner.model import Attempt, Machine, MachineState, Observed, Phase
from cloudtrain.trainer.contract import AgentStatus
from tests.records import offering

TAKEN = "instance-terminated-no-capacity"


def gone(reason: str | None, at: float = 1_000.0) -> Machine:
    return Machine(
        instance_id="i-1",
        job_id="digits-abc123",
        generation=1,
        client_token="t",
        state=MachineState.TERMINATED,
        launched_at=at,
        state_reason=reason,
        spot_status=TAKEN,
    )


@pytest.mark.parametrize(
    ("reason", "free"),
    [
        ("Server.SpotInstanceTermination", True),
        (None, True),  # EC2 does not always say
        ("Server.InternalError", False),  # it broke during its two minutes
        ("Client.InstanceInitiatedShutdown", False),
        ("Client.UserInitiatedShutdown", False),
    ],
)
def test_after_a_notice_too_only_what_ec2_took_is_free(reason: str | None, free: bool) -> None:
    assert ended_by_cloud(gone(reason)) is free


def claimed() -> Attempt:
    pool = offering("use1-az1", "0.15").pool
    return Attempt(1, pool, "t", Phase.CLAIMED, claimed_at=1_000.0, launch_asked_at=1_000.0)


def test_a_machine_that_saved_and_waits_for_ec2_bills_until_it_goes_by_itself() -> None:
    ran = replace(claimed(), phase=Phase.WORKING, launched_at=1_000.0, running_at=1_030.0)
    stopped = AgentStatus(1, "stopped", 1_100.0, notice_deadline_at=1_200.0)
    assert departed(ran, stopped, 20_000.0, DEFAULT).ended_at == 1_200.0 + DEFAULT.taken_late_s + DEFAULT.departed_s
    training = AgentStatus(1, "running", 1_100.0)
    assert departed(ran, training, 20_000.0, DEFAULT).ended_at == 1_100.0 + DEFAULT.departed_s


def test_a_machine_that_is_found_when_it_has_ended_bills_from_its_launch() -> None:
    seen = Observed((gone("Client.InstanceInitiatedShutdown"),))
    found = advance(claimed(), seen, 3_500.0, leaving=None, limits=DEFAULT).attempt
    assert (found.instance_id, found.running_at) == ("i-1", 1_000.0)
