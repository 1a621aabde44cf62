"""``cloudtrain show``: one job, whole."""

from __future__ import annotations

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, limits, tables
from cloudtrain.provisioner.cli.complete import any_job
from cloudtrain.provisioner.cli.words import clock_time, printable, say, tell
from cloudtrain.provisioner.decide import again
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus

EVENTS_SHOWN = 15


@click.command("show", short_help="Show one job: attempts, events, bill.")
@click.argument("job", metavar="JOB", shell_complete=any_job)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print it.")
def command(job: str, output: str) -> None:
    """Show one job: attempts, events, bill.

    JOB is an id, the beginning of one, or the name of a live job.

    \b
    Examples:
      cloudtrain show digits
      cloudtrain show digits-1a2b3c -o json
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    record = jobs.find(store, job).record
    jobs.see_driven(home, [record])
    record = store.get(record.job_id).record
    live = jobs.live_view(store, record.job_id)
    now = SystemClock().now()
    if output == "json":
        click.echo(tables.one_object(report.shown(record, live, now)))
        return
    job_id = record.job_id
    tell(f"{job_id}  {tables.moment(record, {} if record.status.resting else live)}")
    for line in (record.detail, None if record.status.resting else live.get("trouble")):
        if line:
            tell(printable(line))
    if record.attempts and not record.status.resting:
        tell(f"machine: {live.get('machine_id') or '-'} in {record.attempts[-1].pool}")
    for check in live.get("checks") or ():
        tell(f"check: {printable(check)}")
    for line in limits.left(record, now):
        tell(line)
    if where := tables.results(record):
        tell(where)
    tell()
    tell(tables.bill(record, now))
    if restored := tables.restored(record):
        tell(restored)
    tell()
    for event in store.events(job_id)[-EVENTS_SHOWN:]:
        tell(f"{clock_time(event.at)} {printable(event.text)}")
    say(f"next: {_next(record)}")


def _next(record: JobRecord) -> str:
    job_id = record.job_id
    if record.let_go_at is not None and not record.status.final:
        return f"it is shown as it was; `cloudtrain adopt {job_id}` takes it over, or, once it is over, brings it home"
    if record.status is JobStatus.STOPPED:
        return f"`cloudtrain resume {job_id}` goes on from its checkpoint, `cloudtrain down {job_id}` ends it"
    if again.resumable(record):
        return again.next_step(record)
    if record.status.final:
        return "`cloudtrain ls`" if record.status is JobStatus.SUCCEEDED else f"`cloudtrain logs {job_id}`"
    return f"`cloudtrain logs -f {job_id}` follows it, `cloudtrain down {job_id}` ends it"
