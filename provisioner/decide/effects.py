"""What may be done in the world for a job: values, performed in order by ``controller.effects``."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.provisioner.model import Machine


@dataclass(frozen=True, slots=True)
class Resolve:
    """Pin the image and the price of a claimed attempt."""

    generation: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Fence the checkpoints' pointer under the generation, then start the machine. ``again``: it was asked before, and
    nobody knows what came of it."""

    generation: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Ship:
    """Send code and start the agent."""

    generation: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class Admit:
    """Let this computer in again: its address may have changed since the security group admitted it."""

    region: str


@dataclass(frozen=True, slots=True)
class Reprice:
    """Read the pool's price again."""

    generation: int


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Ask the agent to save, bring outputs to the bucket and stop.

    ``taken``: because EC2 takes the machine, which the agent has not heard from its metadata service; it then waits for
    EC2 instead of powering off.
    """

    generation: int
    machine: Machine
    taken: bool = False


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Put the workdir's snapshot into the bucket, where another computer finds it."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask for the end of a machine; repeated until it is seen gone."""

    region: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Bring results and logs home."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete what else the job has in the cloud."""


Effect = Resolve | Launch | Ship | Admit | Reprice | RequestStop | KeepSnapshot | Terminate | Collect | Sweep
