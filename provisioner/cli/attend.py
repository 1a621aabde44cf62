"""Staying with a job that was just started: follow it, ask what Ctrl-C meant, show its results and its bill."""

from __future__ import annotations

import sys

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.follow import follow, screen
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.errors import EXIT_INTERRUPTED, EXIT_OK
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus


def goes_on(job_id: str) -> str:
    """What to tell somebody who leaves a live job."""
    return f"job {job_id} goes on by itself; `cloudtrain logs -f {job_id}` follows, `cloudtrain down {job_id}` ends it"


def detached(job_id: str, *, json: bool) -> int:
    """Say that the job is under way, and leave."""
    if json:
        started = {"schema_version": report.SCHEMA_VERSION, "job": job_id, "status": str(JobStatus.PENDING)}
        click.echo(tables.one_object(started))
    else:
        click.echo(job_id)
    say(goes_on(job_id))
    return EXIT_OK


def attend(job_id: str, home: Home, *, json: bool, after: int = 0) -> int:
    """Follow the job, from event number ``after`` on, to its end; returns the exit code that says how it ended."""
    say(f"job {job_id} is under way; Ctrl-C leaves it running")
    try:
        record = _follow(job_id, home, after=after)
    except KeyboardInterrupt:
        if not _end_wanted(job_id):
            say(f"\n{goes_on(job_id)}")
            return EXIT_INTERRUPTED
        store = open_store(home)
        known = store.events(job_id)
        store.want(job_id, "cancel")
        record = _follow(job_id, home, after=known[-1].number if known else 0)
    _show_end(record, json=json)
    return report.exit_code(record)


def _follow(job_id: str, home: Home, *, after: int = 0) -> JobRecord:
    with screen() as show:
        return follow(job_id, home=home, store=open_store(home), clock=SystemClock(), show=show, after=after)


def _end_wanted(job_id: str) -> bool:
    """Ask what Ctrl-C meant, where there is somebody to ask; leaving is the answer that loses nothing."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return click.confirm(f"\nEnd job {job_id}? No leaves it running", default=False, err=True)
    except (KeyboardInterrupt, click.Abort):
        return False


def _show_end(record: JobRecord, *, json: bool) -> None:
    now = SystemClock().now()
    job_id = record.job_id
    words = f": {printable(record.detail)}" if record.detail else ""
    say(f"job {job_id} {record.status}{words}")
    if json:
        click.echo(tables.one_object(report.final(record, now)))
    else:
        if record.collected and (where := tables.results(record)):
            click.echo(where)
        click.echo(tables.bill(record, now))
    if record.status is JobStatus.SUCCEEDED:
        say(f"next: `cloudtrain show {job_id}` tells how it went, attempt by attempt")
    elif record.status is JobStatus.STOPPED:
        say(f"next: `cloudtrain resume {job_id}` goes on")
    elif any(attempt.started_at is not None for attempt in record.attempts):
        say(f"next: `cloudtrain logs {job_id}` shows what its run has written")
    else:
        say(f"next: `cloudtrain show {job_id}` tells what was tried")
