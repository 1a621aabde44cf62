"""How findings are worded and made: the small parts that the checks share. Pure."""

from __future__ import annotations

from cloudtrain.pricing.model import Pool
from cloudtrain.provisioner.account.facts import Finding, Level, Unread, Why

POLICY = "let an administrator attach the policy that `cloudtrain setup --print policies` prints"
LOGIN = "`aws sso login`, or what else renews your profile's credentials"


def setup(cloud: str, region: str) -> str:
    """The command that makes and mends the bucket and the roles."""
    if cloud == "local":
        return "`cloudtrain setup --cloud local`"
    return f"`cloudtrain setup --region {region}` (for an administrator: `cloudtrain setup --print cloudformation`)"


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
