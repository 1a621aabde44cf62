"""What commands print with ``-o json``, held to its published form wherever a test runs one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from cloudtrain.provisioner.outputs import OUTPUTS


def valid(document: Any, form: type) -> None:
    """Raises where the document has another form: a field is missing, wrong, or one too many."""
    taken: Any = msgspec.convert(document, form)
    assert json.loads(msgspec.json.encode(taken)) == document  # a field that the form lacks would be dropped


def check(args: Sequence[str], out: str) -> str | None:
    """Hold what a command printed to the forms of its command; the name of the one it has, None where it is no JSON."""
    if not out.strip() or ("-o", "json") not in pairwise(args):
        return None
    line = " ".join(args)
    (forms,) = [forms for name, forms in OUTPUTS.items() if f"{line} ".startswith(f"{name} ")]
    document = json.loads(out.strip().splitlines()[-1])
    for form in forms:
        try:
            valid(document, form)
        except (msgspec.ValidationError, AssertionError):
            continue
        return form.__name__
    raise AssertionError(f"`cloudtrain {line}` printed none of {[form.__name__ for form in forms]}: {document}")
