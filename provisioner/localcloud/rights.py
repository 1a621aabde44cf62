"""Whether IAM policies allow a call: enough of the evaluation for a machine's role and a bucket's policy. Pure.

Rules: IAM User Guide, "Policy evaluation logic" and "IAM JSON policy elements" (2026-11): what nothing allows is
denied, and an explicit Deny wins. A condition that is not understood lets no Allow through and no Deny slip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """One action on one resource. ``context`` holds condition keys, in lower case; one with several values a tuple."""

    action: str
    resource: str
    context: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)


def verdict(policies: Iterable[Document], asked: Asked, principal: str | None = None) -> str:
    """ "allow", "deny" (explicitly) or "none". ``principal``: the caller's ARN, for a policy that names principals."""
    effects = {
        statement["Effect"]
        for policy in policies
        for statement in _listed(policy.get("Statement", ()))
        if _applies(statement, asked, principal)
    }
    return "deny" if "Deny" in effects else "allow" if "Allow" in effects else "none"


def _applies(statement: Document, asked: Asked, principal: str | None) -> bool:
    if principal is not None and not _principal(statement, principal):
        return False
    action = asked.action.lower()
    if "NotAction" in statement:
        if any(_like(action, str(p).lower()) for p in _listed(statement["NotAction"])):
            return False
    elif not any(_like(action, str(p).lower()) for p in _listed(statement.get("Action", ()))):
        return False
    if "NotResource" in statement:
        if any(_like(asked.resource, str(p)) for p in _listed(statement["NotResource"])):
            return False
    elif not any(_like(asked.resource, str(p)) for p in _listed(statement.get("Resource", ()))):
        return False
    unknown = statement.get("Effect") == "Deny"  # what a condition means that is not understood
    return all(
        _holds(operator, key, _listed(wanted), asked.context, unknown=unknown)
        for operator, tests in (statement.get("Condition") or {}).items()
        for key, wanted in tests.items()
    )


def _principal(statement: Document, arn: str) -> bool:
    if "NotPrincipal" in statement:
        return not _names(statement["NotPrincipal"], arn)
    return _names(statement.get("Principal", ()), arn)


def _names(principal: Any, arn: str) -> bool:
    if principal == "*":
        return True
    account = arn.split(":")[4] if arn.count(":") >= 5 else ""
    named = [str(p) for p in _listed(principal.get("AWS", ()))] if isinstance(principal, Mapping) else []
    return any(p in ("*", arn, account, f"arn:aws:iam::{account}:root") for p in named)


def _equal(have: str, want: str) -> bool:
    return have == want


def _same_word(have: str, want: str) -> bool:
    return have.lower() == want.lower()


def _below(have: str, want: str) -> bool:
    return float(have) < float(want)


def _above(have: str, want: str) -> bool:
    return float(have) > float(want)


_OPERATORS: dict[str, tuple[Callable[[str, str], bool], bool]] = {
    "StringEquals": (_equal, True),
    "StringNotEquals": (_equal, False),
    "StringEqualsIgnoreCase": (_same_word, True),
    "StringNotEqualsIgnoreCase": (_same_word, False),
    "StringLike": (lambda have, want: _like(have, want), True),
    "StringNotLike": (lambda have, want: _like(have, want), False),
    "ArnEquals": (lambda have, want: _like(have, want), True),
    "ArnLike": (lambda have, want: _like(have, want), True),
    "ArnNotEquals": (lambda have, want: _like(have, want), False),
    "ArnNotLike": (lambda have, want: _like(have, want), False),
    "Bool": (_same_word, True),
    "NumericEquals": (lambda have, want: float(have) == float(want), True),
    "NumericLessThan": (_below, True),
    "NumericLessThanEquals": (_above, False),
    "NumericGreaterThan": (_above, True),
    "NumericGreaterThanEquals": (_below, False),
}
"""Each operator's comparison, and whether it has to hold (True) or must not (False)."""


def _holds(
    operator: str, key: str, wanted: list[Any], context: Mapping[str, str | tuple[str, ...]], *, unknown: bool
) -> bool:
    have = context.get(key.lower())
    quantifier, _, name = operator.rpartition(":")
    if name == "Null":
        return (have is None) == _same_word(str(wanted[0]), "true")
    optional = name.endswith("IfExists")
    found = _OPERATORS.get(name.removesuffix("IfExists"))
    if found is None:
        return unknown
    compare, positive = found
    if have is None:
        # A negated operator holds for a key that is not there (IAM User Guide, "Condition operators").
        return optional or not positive or operator.startswith("ForAllValues:")
    values = have if isinstance(have, tuple) else (have,)
    texts = [text for want in wanted if (text := _filled(str(want), context)) is not None]
    try:
        held = [any(compare(value, text) for text in texts) == positive for value in values]
    except ValueError:
        return unknown
    return any(held) if quantifier == "ForAnyValue" else all(held)


_VARIABLE = re.compile(r"\$\{([\w:/-]+)\}")


def _filled(text: str, context: Mapping[str, str | tuple[str, ...]]) -> str | None:
    """A value with its policy variables; None where one has no value, which then matches nothing (IAM User Guide,
    "Policy variables")."""
    missing = any(not isinstance(context.get(name.lower()), str) for name in _VARIABLE.findall(text))
    return None if missing else _VARIABLE.sub(lambda match: str(context[match[1].lower()]), text)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _like(text: str, pattern: str) -> bool:
    return _pattern(pattern).fullmatch(text) is not None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """IAM's wildcards: * for any characters, ? for one; nothing else is special."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(c, re.escape(c)) for c in pattern), re.DOTALL)
