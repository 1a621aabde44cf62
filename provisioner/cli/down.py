"""``cloudtrain down``: the end of a job, seen through until nothing of it is left."""

from __future__ import annotations

import sys

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.follow import EventsOnly, Screen, follow
from cloudtrain.provisioner.cli.words import SIMULATED, counted, dollars, printable, say, tell
from cloudtrain.provisioner.errors import EXIT_NOT_FINISHED, EXIT_OK, CloudtrainError, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Clock, Store

WAIT_S = 600.0  # a machine may save, upload and shut down; more is said aside


@click.command("down", short_help="End a job for good and leave nothing running.")
@click.argument("wanted", metavar="[JOB]...", nargs=-1, shell_complete=live_job)
@click.option("--all", "every", is_flag=True, help="End every live job.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
def command(wanted: tuple[str, ...], every: bool, yes: bool, output: str) -> int:
    """End a job for good and leave nothing running.

    The job is asked to save and stop, what it left is brought home, its machines are terminated, and the command waits
    until they are gone. JOB is an id, the beginning of one, or the name of a live job; several may be given.

    Ends with 0 once nothing is left, 101 when that takes longer than this command waits.

    \b
    Examples:
      cloudtrain down digits
      cloudtrain down --all --yes
    """
    if bool(wanted) == every:
        raise UsageError("down takes either JOBs or --all; `cloudtrain ls` shows the jobs")
    home = Home.from_env()
    store = jobs.open_store(home)
    live = _meant(store, home, wanted)
    if live and not (yes or _confirmed(live)):
        say("nothing was ended")
        return EXIT_OK
    for record in live:
        store.want(record.job_id, "cancel")
    jobs.use_this_shell(home, live)
    jobs.see_driven(home, live)
    return see_all_ended(live, home, output)


def see_all_ended(live: list[JobRecord], home: Home, output: str) -> int:
    """Wait until jobs that were asked to end are over and nothing of them runs; they all end at the same time. Gives up
    once none of them has come to its end for WAIT_S. Returns the exit code."""
    store, clock = jobs.open_store(home), SystemClock()
    ended = []
    deadline = clock.now() + WAIT_S
    try:
        for record in live:
            now, done = _see_ended(record, deadline, home=home, store=store, clock=clock)
            ended.append(report.ended(now, clock.now(), done=done))
            if done:
                deadline = clock.now() + WAIT_S
            if output == "table" and done:
                tell(_line(now, clock.now()))
    except KeyboardInterrupt:
        say("\nwhat was asked to end goes on ending by itself; `cloudtrain ls` shows how far it is")
        raise
    if output == "json":
        click.echo(tables.one_object(report.all_ended(ended)))
    if not all(job["done"] for job in ended):
        return EXIT_NOT_FINISHED
    if live:
        say("next: `cloudtrain ls`")
    return EXIT_OK


def _meant(store: Store, home: Home, wanted: tuple[str, ...]) -> list[JobRecord]:
    """The live jobs to end; says so when there is nothing to do. Nothing is ended where one of them can't be."""
    if not wanted:
        live = [stored.record for stored in store.list(live_only=True) if stored.record.driver == home.id]
        if not live:
            say("no live jobs; nothing to do")
        return live
    found = {record.job_id: record for record in (jobs.find(store, one).record for one in wanted)}
    for record in found.values():
        if record.status.final:
            say(f"job {record.job_id} is over already ({record.status}); `cloudtrain show {record.job_id}`")
        else:
            jobs.must_be_live_here(home, record)
    return [record for record in found.values() if not record.status.final]


def _confirmed(live: list[JobRecord]) -> bool:
    """Ask once, naming what is live and what it costs. Raises UsageError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError("down asks before it ends a job, and there is no terminal to ask on; add --yes")
    total = 0.0
    for record in live:
        rate = report.usd_per_hour(record)
        total += rate or 0.0
        price = "nothing of it runs" if rate is None else f"{rate:.4f} $/hour"
        if record.cloud == "local" and rate is not None:
            price += f" ({SIMULATED})"
        say(f"{record.job_id}  {record.status}  {price}")
    what = live[0].job_id if len(live) == 1 else f"these {len(live)} jobs ({total:.4f} $/hour)"
    return click.confirm(f"End {what} for good?", default=False, err=True)


def _see_ended(record: JobRecord, deadline: float, *, home: Home, store: Store, clock: Clock) -> tuple[JobRecord, bool]:
    """Wait until the job is over and its machines are gone: its record then, and whether it came to that in time."""
    seen = store.events(record.job_id)
    show: Screen = EventsOnly()
    job_id = record.job_id
    try:
        record = follow(
            job_id,
            home=home,
            store=store,
            clock=clock,
            show=show,
            until=lambda now: now >= deadline,
            after=seen[-1].number if seen else 0,
        )
    except CloudtrainError as error:
        say(f"job {job_id}: {error}")
        return record, False
    if not record.status.final:
        say(f"job {job_id} is still ending and goes on doing so by itself; `cloudtrain show {job_id}` tells how far")
        return record, False
    return record, True


def _line(record: JobRecord, now: float) -> str:
    machines = counted(sum(a.instance_id is not None for a in record.attempts), "machine")
    left = "nothing is left running" if record.swept else f"not all is gone: {printable(record.detail or '')}"
    return f"{record.job_id} {record.status}: {machines} ended, {left}; {dollars(float(bill(record, now).usd))}"
