"""The small values that the job file and the flags both take, read in one way. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal

DURATION_FORM = "write 90s, 15m, 2h or 1d"
USD_FORM = "write US dollars above zero, such as 1.20 or 250 USD"
NAME_FORM = "use a to z, 0 to 9 and `-`, at most 41, not `-` first"

_DURATION = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
# "1_000", "1e9" and other scripts' digits are slips, not prices.
_USD = re.compile(r"\$?([0-9]{1,9}(?:\.[0-9]{1,6})?)(?: ?USD)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}")
_MAX_EDITS = 2


def duration_s(text: str) -> float | None:
    """The seconds that ``90s``, ``15m``, ``2h`` or ``1d`` stand for; None where the text is no duration."""
    match = _DURATION.fullmatch(text)
    return float(int(match[1]) * _SECONDS[match[2]]) if match else None


def usd(text: str) -> Decimal | None:
    """The US dollars that ``250 USD``, ``250``, ``$250`` or ``0.50`` stand for; None for anything else, zero too."""
    match = _USD.fullmatch(text)
    amount = Decimal(match[1]) if match else Decimal(0)
    return amount if amount > 0 else None


def is_name(text: str) -> bool:
    """Whether a job can be called so."""
    return _NAME.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Whether this has the form of an AWS region's name."""
    return REGION.fullmatch(text) is not None


def env_problem(name: str) -> str | None:
    """Why the job can't have an environment variable of this name; None where it can."""
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r} can't name an environment variable: use letters, digits and _"
    if name.startswith("CLOUDTRAIN_"):
        return f"{name}: names with CLOUDTRAIN_ are set by cloudtrain: use another"
    if name.startswith("SKYPILOT_"):
        return f"{name}: names with SKYPILOT_ are SkyPilot's own, set for its scripts: use another"
    return None


def nearest(text: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: the one with the fewest edits, else a similar one; None if none is."""
    words = list(known)
    edits = {word: _edits(text, word) for word in words if abs(len(word) - len(text)) <= _MAX_EDITS}
    few = [word for word, count in edits.items() if count <= (1 if len(word) < 5 else _MAX_EDITS)]
    if few:
        return min(few, key=lambda word: edits[word])
    near = difflib.get_close_matches(text, words, n=1, cutoff=0.5)
    return near[0] if near else None


def _edits(a: str, b: str) -> int:
    """How many letters are missing, too many, wrong or swapped with their neighbour."""
    before, row = list[int](), list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (one != other))
            if i > 1 and j > 1 and one == b[j - 2] and a[i - 2] == other:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
