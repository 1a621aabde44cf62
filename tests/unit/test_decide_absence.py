"""What one look that shows a machine no more, or a machine anew, does to its attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.provisioner.decide import attempts as at
from cloudtrain.provisioner.decide.limits import DEFAULT
from cloudtrain.provisioner.model import Attempt, EndReason, Machine, MachineState, Observed, Phase
from cloudtrain.trainer.contract import AgentStatus, Progress
from tests.records import offering

T = 1_800_000_000.0
WORKING = Attempt(
    1, offering("use1-az1", "0.15").pool, "token", Phase.WORKING, T, instance_id="i-1", launched_at=T, running_at=T + 30
)
MACHINE = Machine("i-1", "job", 1, "token", MachineState.RUNNING, T)


def seen(*machines: Machine, looked_at: float | None = None, report: AgentStatus | None = None) -> Observed:
    return Observed(machines, (report,) if report else (), looked_at=looked_at)


def step(attempt: Attempt, look: Observed, now: float) -> Attempt:
    return at.advance(attempt, look, now, leaving=None, limits=DEFAULT).attempt


def status(phase: str, heartbeat_at: float) -> AgentStatus:
    return AgentStatus(1, phase, heartbeat_at, Progress(step=7))


def test_a_running_machine_that_one_list_lacks_is_not_gone() -> None:
    young = step(replace(WORKING, phase=Phase.BOOTING, running_at=None), seen(), T + 5)
    assert young.unseen_since == T + 5
    back = step(young, seen(MACHINE), T + 20)
    assert back.unseen_since is None
    later = step(replace(back, phase=Phase.WORKING), seen(), T + 7200)
    assert (later.phase, later.unseen_since) == (Phase.WORKING, T + 7200)
    assert step(later, seen(), T + 7200 + DEFAULT.gone_unseen_s - 1).phase is Phase.WORKING
    assert step(later, seen(), T + 7200 + DEFAULT.gone_unseen_s).phase is Phase.ENDED


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("done", EndReason.SUCCEEDED), ("failed", EndReason.JOB_FAILED), ("running", EndReason.INTERRUPTED)],
)
def test_a_machine_that_ec2_has_forgotten_ended_as_its_last_words_say_and_then(phase: str, reason: EndReason) -> None:
    lacking = replace(WORKING, unseen_since=T + 30_000)
    ended = step(lacking, seen(report=status(phase, T + 3600)), T + 30_000 + DEFAULT.gone_unseen_s)
    assert (ended.phase, ended.end_reason) == (Phase.ENDED, reason)
    assert ended.ended_at == ended.gone_at == T + 3600 + DEFAULT.departed_s
    assert not ended.ended_by_cloud  # nobody knows: it is not called free


def test_without_any_word_it_counts_until_now() -> None:
    ended = step(replace(WORKING, unseen_since=T + 30_000), seen(), T + 31_000)
    assert (ended.ended_at, ended.end_reason) == (T + 31_000, EndReason.INTERRUPTED)


@pytest.mark.parametrize(
    ("looked_at", "running_at"), [(None, T), (T - 100, T), (T + 55, T + 55), (T + 70, T + 60)], ids=str
)
def test_a_machine_counts_from_the_last_look_at_which_it_did_not_run(
    looked_at: float | None, running_at: float
) -> None:
    for phase in (Phase.BOOTING, Phase.CLAIMED):  # claimed: by a controller that died before it knew of its machine
        attempt = replace(WORKING, phase=phase, running_at=None)
        assert step(attempt, seen(MACHINE, looked_at=looked_at), T + 60).running_at == running_at


@pytest.mark.parametrize("code", ["Client.InternalError", "Client.InvalidKMSKey.InvalidState"])
def test_a_machine_that_dies_at_its_start_for_its_key_says_where_to_look(code: str) -> None:
    booting = replace(WORKING, phase=Phase.BOOTING, running_at=None)
    dead = replace(MACHINE, state=MachineState.TERMINATED, state_reason=code, state_message=f"{code}: Client error")
    ended = step(booting, seen(dead), T + 20)
    assert (ended.end_reason, ended.ended_by_cloud) == (EndReason.MACHINE_LOST, False)
    assert ended.end_detail is not None and "KMS key: `cloudtrain doctor`" in ended.end_detail


def test_an_interruption_that_is_tried_out_is_one() -> None:
    """AWS FIS closes the spot request with a status of its own while the machine runs on for two minutes."""
    tried = replace(MACHINE, spot_request_id="sir-1", spot_status="instance-terminated-by-experiment")
    assert step(WORKING, seen(tried), T + 600).notice_at == T + 600
