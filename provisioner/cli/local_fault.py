"""``cloudtrain local fault``: errors that calls of the local cloud's API meet, and what its commands share."""

from __future__ import annotations

import re
from typing import Any

import click

from cloudtrain.provisioner.account_outputs import LocalFault, LocalFaults
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.words import counted, printable, say, tell
from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import LocalCloud
from cloudtrain.provisioner.outputs import SCHEMA_VERSION

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """What an option's duration says: 90s, 15m, 2h, 1d. Raises click's usage error."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration: write it like 90s, 15m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


def percent(text: str) -> float:
    """What an option's percentage says, as a share: 5% is 0.05. Raises click's usage error."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage: write it like 5% or 50%")
    return float(match[1]) / 100


def running() -> LocalCloud:
    """The local cloud of this home. Raises NotFound where there is none."""
    found = client.find(Home.from_env().local_home)
    if found is None:
        raise NotFound("the local cloud is not running; start it with `cloudtrain local up`")
    return found


def fault_line(fault: dict[str, Any]) -> str:
    """An injected error, in two lines that people can read."""
    where = "".join(f"{name}={value}, " for name, value in fault["match"].items())
    times = "every time" if fault["times"] is None else counted(fault["times"], "time")
    if fault["share"] < 1:
        times = f"{fault['share']:.2%} of the calls" if fault["times"] is None else f"{times}, by chance"
    head = printable(f"fault {fault['id']}  {fault['action']}  {fault['code']}")
    return f"{head}\n  {printable(where)}{times}; met by {counted(fault['met'], 'call')}"


def fault_document(told: dict[str, Any]) -> LocalFault:
    """An injected error for JSON."""
    return {
        "id": told["id"],
        "action": told["action"],
        "code": told["code"],
        "match": told["match"],
        "times": told["times"],
        "met": told["met"],
    }


@click.group("fault", short_help="Inject errors into calls of the API.")
def fault() -> None:
    """Inject errors into calls of the API.

    \b
    Example:
      cloudtrain local fault add RunInstances InsufficientInstanceCapacity
    """


@fault.command("add", short_help="Let calls of an action fail.")
@click.argument("action", metavar="ACTION")
@click.argument("code", metavar="CODE")
@click.option(
    "--match", "matches", multiple=True, metavar="FIELD=GLOB", help="Only calls whose field matches; repeatable."
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Only so often.  [default: every time]")
@click.option(
    "--status", "http_status", type=click.IntRange(400, 599), metavar="HTTP", help="By default the code's own."
)
@click.option("--message", metavar="TEXT", help="By default the code's own.")
@click.option("--delay", type=seconds, default="0s", metavar="TIME", help="Answer so much later.")
@click.option("--share", type=percent, default="100%", metavar="PERCENT", help="Only so many of them, by chance.")
@click.option("--lost", is_flag=True, help="Carry the call out, and lose the answer.")
def add(
    action: str,
    code: str,
    matches: tuple[str, ...],
    times: int | None,
    http_status: int | None,
    message: str | None,
    delay: float,
    share: float,
    lost: bool,
) -> None:
    """Let calls of an action fail: ACTION is the API's name (globs allowed), CODE the error's.

    Fields: instance_type, zone_id, capacity_type, region, service, key (of an S3 object), or one of the request's own.

    \b
    Example:
      cloudtrain local fault add RunInstances InsufficientInstanceCapacity \\
        --match zone_id=use1-az4 --times 3
    """
    match = dict(_pair(text) for text in matches)
    options = {
        "match": match,
        "times": times,
        "status": http_status,
        "message": message,
        "delay_s": delay,
        "lost": lost,
        "share": share,
    }
    tell(fault_line(client.fault_add(running(), action, code, **options)))
    say("next: `cloudtrain local fault list`")


def _pair(text: str) -> tuple[str, str]:
    name, equals, pattern = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--match {text!r}: write it like zone_id=use1-az4")
    return name, pattern


@fault.command("list", short_help="The injected errors, and how many calls met them.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print them.")
def list_(output: str) -> None:
    """The injected errors, and how many calls met them.

    \b
    Example:
      cloudtrain local fault list
    """
    faults = client.fault_list(running())
    if output == "json":
        found: LocalFaults = {"schema_version": SCHEMA_VERSION, "faults": [fault_document(one) for one in faults]}
        click.echo(tables.one_object(found))
        return
    for one in faults:
        tell(fault_line(one))
    follows = "clear" if faults else "add ACTION CODE"
    say(f"{counted(len(faults), 'fault')}; next: `cloudtrain local fault {follows}`")


@fault.command("clear", short_help="Drop one injected error, or all.")
@click.argument("fault_id", metavar="[ID]", type=int, required=False)
def clear(fault_id: int | None) -> None:
    """Drop one injected error, or all.

    \b
    Example:
      cloudtrain local fault clear
    """
    dropped = client.fault_clear(running(), fault_id)
    if fault_id is not None and dropped == 0:
        raise NotFound(f"there is no fault {fault_id}; `cloudtrain local fault list` shows them")
    tell(f"{counted(dropped, 'fault')} dropped")
