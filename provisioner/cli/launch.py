"""``cloudtrain launch``: plan, confirm, go, follow, results and bill."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from cloudtrain.provisioner import launching, report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.follow import follow, screen
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.errors import EXIT_INTERRUPTED, EXIT_OK, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Options:
    yes: bool
    dry_run: bool
    detach: bool
    json: bool


@click.command("launch", short_help="Train: choose machines, run the job, bring the results home.")
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Where to run.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before starting.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop: nothing is started.")
@click.option("--detach", is_flag=True, help="Return once the job is under way.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
@click.option("--into", metavar="DIR", type=click.Path(path_type=Path), help="Results folder.  [default: results/JOB]")
def command(job_file: Path, cloud: str, yes: bool, dry_run: bool, detach: bool, output: str, into: Path | None) -> int:
    """Train: choose machines, run the job, bring the results home.

    Shows the plan and asks, starts the job, and follows it to its results and its bill. The job goes on when this
    command ends early: nothing but `cloudtrain down` stops it.

    Ends with 0 when the job succeeded, 100 when it failed, 103 when it was cancelled, 4 when no pool had capacity.

    \b
    Examples:
      cloudtrain launch templates/digits.yaml --cloud local
      cloudtrain launch job.yaml --dry-run -o json
    """
    options = _Options(yes, dry_run, detach, output == "json")
    _check(job_file, cloud, options)
    home = Home.from_env()
    prepared = launching.prepare(job_file, cloud=cloud, into=into)
    if not dry_run:
        launching.refuse_if_live(prepared.spec.name, home)
        launching.warm(home, cloud)
    try:
        shot = launching.snapshot(prepared, home=home)
        _show_plan(prepared, shot, options)
        if dry_run:
            return EXIT_OK
        if not (yes or click.confirm("Start it?", default=True, err=True)):
            say("nothing was started")
            return EXIT_OK
        job_id = launching.submit(prepared, shot, home=home)
    except KeyboardInterrupt:
        if _stored(home, prepared.job_id):
            say(_goes_on(prepared.job_id))
        raise
    finally:
        if not _stored(home, prepared.job_id):
            shutil.rmtree(home.job_dir(prepared.job_id), ignore_errors=True)  # the snapshot of what was not launched
    return _detached(job_id, options) if detach else _attended(job_id, home, options)


def _stored(home: Home, job_id: str) -> bool:
    try:
        open_store(home).get(job_id)
    except NotFound:
        return False
    return True


def _goes_on(job_id: str) -> str:
    return f"job {job_id} goes on by itself; `cloudtrain logs -f {job_id}` follows, `cloudtrain down {job_id}` ends it"


def _check(job_file: Path, cloud: str, options: _Options) -> None:
    """What can be refused before anything is read."""
    if not job_file.exists():
        raise NotFound(f"{job_file}: no such job file; templates/digits.yaml is one to start from")
    if cloud == "local":
        launching.require_local_extra()
    elif not options.dry_run:
        raise UsageError(f"{launching.NO_AWS_YET}, --dry-run shows the plan")
    if not (options.yes or options.dry_run or sys.stdin.isatty()):
        raise UsageError("launch asks before it starts, and there is no terminal to ask on; add --yes")


def _show_plan(prepared: launching.Prepared, shot: Snapshot, options: _Options) -> None:
    """On stdout when the plan is all that was asked for; aside otherwise."""
    name, cloud = prepared.spec.name, prepared.cloud
    text = f"{tables.plan(prepared.spec, cloud, prepared.plan)}\n{tables.workdir(shot)}"
    if options.dry_run and options.json:
        click.echo(tables.one_object(report.planned(name, cloud, prepared.plan, shot)))
        return
    click.echo(text, err=not options.dry_run)
    if cloud == "local":
        say("the job's `run` is an ordinary process on this computer, with your rights")
    if options.dry_run:
        say("nothing was started; " + ("without --dry-run it is" if cloud == "local" else launching.NO_AWS_YET))


def _detached(job_id: str, options: _Options) -> int:
    if options.json:
        started = {"schema_version": report.SCHEMA_VERSION, "job": job_id, "status": str(JobStatus.PENDING)}
        click.echo(tables.one_object(started))
    else:
        click.echo(job_id)
    say(_goes_on(job_id))
    return EXIT_OK


def _attended(job_id: str, home: Home, options: _Options) -> int:
    say(f"job {job_id} is under way; Ctrl-C leaves it running")
    try:
        record = _follow(job_id, home)
    except KeyboardInterrupt:
        if not _stop_wanted(job_id):
            say(f"\n{_goes_on(job_id)}")
            return EXIT_INTERRUPTED
        store = open_store(home)
        known = store.events(job_id)
        store.want(job_id, "cancel")
        record = _follow(job_id, home, after=known[-1].number if known else 0)
    _show_end(record, options)
    return report.exit_code(record)


def _follow(job_id: str, home: Home, *, after: int = 0) -> JobRecord:
    with screen() as show:
        return follow(job_id, home=home, store=open_store(home), clock=SystemClock(), show=show, after=after)


def _stop_wanted(job_id: str) -> bool:
    """Ask what Ctrl-C meant, where there is somebody to ask; leaving is the answer that loses nothing."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return click.confirm(f"\nEnd job {job_id}? No leaves it running", default=False, err=True)
    except (KeyboardInterrupt, click.Abort):
        return False


def _show_end(record: JobRecord, options: _Options) -> None:
    now = SystemClock().now()
    job_id = record.job_id
    words = f": {printable(record.detail)}" if record.detail else ""
    say(f"job {job_id} {record.status}{words}")
    if options.json:
        click.echo(tables.one_object(report.final(record, now)))
    else:
        if record.collected and (where := tables.results(record)):
            click.echo(where)
        click.echo(tables.bill(record, now))
    if record.status is JobStatus.SUCCEEDED:
        say(f"next: `cloudtrain show {job_id}` tells how it went, attempt by attempt")
    elif any(attempt.started_at is not None for attempt in record.attempts):
        say(f"next: `cloudtrain logs {job_id}` shows what its run has written")
    else:
        say(f"next: `cloudtrain show {job_id}` tells what was tried")
