"""Staying with a job that was just started: follow it, ask what Ctrl-C meant, show its results and its bill."""

from __future__ import annotations

import sys

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.follow import follow, screen
from cloudtrain.provisioner.cli.jobs import open_store, see_driven
from cloudtrain.provisioner.cli.words import SIMULATED, heed_no_ctrl_c, printable, say, tell
from cloudtrain.provisioner.decide import again
from cloudtrain.provisioner.errors import EXIT_INTERRUPTED, EXIT_OK
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord, JobStatus


def goes_on(job_id: str, record: JobRecord | None = None) -> str:
    """What to tell somebody who leaves a live job: what its machine costs, or will, and what ends it."""
    price = "" if record is None else _price(record)
    what = f"`cloudtrain logs -f {job_id}` follows, `cloudtrain down {job_id}` ends it"
    return f"job {job_id} goes on by itself{price}; {what}"


def detached(job_id: str, *, json: bool) -> int:
    """Say that the job is under way, and leave."""
    click.echo(tables.one_object(report.started(job_id)) if json else job_id)
    say(goes_on(job_id))
    return EXIT_OK


def attend(job_id: str, home: Home, *, json: bool, after: int = 0) -> int:
    """Follow the job, from event number ``after`` on, until nothing more happens to it by itself; returns the exit code
    that says how it stands then.

    Ctrl-C asks whether to detach or to stop; a second one, or the first where nobody can be asked, detaches.
    """
    try:
        record = _attended(job_id, home, after=after)
        if record is not None:
            _show_end(record, json=json)
            return report.exit_code(record)
    except KeyboardInterrupt:
        pass
    heed_no_ctrl_c()
    leave(job_id, home)
    return EXIT_INTERRUPTED


def leave(job_id: str, home: Home) -> None:
    """What to tell somebody whom Ctrl-C takes away from a stored job. Sees to it that somebody drives the job."""
    store = open_store(home)
    stored = store.get(job_id)
    if stored.resting:
        say(f"job {job_id} is {stored.record.status}; `cloudtrain show {job_id}` tells how it went")
        return
    see_driven(home, [stored.record])
    if stored.wanted == "stop":
        say(f"job {job_id} goes on stopping by itself; `cloudtrain show {job_id}` tells how far it is")
    else:
        say(goes_on(job_id, stored.record))


def _attended(job_id: str, home: Home, *, after: int) -> JobRecord | None:
    """The job's record when nothing more happens to it by itself; None for somebody who leaves it alone."""
    store = open_store(home)
    try:
        say(f"job {job_id} is under way; Ctrl-C asks whether to leave it running")
        return _follow(job_id, home, after=after)
    except KeyboardInterrupt:
        record = store.get(job_id).record
        if not (record.status.resting or _stop_wanted(record)):
            return None
        known = store.events(job_id)
        if not record.status.resting:
            store.want(job_id, "stop")
            say("it saves a checkpoint and gives the machine back; Ctrl-C leaves it to that")
        return _follow(job_id, home, after=known[-1].number if known else 0)


def _price(record: JobRecord) -> str:
    """What the job's machine costs now, else what the machine costs that it will ask for first."""
    rate = report.usd_per_hour(record)
    if rate is not None:
        return f" at {rate:.4f} $/hour{_simulated(record)}"
    if not record.offerings:
        return ""
    return f" at {record.offerings[0].price_per_hour.amount:.4f} $/hour or so{_simulated(record)} once it has a machine"


def _simulated(record: JobRecord) -> str:
    return f" ({SIMULATED})" if record.cloud == "local" else ""


def _follow(job_id: str, home: Home, *, after: int = 0) -> JobRecord:
    with screen() as show:
        return follow(job_id, home=home, store=open_store(home), clock=SystemClock(), show=show, after=after)


def _stop_wanted(record: JobRecord) -> bool:
    """Ask what Ctrl-C meant, where there is somebody to ask; leaving is the answer that loses nothing."""
    say()  # the terminal shows ^C where the line was
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    rate = report.usd_per_hour(record)
    price = "" if rate is None else f" and costs {rate:.4f} $/hour{_simulated(record)}"
    say(f"detach: job {record.job_id} goes on by itself{price}")
    say("stop: it saves a checkpoint and gives the machine back; `cloudtrain resume` goes on from there")
    try:
        answer: str = click.prompt("Detach or stop?", type=click.Choice(["detach", "stop"]), default="detach", err=True)
    except (KeyboardInterrupt, click.Abort):
        say()
        return False
    return answer == "stop"


def _show_end(record: JobRecord, *, json: bool) -> None:
    now = SystemClock().now()
    job_id = record.job_id
    words = f": {printable(record.detail)}" if record.detail else ""
    say(f"job {job_id} {record.status}{words}")
    if record.status is JobStatus.SUCCEEDED and record.late_at is not None:
        say("it ended past its deadline: exit code 5")
    if json:
        click.echo(tables.one_object(report.final(record, now)))
    else:
        if record.collected and (where := tables.results(record)):
            tell(where)
        tell(tables.bill(record, now))
    if record.status is JobStatus.SUCCEEDED:
        say(f"next: `cloudtrain show {job_id}` tells how it went, attempt by attempt")
    elif record.status is JobStatus.STOPPED:
        say(f"next: `cloudtrain resume {job_id}` goes on")
    elif again.resumable(record):
        say(f"next: {again.next_step(record)}")
    elif any(attempt.started_at is not None for attempt in record.attempts):
        say(f"next: `cloudtrain logs {job_id}` shows what its run has written")
    else:
        say(f"next: `cloudtrain show {job_id}` tells what was tried")
