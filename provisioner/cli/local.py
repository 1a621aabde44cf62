"""``cloudtrain local``: the cloud on this computer. Everything about it is local, its prices are simulated."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from cloudtrain.provisioner.account_outputs import LocalMachine, LocalStatus
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.demo import demo
from cloudtrain.provisioner.cli.local_fault import fault, fault_document, fault_line, running, seconds
from cloudtrain.provisioner.cli.words import SIMULATED, counted, duration, printable, say, tell
from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.localcloud.client import LocalCloud
from cloudtrain.provisioner.localcloud.plants import PLANTS
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.outputs import SCHEMA_VERSION


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
local.add_command(fault)
command = local  # what the lazy command list imports


@local.command("up", short_help="Start it, and say where it is.")
@click.option(
    "--hosts", type=click.Choice(["embedded", "sshd", "netns"]), help="What stands for a machine.  [default: embedded]"
)
@click.option("--boot", type=seconds, metavar="TIME", help="How long a machine takes to boot.  [default: 0s]")
@click.option(
    "--account",
    type=click.Choice(["ready", "empty"]),
    help="As after `cloudtrain setup`, or with nothing set up.  [default: ready]",
)
def up(hosts: str | None, boot: float | None, account: str | None) -> None:
    """Start it, and say where it is. Where it runs already, nothing changes.

    \b
    Example:
      cloudtrain local up --hosts sshd --boot 5s
    """
    cloud = client.ensure_up(Home.from_env().local_home, hosts=hosts, boot_s=boot, account=account)
    tell(_up_line(cloud))
    for line in _bastion_lines(client.status(cloud)["bastion"]):
        tell(line)
    first = "setup" if account == "empty" else "launch templates/digits.yaml"
    say(f"next: `cloudtrain {first} --cloud local`")


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
    running = client.find(home.local_home)
    live = [s.record for s in store.list(live_only=True) if running is not None and s.record.cloud_id == running.id]
    if live and not (yes or _loss_confirmed(live)):
        say("the local cloud goes on")
        return
    ended = client.down(home.local_home)
    tell("the local cloud is down; its machines and objects are gone" if ended else "the local cloud is not running")
    jobs.say_lost(home, store)
    say("next: `cloudtrain ls`")


def _loss_confirmed(live: list[JobRecord]) -> bool:
    """Ask before live jobs are lost. Raises UsageError where there is nobody to ask."""
    names = ", ".join(f"{record.job_id} ({record.status})" for record in live)
    if not sys.stdin.isatty():
        raise UsageError(f"this would lose {names}, and there is no terminal to ask on; add --yes")
    return click.confirm(f"This loses {names}. End the local cloud?", default=False, err=True)


@local.command("status", short_help="Its machines, and what was asked for.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print it.")
def status(output: str) -> None:
    """Its machines, and what was asked for: interruptions that wait, errors that are injected.

    \b
    Example:
      cloudtrain local status
    """
    cloud = running()
    told = client.status(cloud)
    machines = [_machine(machine, time.time()) for machine in told["machines"]]
    if output == "json":
        click.echo(tables.one_object(_status(cloud, machines, told)))
        return
    tell(_up_line(cloud))
    for line in _bastion_lines(told["bastion"]):
        tell(line)
    alive = [machine for machine in machines if machine["state"] != "terminated"]
    if alive:
        head = ("machine", "job", "type", "zone", "bought", "state")
        rows = [[printable(str(m[key] or "-")) for key in _MACHINE_COLUMNS] for m in alive]
        tell(f"\n{tables.table(rows, head)}\n")
    for line in filter(None, map(_news, alive)):
        tell(line)
    for waiting in told["interrupts"]:
        tell(_interrupt_line(waiting))
    for injected in told["faults"]:
        tell(fault_line(injected))
    for planted in told["planted"]:
        tell(_planted_line(planted["name"], planted["region"]))
    over = len(machines) - len(alive)
    gone = f" and {over} that are terminated" if over else ""
    say(f"{counted(len(alive), 'machine')}{gone}; next: `cloudtrain ls`")


_MACHINE_COLUMNS: Final = ("instance_id", "job", "instance_type", "zone_id", "capacity_type", "state")


def _up_line(cloud: LocalCloud) -> str:
    return f"the local cloud is up on port {cloud.port} (pid {cloud.pid}, {cloud.hosts} hosts)\n{SIMULATED}"


def _bastion_lines(bastion: dict[str, Any] | None) -> list[str]:
    """How to go through the bastion of namespace hosts."""
    if bastion is None:
        return []
    return [
        f"bastion: {bastion['user']}@127.0.0.1:{bastion['port']}, key {bastion['key']}",
        f"for ssh, at the top of ~/.ssh/config:  Include {bastion['ssh_config']}",
        "in a job file, under resources.aws:    ssh_proxy: root@cloudtrain-bastion",
    ]


def _machine(told: dict[str, Any], now: float) -> LocalMachine:
    taken = told["taken_at"] is not None and told["state"] == "running"
    return {
        "instance_id": told["instance_id"],
        "job": told["job"],
        "instance_type": told["instance_type"],
        "zone_id": told["zone_id"],
        "capacity_type": told["capacity_type"],
        "state": told["state"],
        "state_reason": told["state_reason"],
        "step": told["step"],
        "taken_in_s": round(told["taken_at"] - now, 1) if taken else None,
    }


def _news(machine: LocalMachine) -> str | None:
    """How far a machine's job is and when it is taken, where there is something to say."""
    words = [] if machine["step"] is None else [f"at step {machine['step']}"]
    if machine["taken_in_s"] is not None:
        words.append(f"taken in {duration(machine['taken_in_s'])}")
    return f"{machine['instance_id']}: {', '.join(words)}" if words else None


def _status(cloud: LocalCloud, machines: list[LocalMachine], told: dict[str, Any]) -> LocalStatus:
    return {
        "schema_version": SCHEMA_VERSION,
        "port": cloud.port,
        "pid": cloud.pid,
        "hosts": cloud.hosts,
        "machines": machines,
        "interrupts": [
            {"job": waiting["job"], "at_step": waiting["at_step"], "refused": waiting["refused"]}
            for waiting in told["interrupts"]
        ],
        "faults": [fault_document(injected) for injected in told["faults"]],
        "planted": [{"name": one["name"], "region": one["region"]} for one in told["planted"]],
    }


def _interrupt_line(waiting: dict[str, Any]) -> str:
    job = printable(waiting["job"])
    if waiting["refused"]:
        return f"refused interruption of {job}: {printable(waiting['refused'])}"
    at = "" if waiting["at_step"] is None else f" at step {waiting['at_step']}"
    return f"waiting to interrupt {job}{at}"


@local.command("interrupt", short_help="Take a job's machine away, as EC2 takes spot capacity back.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
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
    cloud, job = running(), _meant(job)
    known = client.interrupt(cloud, job, at_step=at_step, notice_s=notice_s, rebalance=rebalance)
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
    tell(f"{printable(job)}: {what}{when}{warned} ({SIMULATED})")
    say(f"next: `cloudtrain show {printable(job)}`")


def _meant(job: str) -> str:
    """The id of the job that a word means here, so that no later job of its name is hit; the word itself where this
    home knows none. Raises UsageError for a job that is over."""
    try:
        record = jobs.find(jobs.open_store(Home.from_env()), job).record
    except NotFound:
        return job
    if record.status.final:
        raise UsageError(
            f"job {record.job_id} is over already ({record.status}): nothing of it is left to take; launch it again, "
            "then interrupt the new one"
        )
    return record.job_id


@local.command("cutoff", short_help="Cut a job's machine off the network.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
@click.option("--restore", is_flag=True, help="Join it again.")
def cutoff(job: str, restore: bool) -> None:
    """Cut a job's machine off the network: it runs on, and SSH to it hangs.

    \b
    Example:
      cloudtrain local cutoff digits
    """
    ids = client.cutoff(running(), job, cut=not restore)
    tell(f"{', '.join(ids)}: {'joined again' if restore else 'cut off'}")
    if not restore:
        say(f"next: `cloudtrain local cutoff {printable(job)} --restore`")


@local.command("plant", short_help="Plant a fault of the account: a quota of 0, no role, no subnet…")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--region", metavar="REGION", help="In this region alone.  [default: in all]")
@click.option("--list", "listed", is_flag=True, help="Show the names, and what each does.")
@click.option("--clear", "cleared", is_flag=True, help="Take all of them away.")
def plant(name: str | None, region: str | None, listed: bool, cleared: bool) -> None:
    """Plant a fault of the account, as a first run on AWS meets it: a quota of 0, no role, no subnet.

    Calls of the API show it from now on, the same way in all of them, until `--clear`.

    \b
    Example:
      cloudtrain local plant quota-spot-zero --region us-east-1
    """
    if [name is not None, listed, cleared].count(True) != 1:
        raise UsageError("name one fault, or use --list or --clear: `cloudtrain local plant --list`")
    if listed:
        for known, (line, _) in PLANTS.items():
            tell(f"{known:<22}{line}")
        say("next: `cloudtrain local plant NAME`")
        return
    cloud = running()
    if cleared:
        tell(f"{counted(client.plant_clear(cloud), 'fault')} taken away; what they took is back")
        return
    assert name is not None
    client.plant(cloud, name, region)
    tell(_planted_line(name, region))
    say("next: `cloudtrain doctor --cloud local`, and `cloudtrain local plant --clear`")


def _planted_line(name: str, region: str | None) -> str:
    where = f" in {region}" if region else ""
    return f"planted {name}{where}: {PLANTS[name][0].removesuffix(' (needs --region)')}"
