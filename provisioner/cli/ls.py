"""``cloudtrain ls``: all jobs, from disk."""

from __future__ import annotations

import csv
import io

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud.client import find as find_local_cloud
from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.ports import Clock, Store

TABLE_ROWS = 20
LOST_WAIT_S = 10.0  # for the controller to write down that a job's cloud is dead


@click.command("ls", short_help="List jobs: how far they are and what they cost so far.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "csv"]), default="table", help="How to print them."
)
def command(output: str) -> None:
    """List jobs: how far they are and what they cost so far.

    Answers from disk. Brings the controller back where live jobs need it and it has died, and says so.

    \b
    Examples:
      cloudtrain ls
      cloudtrain ls -o json
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    clock = SystemClock()
    records = [stored.record for stored in store.list()]
    jobs.see_driven(home, records)
    lost = [record.job_id for record in records if _cloud_is_gone(home, record)]
    if lost:
        _await_lost(store, clock, lost)
    records = [stored.record for stored in reversed(store.list())]
    now = clock.now()
    rows = [report.listed(record, jobs.live_view(store, record.job_id), now) for record in records]
    if output == "json":
        click.echo(tables.one_object({"schema_version": report.SCHEMA_VERSION, "jobs": rows}))
    elif output == "csv":
        click.echo(_csv(rows), nl=False)
    elif not rows:
        say("no jobs yet; next: `cloudtrain launch templates/digits.yaml --cloud local`")
        return
    else:
        shown = rows if output == "wide" else rows[:TABLE_ROWS]
        click.echo(tables.jobs(shown, wide=output == "wide"))
        if len(rows) > len(shown):
            say(f"{len(rows) - len(shown)} older ones are not shown; `cloudtrain ls -o wide` shows all")
    _notes(records[:TABLE_ROWS])


def _csv(rows: list[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, report.LIST_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cloud_is_gone(home: Home, record: JobRecord) -> bool:
    if record.cloud != "local" or record.status.final:
        return False
    found = find_local_cloud(home.local_home)
    return found is None or found.id != record.cloud_id


def _await_lost(store: Store, clock: Clock, lost: list[str]) -> None:
    """Until the controller has marked the jobs, so that what is printed is what is true."""
    deadline = clock.now() + LOST_WAIT_S
    while clock.now() < deadline and not all(store.get(job_id).record.status.final for job_id in lost):
        clock.sleep(0.1)


def _notes(records: list[JobRecord]) -> None:
    for record in records:
        if record.status is JobStatus.FAILED and record.detail:
            say(f"{record.job_id}: {printable(record.detail)}")
    live = next((record.job_id for record in records if not record.status.final), None)
    if live is not None:
        say(f"next: `cloudtrain logs -f {live}` follows a job, `cloudtrain down {live}` ends it")
    elif records:
        say(f"next: `cloudtrain show {records[0].job_id}` tells how a job went")
