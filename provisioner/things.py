"""What jobs leave in an account, as it is found there: values, no I/O. Whose each is: ``decide.garbage``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cloudtrain.pricing.model import Pool


class Kind(StrEnum):
    """Kinds of things, in the order in which they are ended: what holds others goes first."""

    MACHINE = "instance"
    SPOT_REQUEST = "spot request"
    VOLUME = "volume"
    INTERFACE = "network interface"
    GROUP = "security group"
    KEY_PAIR = "key pair"
    UPLOAD = "multipart upload"


IN_USE = "is in use"
"""How a refusal ends where something else still holds the thing."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that exists and is not over. ``made_at``: Unix seconds; None where the cloud does not tell."""

    kind: Kind
    thing_id: str
    region: str
    tags: tuple[tuple[str, str], ...] = ()
    name: str = ""  # of a group or a key pair, which can't be changed; an upload's key
    state: str = ""
    made_at: float | None = None
    pool: Pool | None = None  # of a machine
    size_gib: int = 0  # of a volume
    has_address: bool = False  # a public one, of a machine
    bucket: str = ""  # of an upload
    initiator: str = ""  # of an upload: the ARN of who began it

    def tag(self, key: str) -> str:
        """A tag's value; "" where it has none."""
        return dict(self.tags).get(key, "")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a bucket. ``modified_at``: Unix seconds."""

    key: str
    size: int
    modified_at: float
