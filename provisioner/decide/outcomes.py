"""What came of an effect: values that ``decide.absorb`` folds into the record."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from cloudtrain.provisioner.errors import Scope
from cloudtrain.provisioner.model import EndReason, FoundImage, Machine


@dataclass(frozen=True, slots=True)
class Resolved:
    """The image, and the pool's price now where the cloud names one. ``image.root_gib``: the least we may ask for."""

    generation: int
    image: FoundImage
    price: Decimal | None


@dataclass(frozen=True, slots=True)
class Launched:
    """RunInstances answered with a machine."""

    generation: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """The launch was refused. ``reason``: what its attempt ended for. ``scope``: which pools would say the same, for
    minutes, or for a day where ``lasting``. ``asked``: it was asked before without an answer, so a machine may
    exist all the same."""

    generation: int
    detail: str
    reason: EndReason = EndReason.NO_CAPACITY
    scope: Scope = Scope.POOL
    lasting: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class LaunchUnknown:
    """No answer that says yes or no. ``asked``: RunInstances was sent, so a machine may exist. ``broken``: the cloud
    answered, with a fault of its own."""

    generation: int
    detail: str
    asked: bool
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Shipped:
    """The agent runs."""

    generation: int


@dataclass(frozen=True, slots=True)
class ShipRefused:
    """The machine itself said no (full disk, broken Python): not a network fault.

    ``image``: every machine of that image would say the same.
    """

    generation: int
    detail: str
    image: bool = False


@dataclass(frozen=True, slots=True)
class StopHeard:
    """The stop request lies on the machine."""

    generation: int


@dataclass(frozen=True, slots=True)
class SnapshotKept:
    """The workdir's snapshot is in the bucket."""


@dataclass(frozen=True, slots=True)
class Repriced:
    """The pool's price now."""

    generation: int
    price: Decimal | None


@dataclass(frozen=True, slots=True)
class Collected:
    """Results and logs are home. ``bytes``: what came over the network for it, this time."""

    bytes: int = 0


@dataclass(frozen=True, slots=True)
class NotCollected:
    """Something could not be brought home yet, and why. ``bytes``: what came over the network all the same."""

    detail: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """What the sweep could not delete yet."""

    left: tuple[str, ...]


Outcome = (
    Resolved
    | Launched
    | LaunchRefused
    | LaunchUnknown
    | Shipped
    | ShipRefused
    | StopHeard
    | SnapshotKept
    | Repriced
    | Collected
    | NotCollected
    | Swept
)
