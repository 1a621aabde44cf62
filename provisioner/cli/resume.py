"""``cloudtrain resume``: a job that was stopped, or that a limit ended, goes on from its last checkpoint."""

from __future__ import annotations

import os

import click

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs, limits
from cloudtrain.provisioner.cli.attend import attend, detached
from cloudtrain.provisioner.cli.complete import any_job
from cloudtrain.provisioner.cli.sshing import require_way
from cloudtrain.provisioner.cli.words import say
from cloudtrain.provisioner.decide import again
from cloudtrain.provisioner.decide.limits import limits_of
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile import overrides
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from cloudtrain.provisioner.ports import Stored
from cloudtrain.provisioner.spec import JobSpec


@click.command("resume", short_help="Go on with a stopped job from its last checkpoint.")
@click.argument("job", metavar="JOB", shell_complete=any_job)
@click.option("--budget", metavar="USD", help="Instead of the job's own; what is spent already counts.")
@click.option("--max-run", metavar="TIME", help="Instead of the job's own; what has run already counts.")
@click.option("--max-wait", metavar="TIME", help="Instead of the job's own.")
@click.option("--detach", is_flag=True, help="Return once the job is under way.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
def command(job: str, budget: str | None, max_run: str | None, max_wait: str | None, detach: bool, output: str) -> int:
    """Go on with a stopped job from its last checkpoint.

    It gets a machine as at its launch: the cheapest pool of its plan that has one. The code is the snapshot taken at
    the launch, whatever was edited since.

    A job that ended at its budget, at max_run, for want of a machine or after too many interruptions goes on, too,
    where its checkpoints are still in the bucket. A budget or max_run counts from the launch on.

    Ends as `launch` does: 0 when the job succeeded, 100 when it failed, 103 when it was cancelled.

    \b
    Examples:
      cloudtrain resume digits
      cloudtrain resume digits-1a2b3c --detach
      cloudtrain resume digits --budget 20
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    stored = jobs.find(store, job)
    record = stored.record
    job_id = record.job_id
    spec = overrides.limited(record.spec, Overrides(budget=budget, max_run=max_run, max_wait=max_wait))
    _must_rest(home, stored, changed=spec != record.spec)
    require_way(record.spec.aws, record.cloud, home)
    if again.resumable(record):
        _must_get_on(record, spec)
    known = store.events(job_id)
    if record.status.final or spec != record.spec:
        from cloudtrain.provisioner.launch import resuming  # noqa: PLC0415 - boto3, only where a cloud is asked

        record = resuming.reopen(record, spec, home, os.environ)
        for line in limits.left(record, SystemClock().now()):
            say(line)
    store.want(job_id, "run")
    jobs.use_this_shell(home, [record])
    jobs.see_driven(home, [record])
    if detach:
        return detached(job_id, json=output == "json")
    return attend(job_id, home, json=output == "json", after=known[-1].number if known else 0)


def _must_rest(home: Home, stored: Stored, *, changed: bool) -> None:
    """Raise UsageError for a job that can't be taken up again from here, or not with other limits now."""
    record = stored.record
    job_id = record.job_id
    if not again.resumable(record):
        jobs.must_be_live_here(home, record)
    elif record.driver != home.id:
        raise UsageError(f"job {job_id} is driven from another computer; `cloudtrain adopt {job_id}` takes it over")
    if again.resumable(record) and record.status.final:
        return
    if changed and not record.status.resting and stored.wanted != "stop":
        raise UsageError(
            f"job {job_id} is {record.status}: its limits can be changed once it rests; `cloudtrain stop {job_id}`, "
            "which keeps a checkpoint, then repeat this"
        )
    if record.outcome is not EndReason.STOPPED and stored.wanted != "stop":
        raise UsageError(f"job {job_id} is {record.status}, not stopped; `cloudtrain logs -f {job_id}` follows it")
    if changed and record.status is not JobStatus.STOPPED:
        raise UsageError(
            f"job {job_id} is still stopping: its limits can be changed once `cloudtrain ls` shows STOPPED"
        )


def _must_get_on(record: JobRecord, spec: JobSpec) -> None:
    """Raise UsageError where what the limits leave pays for no machine: to try would end the job."""
    then = again.reopened(record, spec)
    refused = again.refusal(then, SystemClock().now(), limits_of(record.cloud))
    if refused is not None:
        raise UsageError(refused)
