"""``cloudtrain resume``: a stopped job goes on from its last checkpoint."""

from __future__ import annotations

import click

from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.attend import attend, detached
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.sshing import require_way
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import EndReason


@click.command("resume", short_help="Go on with a stopped job from its last checkpoint.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
@click.option("--detach", is_flag=True, help="Return once the job is under way.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
def command(job: str, detach: bool, output: str) -> int:
    """Go on with a stopped job from its last checkpoint.

    It gets a machine as at its launch: the cheapest pool of its plan that has one. The code is the snapshot taken at
    the launch, whatever was edited since.

    Ends as `launch` does: 0 when the job succeeded, 100 when it failed, 103 when it was cancelled.

    \b
    Examples:
      cloudtrain resume digits
      cloudtrain resume digits-1a2b3c --detach
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    stored = jobs.find(store, job)
    record = stored.record
    job_id = record.job_id
    jobs.must_be_live_here(home, record)
    if record.outcome is not EndReason.STOPPED and stored.wanted != "stop":
        raise UsageError(f"job {job_id} is {record.status}, not stopped; `cloudtrain logs -f {job_id}` follows it")
    require_way(record.spec.aws, record.cloud, home)
    known = store.events(job_id)
    store.want(job_id, "run")
    jobs.use_this_shell(home, [record])
    jobs.see_driven(home, [record])
    if detach:
        return detached(job_id, json=output == "json")
    return attend(job_id, home, json=output == "json", after=known[-1].number if known else 0)
