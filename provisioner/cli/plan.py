"""``cloudtrain plan``: what a launch would do, and nothing of it done."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from cloudtrain.provisioner.cli import data
from cloudtrain.provisioner.cli.planning import overriding, show_plan
from cloudtrain.provisioner.cli.words import say
from cloudtrain.provisioner.errors import NotFound
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.launch import launching


@click.command("plan", short_help="Show where a job would run, and at what price.")
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
@overriding
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How the plan is printed.")
def command(job_file: Path, cloud: str, flags: Overrides, output: str) -> None:
    """Show where a job would run, and at what price: the pools in the order in which they are tried, and why the other
    machine types are out. Nothing is started, and no account is asked but for the size of `file_mounts` in a bucket.
    `launch --dry-run` prints the same.

    \b
    Examples:
      cloudtrain plan templates/digits.yaml
      cloudtrain plan job.yaml --gpu L4:1 --spot --region us-east-1
    """
    show(job_file, cloud=cloud, flags=flags, as_json=output == "json")


def show(job_file: Path, *, cloud: str, flags: Overrides, as_json: bool) -> None:
    """Print the plan of a job file. Raises NotFound, UsageError, NoCapacity."""
    require_file(job_file)
    home = Home.from_env()
    prepared = launching.prepare(job_file, cloud=cloud, flags=flags)
    try:
        shot = launching.snapshot(prepared, home=home)
        show_plan(prepared, shot, data.look_for_plan(prepared, home), as_json=as_json)
    finally:
        shutil.rmtree(home.job_dir(prepared.job_id), ignore_errors=True)
    local = " --cloud local" if cloud == "local" else ""
    say(f"nothing was started; next: `cloudtrain launch {job_file}{local}`")


def require_file(job_file: Path) -> None:
    """Raise NotFound where there is no such file."""
    if not job_file.exists():
        raise NotFound(f"{job_file}: no such job file; templates/digits.yaml is one to start from")
