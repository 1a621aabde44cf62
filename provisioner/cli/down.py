"""``cloudtrain down``: the end of a job, seen through until nothing of it is left."""

from __future__ import annotations

import sys

import click

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.follow import EventsOnly, Screen, follow
from cloudtrain.provisioner.cli.words import counted, dollars, printable, say
from cloudtrain.provisioner.errors import EXIT_NOT_FINISHED, EXIT_OK, CloudtrainError, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Clock, Store

WAIT_S = 600.0  # a machine may save, upload and shut down; more is said aside


@click.command("down", short_help="End a job for good and leave nothing running.")
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--all", "every", is_flag=True, help="End every live job.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
def command(job: str | None, every: bool, yes: bool) -> int:
    """End a job for good and leave nothing running.

    The job is asked to save and stop, what it left is brought home, its machines are terminated, and the command waits
    until they are gone. JOB is an id, the beginning of one, or the name of a live job.

    \b
    Examples:
      cloudtrain down digits
      cloudtrain down --all --yes
    """
    if (job is None) != every:
        raise UsageError("down takes either a JOB or --all; `cloudtrain ls` shows the jobs")
    home = Home.from_env()
    store = jobs.open_store(home)
    live = _meant(store, home, job)
    if not live:
        return EXIT_OK
    _confirm(live, yes)
    for record in live:
        store.want(record.job_id, "cancel")
    jobs.see_driven(home, live)
    clock = SystemClock()
    ended = [_see_ended(record, home=home, store=store, clock=clock) for record in live]
    if not all(ended):
        return EXIT_NOT_FINISHED
    say("next: `cloudtrain ls`")
    return EXIT_OK


def _meant(store: Store, home: Home, job: str | None) -> list[JobRecord]:
    """The live jobs to end; says so when there is nothing to do."""
    if job is None:
        live = [stored.record for stored in store.list(live_only=True) if stored.record.driver == home.id]
        if not live:
            say("no live jobs; nothing to do")
        return live
    record = jobs.find(store, job).record
    if record.status.final:
        say(f"job {record.job_id} is over already ({record.status}); `cloudtrain show {record.job_id}`")
        return []
    if record.driver != home.id:
        raise UsageError(f"job {record.job_id} is driven from another computer; end it there")
    return [record]


def _confirm(live: list[JobRecord], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("down asks before it ends a job, and there is no terminal to ask on; add --yes")
    names = ", ".join(record.job_id for record in live)
    click.confirm(f"End {names} for good?", default=False, err=True, abort=True)


def _see_ended(record: JobRecord, *, home: Home, store: Store, clock: Clock) -> bool:
    """Wait until the job is over and its machines are gone; says how it ended. False when that takes too long."""
    deadline = clock.now() + WAIT_S
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
        return False
    if not record.status.final:
        say(f"job {job_id} is still ending and goes on doing so by itself; `cloudtrain show {job_id}` tells how far")
        return False
    machines = counted(sum(a.instance_id is not None for a in record.attempts), "machine")
    left = "nothing is left running" if record.swept else f"not all is gone: {printable(record.detail or '')}"
    click.echo(f"{job_id} {record.status}: {machines} ended, {left}; {dollars(float(bill(record, clock.now()).usd))}")
    return True
