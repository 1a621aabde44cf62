"""``cloudtrain launch``: plan, confirm, go, follow, results and bill."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import data, limits, plan
from cloudtrain.provisioner.cli.attend import attend, detached, leave
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.opening import Opening
from cloudtrain.provisioner.cli.planning import overriding, show_plan
from cloudtrain.provisioner.cli.sshing import require_way
from cloudtrain.provisioner.cli.words import heed_no_ctrl_c, say
from cloudtrain.provisioner.controller.job_secrets import require_secrets
from cloudtrain.provisioner.errors import EXIT_OK, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.launch import launching


@click.command("launch", short_help="Train: choose machines, run the job, bring the results home.")
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@overriding
@click.option("-y", "--yes", is_flag=True, help="Don't ask before starting.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop: nothing is started.")
@click.option("--detach", is_flag=True, help="Return once the job is under way.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
@click.option("--into", metavar="DIR", type=click.Path(path_type=Path), help="Results folder.  [default: results/JOB]")
def command(
    job_file: Path,
    cloud: str,
    flags: Overrides,
    yes: bool,
    dry_run: bool,
    detach: bool,
    output: str,
    into: Path | None,
) -> int:
    """Train: choose machines, run the job, bring the results home.

    Shows the plan and asks, starts the job, and follows it to its results and its bill. The job goes on when this
    command ends early: only `cloudtrain stop` and `cloudtrain down` end its machine.

    Ends with 0 when the job succeeded, 100 when it failed, 103 when it was cancelled, 4 when no pool had capacity,
    5 at a limit.

    \b
    Examples:
      cloudtrain launch templates/digits.yaml --cloud local
      cloudtrain launch job.yaml --dry-run -o json
    """
    as_json = output == "json"
    if dry_run:
        plan.show(job_file, cloud=cloud, flags=flags, as_json=as_json)
        return EXIT_OK
    _check(job_file, cloud, yes=yes)
    home = Home.from_env()
    prepared = launching.prepare(job_file, cloud=cloud, into=into, flags=flags)
    launching.refuse_if_live(prepared.spec.name, home)
    require_way(prepared.spec.aws, cloud, home)
    require_secrets(prepared.spec, os.environ)
    launching.warm(home, cloud)
    opening = Opening(cloud, home, prepared)
    try:
        shot = launching.snapshot(prepared, home=home)
        prepared, access = opening.result()
        found = data.look_for_launch(prepared, home, access)
        show_plan(prepared, shot, found.plan if found is not None else None, as_json=False, aside=True)
        if promise := limits.deadline(prepared.spec, cloud, access.entry.identity.expires_at, SystemClock().now()):
            say(promise)
        if not (yes or click.confirm("Start it?", default=True, err=True)):
            say("nothing was started")
            return EXIT_OK
        mounts = data.upload(found, prepared.job_id, access)
        job_id = launching.submit(prepared, shot, access, mounts, home=home)
        return detached(job_id, json=as_json) if detach else attend(job_id, home, json=as_json)
    except KeyboardInterrupt:
        heed_no_ctrl_c()
        if _stored(home, prepared.job_id):
            leave(prepared.job_id, home)
        else:
            say("nothing was started")
        raise
    finally:
        heed_no_ctrl_c()
        if not _stored(home, prepared.job_id):
            shutil.rmtree(home.job_dir(prepared.job_id), ignore_errors=True)  # the snapshot of what was not launched


def _stored(home: Home, job_id: str) -> bool:
    try:
        open_store(home).get(job_id)
    except NotFound:
        return False
    return True


def _check(job_file: Path, cloud: str, *, yes: bool) -> None:
    """What can be refused before anything is read."""
    plan.require_file(job_file)
    if cloud == "local":
        launching.require_local_extra()
    if not (yes or sys.stdin.isatty()):
        raise UsageError("launch asks before it starts, and there is no terminal to ask on; add --yes")
