"""The small values that the job file and the flags both take, read in one way. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

DURATION_FORM = "write 90s, 15m, 2h or 1d"
NAME_FORM = "use a to z, 0 to 9 and `-`, at most 41, not `-` first"

_DURATION = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}")


def duration_s(text: str) -> float | None:
    """The seconds that ``90s``, ``15m``, ``2h`` or ``1d`` stand for; None where the text is no duration."""
    match = _DURATION.fullmatch(text)
    return float(int(match[1]) * _SECONDS[match[2]]) if match else None


def is_name(text: str) -> bool:
    """Whether a job can be called so."""
    return _NAME.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Whether this has the form of an AWS region's name."""
    return _REGION.fullmatch(text) is not None


def env_problem(name: str) -> str | None:
    """Why the job can't have an environment variable of this name; None where it can."""
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r} can't name an environment variable: use letters, digits and _"
    if name.startswith("CLOUDTRAIN_"):
        return f"{name}: names with CLOUDTRAIN_ are set by cloudtrain: use another"
    return None


def nearest(text: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None where none is near."""
    near = difflib.get_close_matches(text, list(known), n=1, cutoff=0.5)
    return near[0] if near else None
