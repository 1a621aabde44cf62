"""``cloudtrain ls``: all jobs, from disk."""

from __future__ import annotations

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus

TABLE_ROWS = 20
NEWS_S = 3600.0  # a failure is told for so long; `show` tells it always


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
    live = [stored.record for stored in store.list(live_only=True)]
    jobs.see_driven(home, live)
    records = [stored.record for stored in reversed(store.list())]
    now = SystemClock().now()
    rows = [
        report.listed(record, {} if record.status.final else jobs.live_view(store, record.job_id), now)
        for record in records
    ]
    if output == "json":
        click.echo(tables.one_object(report.listing(rows)))
    elif output == "csv":
        click.echo(tables.csv(rows, report.LIST_FIELDS), nl=False)
    elif not rows:
        say("no jobs yet; next: `cloudtrain launch templates/digits.yaml --cloud local`")
        return
    else:
        shown = rows if output == "wide" else rows[:TABLE_ROWS]
        click.echo(tables.jobs(shown, wide=output == "wide"))
        if len(rows) > len(shown):
            say(f"{len(rows) - len(shown)} older ones are not shown; `cloudtrain ls -o wide` shows all")
    _notes(records[:TABLE_ROWS], home, now, said={record.job_id for record in live})


def _notes(records: list[JobRecord], home: Home, now: float, *, said: set[str]) -> None:
    """Why jobs failed of late (but for those that were just said to be lost), which of them another computer drives,
    and the next likely command."""
    elsewhere = [record.job_id for record in records if not record.status.final and record.driver != home.id]
    for job_id in elsewhere:
        say(f"{job_id} is driven from another computer, and shown as it was; `cloudtrain adopt {job_id}` takes it over")
    for record in records:
        late = record.finished_at is not None and now - record.finished_at < NEWS_S
        if record.status is JobStatus.FAILED and record.detail and late and record.job_id not in said:
            say(f"{record.job_id}: {printable(record.detail)}")
        if record.late_at is not None and not record.status.final:
            say(f"{record.job_id} is past its deadline: it goes on, and ends with exit code 5")
    ours = [record for record in records if record.job_id not in elsewhere]
    live = next((record.job_id for record in ours if not record.status.resting), None)
    stopped = next((record.job_id for record in ours if record.status is JobStatus.STOPPED), None)
    if live is not None:
        say(f"next: `cloudtrain logs -f {live}` follows a job, `cloudtrain down {live}` ends it")
    if stopped is not None:
        say(f"next: `cloudtrain resume {stopped}` goes on with a stopped job")
    if ours and live is None and stopped is None:
        say(f"next: `cloudtrain show {ours[0].job_id}` tells how a job went")
