"""``cloudtrain cost``: what jobs cost, and why."""

from __future__ import annotations

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.complete import any_job
from cloudtrain.provisioner.cli.words import say, tell
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile.values import DURATION_FORM, duration_s
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Store

FORMATS = ["table", "wide", "json", "csv"]


@click.command("cost", short_help="What jobs cost, and why.")
@click.argument("wanted", metavar="[JOB]...", nargs=-1, shell_complete=any_job)
@click.option("--since", metavar="TIME", help="Only jobs launched in the last 12h, 7d, ...")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", help="How to print it.")
def command(wanted: tuple[str, ...], since: str | None, output: str) -> None:
    """What jobs cost, and why: machine time x price of each attempt, what was free, and the same work on demand.

    Without JOB, all of them. A job that is named is shown attempt by attempt, as all are with -o wide. Counts machines,
    their volumes and public addresses, data between regions and results brought home, at the prices of the launch; not
    what lies in S3, nor its requests. A JOB is an id, the beginning of one, or a name.

    \b
    Examples:
      cloudtrain cost --since 7d
      cloudtrain cost digits -o csv
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    now = SystemClock().now()
    records = _records(store, wanted)
    if since is not None:
        seconds = duration_s(since)
        if seconds is None:
            raise UsageError(f"--since {since!r} is not a duration: {DURATION_FORM}")
        records = [record for record in records if record.created_at >= now - seconds]
    found = report.costs(records, now)
    if output == "json":
        click.echo(tables.one_object(found))
        return
    if output == "csv":
        click.echo(tables.csv(report.cost_rows(found), report.COST_FIELDS), nl=False)
        return
    if not records:
        say("no jobs to count; next: `cloudtrain ls`")
        return
    tell(tables.costs(found, each=bool(wanted) or output == "wide"))
    say(f"next: `cloudtrain show {records[0].job_id}` tells how a job went")


def _records(store: Store, wanted: tuple[str, ...]) -> list[JobRecord]:
    """Those that are meant, in the order in which they are named; else all, newest first."""
    if not wanted:
        return [stored.record for stored in reversed(store.list())]
    found = [jobs.find(store, one).record for one in wanted]
    return list({record.job_id: record for record in found}.values())
