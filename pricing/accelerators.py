"""The accelerator grammar: one for the job file, the flags and the catalogue.

    A100:8              eight A100 in one machine, exactly (the count defaults to 1)
    24GB+:1             one accelerator of any kind with at least 24 GB, as marketed
    {A100:8, H100:8}    any of these
    [H100:8, A100:8]    these, in order of preference

Names are case-insensitive. An ``A100`` has 40 GB; the other one is the ``A100-80GB``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from cloudtrain.pricing.model import InstanceType

# Every name in data/instance_types.csv (a test holds the two together): NVIDIA's GPUs on EC2, oldest first.
KNOWN = (
    "V100",
    "V100-32GB",
    "T4",
    "T4G",
    "A10G",
    "A100",
    "A100-80GB",
    "L4",
    "L40S",
    "H100",
    "H200",
    "B200",
    "B300",
    "RTX-PRO-4500",
    "RTX-PRO-6000",
)
_BY_UPPER = {name.upper(): name for name in KNOWN} | {"A100-40GB": "A100"}

_BY_MEMORY = re.compile(r"([0-9]{1,4})GB\+", re.IGNORECASE)
_COUNT = re.compile(r"[1-9][0-9]{0,2}")


class AcceleratorError(ValueError):
    """The text is not an accelerator. The message is one line that names the nearest valid one."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What one machine must hold: ``count`` accelerators, of one name or of at least so much memory each.

    Exactly one of ``name`` and ``min_memory_gb`` is set. ``rank`` orders preferences: 0 is wanted most, equal
    ranks are equally welcome.
    """

    name: str | None
    count: int
    min_memory_gb: int | None = None
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.name or f'{self.min_memory_gb}GB+'}:{self.count}"

    def fits(self, instance: InstanceType) -> bool:
        """Whether the type has exactly this many of these accelerators."""
        if instance.accelerator_count != self.count:
            return False
        if self.min_memory_gb is not None:
            return instance.accelerator_memory_gib >= self.min_memory_gb
        return instance.accelerator == self.name


def parse(text: str) -> tuple[Accelerator, ...]:
    """The accelerators that the text names, most wanted first; at least one. Raises AcceleratorError."""
    text = text.strip()
    for opening, closing in ("{}", "[]"):
        if text.startswith(opening) and text.endswith(closing) and len(text) > 1:
            return combine(text[1:-1].split(","), ordered=opening == "[")
    return (parse_one(text),)


def parse_one(text: str) -> Accelerator:
    """One accelerator, such as ``A100:8``. Raises AcceleratorError."""
    name, colon, count = (part.strip() for part in text.partition(":"))
    if not name:
        raise AcceleratorError("no accelerator named: write one as NAME:COUNT, such as A100:8")
    if colon and not _COUNT.fullmatch(count):
        raise AcceleratorError(f"{text.strip()!r}: the count must be a whole number from 1 to 999, such as {name}:1")
    memory = _BY_MEMORY.fullmatch(name)
    if memory:
        return Accelerator(name=None, count=int(count or 1), min_memory_gb=int(memory[1]))
    if name.upper() not in _BY_UPPER:
        raise AcceleratorError(_unknown(name))
    return Accelerator(name=_BY_UPPER[name.upper()], count=int(count or 1))


def combine(items: list[str], *, ordered: bool) -> tuple[Accelerator, ...]:
    """Several alternatives, each in ``parse_one``'s form; ``ordered`` when the first is wanted most.

    Raises AcceleratorError, also for none and for the same one twice.
    """
    found: list[Accelerator] = []
    for number, item in enumerate(items):
        one = parse_one(item)
        if any(str(one) == str(other) for other in found):
            raise AcceleratorError(f"{one} is named twice: keep one")
        found.append(replace(one, rank=number if ordered else 0))
    if not found:
        raise AcceleratorError("no accelerator named: write one as NAME:COUNT, such as A100:8")
    return tuple(found)


def canonical(accelerators: tuple[Accelerator, ...]) -> str:
    """The text that ``parse`` reads back as the same value."""
    if len(accelerators) == 1:
        return str(accelerators[0])
    inside = ", ".join(str(accelerator) for accelerator in accelerators)
    return f"[{inside}]" if accelerators[-1].rank else f"{{{inside}}}"


def _unknown(name: str) -> str:
    if re.fullmatch(r"[0-9.]+\s*GB?\+?", name, re.IGNORECASE):
        return f"{name!r} is not a memory size: write at least so many GB as 24GB+:1"
    near = difflib.get_close_matches(name.upper(), list(_BY_UPPER), n=1, cutoff=0.5)
    if near:
        return f"unknown accelerator {name!r}: did you mean {_BY_UPPER[near[0]]}?"
    return f"unknown accelerator {name!r}: known are {', '.join(KNOWN)}"
