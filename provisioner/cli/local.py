"""``cloudtrain local``: the cloud on this computer. Everything about it is local, its prices are simulated."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import click

from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.demo import demo
from cloudtrain.provisioner.cli.words import SIMULATED, counted, duration, printable, say
from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import LocalCloud
from cloudtrain.provisioner.model import JobRecord

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """What an option's duration says: 90s, 15m, 2h, 1d. Raises click's usage error."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration: write it like 90s, 15m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


@click.group("local", short_help="The cloud on this computer: start, stop, interrupt.")
def local() -> None:
    """The cloud on this computer: start, stop, interrupt.

    `cloudtrain launch --cloud local` starts it by itself. Its machines run on this computer with your rights, its
    prices are simulated, and all of it is in memory: what it holds ends with it.

    \b
    Example:
      cloudtrain local interrupt digits --at-step 100 --notice 10s
    """


local.add_command(demo)
command = local  # what the lazy command list imports


def _running() -> LocalCloud:
    found = client.find(Home.from_env().local_home)
    if found is None:
        raise NotFound("the local cloud is not running; start it with `cloudtrain local up`")
    return found


@local.command("up", short_help="Start it, and say where it is.")
@click.option(
    "--hosts", type=click.Choice(["embedded", "sshd"]), help="What stands for a machine.  [default: embedded]"
)
@click.option("--boot", type=seconds, metavar="TIME", help="How long a machine takes to boot.  [default: 0s]")
def up(hosts: str | None, boot: float | None) -> None:
    """Start it, and say where it is. Where it runs already, nothing changes.

    \b
    Example:
      cloudtrain local up --hosts sshd --boot 5s
    """
    cloud = client.ensure_up(Home.from_env().local_home, hosts=hosts, boot_s=boot)
    click.echo(_up_line(cloud))
    say("next: `cloudtrain launch templates/digits.yaml --cloud local`")


@local.command("down", short_help="End it, with its machines and objects.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask, even where live jobs are lost.")
def down(yes: bool) -> None:
    """End it, with its machines and objects. Jobs that ran in it, and those that are stopped there, are lost: it asks
    first.

    \b
    Example:
      cloudtrain local down
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    if client.find(home.local_home) is not None and not yes:
        _confirm_loss([s.record for s in store.list(live_only=True) if s.record.cloud == "local"])
    ended = client.down(home.local_home)
    click.echo(
        "the local cloud is down; its machines and objects are gone" if ended else "the local cloud is not running"
    )
    jobs.say_lost(home, store)
    say("next: `cloudtrain ls`")


def _confirm_loss(live: list[JobRecord]) -> None:
    """Ask before live jobs are lost. Raises UsageError where there is nobody to ask."""
    if not live:
        return
    names = ", ".join(f"{record.job_id} ({record.status})" for record in live)
    if not sys.stdin.isatty():
        raise UsageError(f"this would lose {names}, and there is no terminal to ask on; add --yes")
    click.confirm(f"This loses {names}. End the local cloud?", default=False, err=True, abort=True)


@local.command("status", short_help="Its machines, and what was asked for.")
def status() -> None:
    """Its machines, and what was asked for: interruptions that wait, errors that are injected.

    \b
    Example:
      cloudtrain local status
    """
    cloud = _running()
    told = client.status(cloud)
    click.echo(_up_line(cloud))
    for machine in told["machines"]:
        click.echo(_machine_line(machine))
    for waiting in told["interrupts"]:
        click.echo(_interrupt_line(waiting))
    for fault in told["faults"]:
        click.echo(_fault_line(fault))
    say(f"{counted(len(told['machines']), 'machine')}; next: `cloudtrain ls`")


def _up_line(cloud: LocalCloud) -> str:
    return f"the local cloud is up on port {cloud.port} (pid {cloud.pid}, {cloud.hosts} hosts; {SIMULATED})"


def _machine_line(machine: dict[str, Any]) -> str:
    words = [
        machine["instance_id"],
        printable(machine["job"] or "no job"),
        machine["instance_type"],
        machine["zone_id"],
    ]
    words += [machine["capacity_type"], machine["state"]]
    if machine["step"] is not None:
        words.append(f"step {machine['step']}")
    if machine["state"] == "running" and machine["taken_at"] is not None:
        words.append(f"taken in {duration(machine['taken_at'] - time.time())}")
    elif machine["state_reason"]:
        words.append(machine["state_reason"])
    return "  ".join(words)


def _interrupt_line(waiting: dict[str, Any]) -> str:
    job = printable(waiting["job"])
    if waiting["refused"]:
        return f"refused interruption of {job}: {printable(waiting['refused'])}"
    at = "" if waiting["at_step"] is None else f" at step {waiting['at_step']}"
    return f"waiting to interrupt {job}{at}"


def _fault_line(fault: dict[str, Any]) -> str:
    where = " ".join(f"{name}={value}" for name, value in fault["match"].items())
    times = "every time" if fault["times"] is None else counted(fault["times"], "time")
    words = f"fault {fault['id']}  {fault['action']}  {fault['code']}  {where}".rstrip()
    return printable(f"{words}  {times}, met {counted(fault['met'], 'call')}")


@local.command("interrupt", short_help="Take a job's machine away, as EC2 takes spot capacity back.")
@click.argument("job", metavar="JOB")
@click.option("--at-step", type=click.IntRange(min=0), metavar="N", help="Not before the job has reported step N.")
@click.option("--notice", type=seconds, metavar="TIME", help="Warn so long before; 0s: no warning.  [default: 120s]")
@click.option("--rebalance", is_flag=True, help="Recommend a rebalance; without --notice nothing is taken.")
def interrupt(job: str, at_step: int | None, notice: float | None, rebalance: bool) -> None:
    """Take a job's machine away, as EC2 takes spot capacity back: a notice first, the end after it.

    Where the job has no machine yet, the local cloud waits for it. JOB is an id, the beginning of one, or a name.

    \b
    Example:
      cloudtrain local interrupt digits --at-step 100 --notice 10s
    """
    notice_s = notice if notice is not None else None if rebalance else 120.0
    known = client.interrupt(_running(), job, at_step=at_step, notice_s=notice_s, rebalance=rebalance)
    what = (
        "a rebalance is recommended"
        if notice_s is None
        else "the machine is lost"
        if notice_s == 0
        else "a notice comes"
    )
    warned = f", {duration(notice_s)} before the machine goes" if notice_s else ""
    when = "" if at_step is None else f" at step {at_step}"
    if not known:
        when += " once it has a machine (it has none now)"
    elif at_step is None:
        when = " now"
    click.echo(f"{printable(job)}: {what}{when}{warned} ({SIMULATED})")
    say(f"next: `cloudtrain show {printable(job)}`")


@local.command("cutoff", short_help="Cut a job's machine off the network.")
@click.argument("job", metavar="JOB")
@click.option("--restore", is_flag=True, help="Join it again.")
def cutoff(job: str, restore: bool) -> None:
    """Cut a job's machine off the network: it runs on, and SSH to it hangs.

    \b
    Example:
      cloudtrain local cutoff digits
    """
    ids = client.cutoff(_running(), job, cut=not restore)
    click.echo(f"{', '.join(ids)}: {'joined again' if restore else 'cut off'}")
    if not restore:
        say(f"next: `cloudtrain local cutoff {printable(job)} --restore`")


@local.group("fault", short_help="Inject errors into calls of the API.")
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
@click.option("--lost", is_flag=True, help="Carry the call out, and lose the answer.")
def add(
    action: str,
    code: str,
    matches: tuple[str, ...],
    times: int | None,
    http_status: int | None,
    message: str | None,
    delay: float,
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
    }
    click.echo(_fault_line(client.fault_add(_running(), action, code, **options)))
    say("next: `cloudtrain local fault list`")


def _pair(text: str) -> tuple[str, str]:
    name, equals, pattern = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--match {text!r}: write it like zone_id=use1-az4")
    return name, pattern


@fault.command("list", short_help="The injected errors, and how many calls met them.")
def list_() -> None:
    """The injected errors, and how many calls met them.

    \b
    Example:
      cloudtrain local fault list
    """
    faults = client.fault_list(_running())
    for one in faults:
        click.echo(_fault_line(one))
    say(f"{counted(len(faults), 'fault')}; next: `cloudtrain local fault clear`")


@fault.command("clear", short_help="Drop one injected error, or all.")
@click.argument("fault_id", metavar="[ID]", type=int, required=False)
def clear(fault_id: int | None) -> None:
    """Drop one injected error, or all.

    \b
    Example:
      cloudtrain local fault clear
    """
    dropped = client.fault_clear(_running(), fault_id)
    if fault_id is not None and dropped == 0:
        raise NotFound(f"there is no fault {fault_id}; `cloudtrain local fault list` shows them")
    click.echo(f"{counted(dropped, 'fault')} dropped")
