"""The controller's own time limits. Every wait has one."""

from __future__ import annotations

from dataclasses import dataclass, replace

BOOT_DEADLINE_S = 1800.0
"""From the asking on: a machine whose later limit no controller has armed by then ends itself (its user data)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, unless the name says otherwise."""

    launch_unknown_s: float = 300  # a launch without an answer is given up, with its region
    unknown_tries: int = 5  # and not before it was asked so often: this computer may have slept in between
    launch_unseen_s: float = 120  # a launch without an answer that is not asked again, and shows no machine
    retry_s: float = 2.0  # between two askings; doubled with each unknown answer
    retry_most_s: float = 30.0
    broken_tries: int = 5  # of a launch that the cloud answers with a fault of its own: then the next pool
    unseen_s: float = (
        600  # a launched machine that never shows up is given up (the API is eventually consistent: minutes)
    )
    boot_s: float = 900  # from the launch to a started agent
    restart_s: float = 20  # the machine answers, its agent's status does not change: the agent is started again
    silent_s: float = 300  # the machine answers, its agent's status does not change: the agent is lost
    admit_s: float = 60  # it runs and does not answer: our address is admitted again, and so often
    unreachable_s: float = 1800  # the machine runs, no SSH, no beat in a bucket that answers: it is given up
    delivery_s: float = 7200  # from the end of the run to everything being in the bucket: then the machine is given up
    stop_s: float = 45  # from our stop request to terminating anyway
    stop_unheard_s: float = 300  # the same, for a stop that should save first and whose request has not got through
    unaware_s: float = 6  # after a spot request's notice: then its agent is told, should it not know by itself
    notice_grace_s: float = 180  # after a notice's deadline, EC2 should have taken the machine: we end it
    taken_late_s: float = 300  # then a machine that EC2 did not take powers itself off (trainer/agent/headway.py)
    gone_unseen_s: float = 300  # after terminate, a machine that is not listed any more counts as gone
    avoid_s: float = 600  # a pool that was reclaimed or refused is left alone
    capacity_s: float = 180  # one without capacity; doubled each time it says so again, up to avoid_s
    lasting_s: float = 24 * 3600  # one that refused for what does not change within hours
    recovery_wait_s: float = 24 * 3600  # how long a job that ran waits for capacity
    closing_tries: int = 300  # of bringing results home and sweeping, seconds apart
    unlooked_s: float = 20  # without a look, a machine may have begun to run, and have ended, unseen
    departed_s: float = 120  # from an agent's last sign of life, one a minute, to its machine being gone
    words_unknown_s: float = 600  # a machine is gone and the bucket does not answer what it said last
    reprice_s: float = 3600  # the price is read anew each hour of a machine's life
    poll_s: float = 5.0  # between two passes at most (controller/loop.py): how late a limit may be seen
    # From asking to save to a machine that bills no more, until an attempt has measured it. It is EC2's own notice of
    # two minutes (user guide, "Spot Instance interruption notices", read 2026-11), which saving and delivering fit in.
    reserve_s: float = 120.0
    boot_guess_s: float = 180.0  # from running to a started agent, until an attempt has measured it; our assumption
    machine_failures: int = 3  # unfit machines, lost agents and the like before the job fails


DEFAULT = Limits()
# Machines of the embedded cloud start and save within seconds, and are looked at twice a second.
LOCAL = replace(DEFAULT, launch_unseen_s=15.0, poll_s=0.5, reserve_s=15.0, boot_guess_s=10.0)


def limits_of(cloud: str) -> Limits:
    """The limits for a job in that cloud ("aws", "local")."""
    return LOCAL if cloud == "local" else DEFAULT
