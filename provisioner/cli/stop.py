"""``cloudtrain stop``: a checkpoint, and the machine is given back; the job can be resumed."""

from __future__ import annotations

import click

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, tables
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.follow import EventsOnly, follow
from cloudtrain.provisioner.cli.words import counted, dollars, printable, say, tell
from cloudtrain.provisioner.errors import EXIT_NOT_FINISHED, EXIT_OK
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import JobRecord, JobStatus

WAIT_S = 900.0  # a large last checkpoint may take minutes to upload; more is said aside


@click.command("stop", short_help="Save a checkpoint and give the machine back; resumable.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
def command(job: str, output: str) -> int:
    """Save a checkpoint and give the machine back; resumable.

    The run is asked to save, what it has goes to the bucket and comes home, the machine is terminated. From then on
    nothing bills but the stored checkpoint. `cloudtrain resume` goes on from there, `cloudtrain down` ends it for good.

    Ends with 0 once the machine is gone, 101 when that takes longer than this command waits.

    \b
    Examples:
      cloudtrain stop digits
      cloudtrain stop digits-1a2b3c
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    stored = jobs.find(store, job)
    record = stored.record
    clock, as_json = SystemClock(), output == "json"
    if record.status is JobStatus.STOPPED:
        say(f"job {record.job_id} is stopped already; next: `cloudtrain resume {record.job_id}`")
        return _ended(record, clock.now(), as_json=True) if as_json else EXIT_OK
    jobs.must_be_live_here(home, record)
    known = store.events(record.job_id)
    store.want(record.job_id, "stop")
    jobs.use_this_shell(home, [record])
    jobs.see_driven(home, [record])
    deadline = clock.now() + WAIT_S
    try:
        record = follow(
            record.job_id,
            home=home,
            store=store,
            clock=clock,
            show=EventsOnly(),
            until=lambda now: now >= deadline,
            after=known[-1].number if known else 0,
        )
    except KeyboardInterrupt:
        say(f"\njob {record.job_id} goes on stopping by itself; `cloudtrain show {record.job_id}` tells how far it is")
        raise
    return _ended(record, clock.now(), as_json=as_json)


def _ended(record: JobRecord, now: float, *, as_json: bool) -> int:
    job_id = record.job_id
    if as_json:
        done = record.status.resting
        click.echo(tables.one_object(report.all_ended([report.ended(record, now, done=done)])))
        return EXIT_OK if done else EXIT_NOT_FINISHED
    if not record.status.resting:
        say(f"job {job_id} is still stopping and goes on doing so by itself; `cloudtrain show {job_id}` tells how far")
        say(f"its machine is paid until its checkpoint is safe; `cloudtrain down {job_id}` ends it now, without that")
        return EXIT_NOT_FINISHED
    spent = dollars(float(bill(record, now).usd))
    if record.status is not JobStatus.STOPPED:
        words = f": {printable(record.detail)}" if record.detail else ""
        tell(f"{job_id} {record.status}{words}; it was over before it could stop; {spent}")
        say(f"next: `cloudtrain show {job_id}`")
        return EXIT_OK
    machines = counted(sum(a.instance_id is not None for a in record.attempts), "machine")
    steps = max((a.durable_step or 0 for a in record.attempts), default=0)
    kept = f"checkpoint of step {steps} kept" if steps else "no checkpoint was made yet"
    tell(f"{job_id} {record.status}: {kept}; {machines} ended, nothing is left running; {spent} so far")
    if record.cloud == "local" and steps:
        say("its checkpoints are in the cloud on this computer: they end with `cloudtrain local down`")
    say(f"next: `cloudtrain resume {job_id}` goes on, `cloudtrain down {job_id}` ends it for good")
    return EXIT_OK
