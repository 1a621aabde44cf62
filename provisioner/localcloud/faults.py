"""Injected errors: which call is refused, how, how often, and what it met. No I/O; the caller passes calls in.

A rule names an action ("RunInstances", "PutObject", "*") and patterns on the call's fields. Besides the call's own form
fields (``InstanceType``, ``SubnetId``…) these derived ones can be matched: ``instance_type``, ``zone_id``,
``region``, ``capacity_type``, ``service``, and ``key`` of an S3 object. Patterns are shell globs.
"""

from __future__ import annotations

import fnmatch
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HTTP_STATUS = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InsufficientReservedInstanceCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "UnfulfillableCapacity": 500,
    "RequestLimitExceeded": 503,
    "EC2ThrottledException": 503,
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AuthFailure": 401,
    "PreconditionFailed": 412,
    "ConditionalRequestConflict": 409,
}
"""HTTP status by error code, where it isn't 400 (EC2 API reference, "Error codes for the Amazon EC2 API", 2026-11;
capacity errors are "server errors" there and carry 500, which is why botocore retries them)."""

CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "UnfulfillableCapacity",
        "SpotMaxPriceTooLow",
    }
)
"""A dry run tells whether the caller may (EC2 API reference, "Common query parameters", DryRun, 2026-11), not whether
there is a machine: such a rule waits for the launch itself."""

_MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient {instance_type} capacity in the Availability"
    " Zone you requested ({zone_id}). Our system will be working on provisioning additional capacity.",
    "RequestLimitExceeded": "Request limit exceeded.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the"
    " instance bucket that the specified instance type belongs to. Please visit"
    " http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it arrived. ``fields`` holds the form's fields and the derived ones."""

    service: str
    action: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule. ``times`` None: for ever. ``share``: of the calls that it is about, by chance. ``lost``: the call is
    carried out, and only its answer is dropped."""

    action: str
    code: str
    match: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    message: str | None = None
    times: int | None = None
    delay_s: float = 0.0
    lost: bool = False
    share: float = 1.0

    def http_status(self) -> int:
        """What the answer's status line says."""
        return self.status or HTTP_STATUS.get(self.code, 400)

    def text(self, call: Call) -> str:
        """The error's message, for one call."""
        known = {"instance_type": "?", "zone_id": "?"} | dict(call.fields)
        if self.message is not None:
            return self.message
        return _MESSAGES.get(self.code, "Injected by the local cloud.").format_map(known)

    def meets(self, call: Call) -> bool:
        """Whether the rule is about this call. A lost answer, too, is one of a launch, not of its dry run."""
        if call.fields.get("DryRun") == "true" and (self.lost or self.code in CAPACITY):
            return False
        return fnmatch.fnmatchcase(call.action, self.action) and all(
            name in call.fields and fnmatch.fnmatchcase(call.fields[name], pattern)
            for name, pattern in self.match.items()
        )


@dataclass(slots=True)
class Counted:
    """A rule, and what it met. ``calls`` holds the last hundred, oldest first."""

    id: int
    fault: Fault
    met: int = 0
    calls: list[dict[str, str]] = field(default_factory=list)

    @property
    def spent(self) -> bool:
        """Whether it will meet nothing more."""
        return self.fault.times is not None and self.met >= self.fault.times

    def document(self) -> dict[str, Any]:
        """For JSON."""
        fault = self.fault
        return {
            "id": self.id,
            "action": fault.action,
            "code": fault.code,
            "match": dict(fault.match),
            "status": fault.http_status(),
            "times": fault.times,
            "delay_s": fault.delay_s,
            "lost": fault.lost,
            "share": fault.share,
            "met": self.met,
            "calls": list(self.calls),
        }


_SHOWN = ("service", "region", "instance_type", "zone_id", "capacity_type", "ClientToken", "key")


class Faults:
    """The rules in force, in the order they were added; the first that meets a call counts it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Counted] = []
        self._next = 1
        self._chance = random.Random(0)  # noqa: S311 - the same calls meet a share of 5% in each run

    def add(self, fault: Fault) -> Counted:
        """Put a rule in force."""
        with self._lock:
            rule = Counted(self._next, fault)
            self._next += 1
            self._rules.append(rule)
            return rule

    def meet(self, call: Call) -> Fault | None:
        """The rule that this call runs into, counted; None where there is none."""
        with self._lock:
            for rule in self._rules:
                if rule.spent or not rule.fault.meets(call):
                    continue
                if rule.fault.share >= 1 or self._chance.random() < rule.fault.share:
                    rule.met += 1
                    shown = {name: call.fields[name] for name in _SHOWN if name in call.fields}
                    rule.calls = [*rule.calls[-99:], {"action": call.action, **shown}]
                    return rule.fault
        return None

    def documents(self) -> list[dict[str, Any]]:
        """Every rule, spent ones included, for JSON."""
        with self._lock:
            return [rule.document() for rule in self._rules]

    def clear(self, rule_id: int | None = None) -> int:
        """Drop one rule, or all; returns how many."""
        with self._lock:
            kept = [rule for rule in self._rules if rule_id is not None and rule.id != rule_id]
            dropped = len(self._rules) - len(kept)
            self._rules = kept
            return dropped
