"""How findings are worded and made: the small parts that the checks share. Pure."""

from __future__ import annotations

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.account import Finding, Level, Unread, Why

SETUP = "`cloudtrain setup` makes it (`cloudtrain setup --print` is for an administrator)"
POLICY = "the policy of `cloudtrain setup --print` has it: ask your administrator to attach that to you"
LOGIN = "`aws sso login`, or what else renews your profile's credentials"


def ok(check: str, where: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, where, what)


def warn(check: str, where: str, what: str, fix: str, pools: tuple[Pool, ...] = ()) -> Finding:
    """A launch may go on; without ``pools``, where some are named."""
    return Finding(check, Level.WARN, where, what, fix, pools)


def fail(check: str, where: str, what: str, fix: str, pools: tuple[Pool, ...] = ()) -> Finding:
    """It can't work: in these pools, or, where none are named, in the account."""
    return Finding(check, Level.FAIL, where, what, fix, pools)


def not_read(check: str, where: str, fact: Unread, *, needed: bool, pools: tuple[Pool, ...] = ()) -> Finding:
    """A fact that could not be read. ``needed``: a launch makes the same call, so without it nothing can start."""
    if fact.why is Why.DENIED:
        what = f"you have no permission for {fact.action}" + ("" if needed else ", so this could not be checked")
        return (fail if needed else warn)(check, where, what, POLICY, pools if needed else ())
    if fact.why is Why.UNREACHABLE:
        what = f"{fact.action} had no answer: {fact.words}"
        return warn(check, where, what, "check the network or a proxy, then `cloudtrain doctor`")
    return (fail if needed else warn)(check, where, f"{fact.action}: {fact.words}", POLICY, pools if needed else ())
