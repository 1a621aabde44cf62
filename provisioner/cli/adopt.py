"""``cloudtrain adopt``: take over a job that another computer launched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from cloudtrain.provisioner.account_outputs import InBucket
from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.tables import one_object, table
from cloudtrain.provisioner.cli.words import printable, say, tell
from cloudtrain.provisioner.errors import EXIT_OK, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.outputs import SCHEMA_VERSION
from cloudtrain.provisioner.report import iso, started


@click.command("adopt", short_help="Take over a job that another computer launched.")
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Where it runs.")
@click.option("--region", metavar="REGION", help="Of the bucket.  [default: your AWS region]")
@click.option("--bucket", metavar="NAME", help="The bucket, where it is not the one that `setup` makes.")
@click.option("--into", metavar="DIR", type=click.Path(path_type=Path), help="Results folder.  [default: results/JOB]")
@click.option("--end", "ends", is_flag=True, help="Take it over only to end it for good, as `down` does.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
@click.pass_context
def command(
    ctx: click.Context,
    job: str | None,
    cloud: str,
    region: str | None,
    bucket: str | None,
    into: Path | None,
    ends: bool,
    yes: bool,
    output: str,
) -> int:
    """Take over a job that another computer launched.

    Its record, the snapshot of its code and its SSH keys come from the account's bucket; from then on this computer
    follows, stops and recovers it. What runs is not touched. The other computer, if it still lives, lets go of it.

    JOB is an id, the beginning of one, or a name. Without it, the jobs in the bucket are listed. One that can't go on
    elsewhere, since its first machine never trained, can be taken over to --end it.

    \b
    Examples:
      cloudtrain adopt
      cloudtrain adopt digits-1a2b3c
      cloudtrain adopt digits-1a2b3c --end
    """
    from cloudtrain.provisioner.launch import access, adopting  # noqa: PLC0415 - boto3, only where a cloud is asked

    home = Home.from_env()
    typed = {key for key in ("cloud", "region") if ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE}
    if job is not None and bucket is None and not typed:
        cloud, region, bucket = _known_place(home, job) or (cloud, region, bucket)
    opened = access.open_bucket(access.enter(cloud, home, region=region), bucket=bucket)
    if job is None and ends:
        raise UsageError("--end needs a JOB; `cloudtrain adopt` lists them")
    if job is None:
        records, troubles = adopting.in_bucket(opened)
        for trouble in troubles:
            say(trouble)
        flags = " --cloud local" if cloud == "local" else ""
        _list(records, opened.bucket, home, flags, as_json=output == "json")
        return EXIT_OK
    found = adopting.find(opened, job)
    record = found.record
    if not record.status.final and not ends and adopting.driven_here(record, home):
        adopting.bring_secrets(record, home, os.environ)
        say(f"job {record.job_id} is driven from here already; next: `cloudtrain show {record.job_id}`")
        return EXIT_OK
    _confirm(record, yes, ends=ends)
    results = into if into is not None else Path("results") / record.job_id
    record = adopting.adopt(found, opened, home, results.absolute(), os.environ, end=ends)
    if ends and not record.status.final:
        from cloudtrain.provisioner.cli import down  # noqa: PLC0415 - the ending alone

        return down.see_all_ended([record], home, output)
    if output == "json":
        click.echo(one_object(started(record.job_id, record.status)))
    else:
        tell(f"{record.job_id} {record.status}: {_now(record)}")
    step = "show" if record.status.resting else "logs -f"
    say(f"next: `cloudtrain {step} {record.job_id}`")
    return EXIT_OK


def _now(record: JobRecord) -> str:
    if record.status.final:
        return f"it is over; its results are in {printable(record.results)}"
    if record.status.resting:
        return f"driven from here; `cloudtrain resume {record.job_id}` goes on with it"
    return "driven from here now"


def _confirm(record: JobRecord, yes: bool, *, ends: bool) -> None:
    if yes or record.status.final:
        return
    if not sys.stdin.isatty():
        raise UsageError("adopt asks before it takes a live job over, and there is no terminal to ask on; add --yes")
    say(f"job {record.job_id} is {record.status} and driven from another computer, which lets go of it if it lives")
    question = "Take it over and end it for good?" if ends else "Take it over?"
    click.confirm(question, default=not ends, err=True, abort=True)


def _known_place(home: Home, wanted: str) -> tuple[str, str, str] | None:
    """Cloud, region and bucket of a job that this computer has seen; None for one that it has not."""
    try:
        record = jobs.find(jobs.open_store(home), wanted).record
    except (NotFound, UsageError):
        return None
    return record.cloud, record.region, record.bucket


def _list(records: tuple[JobRecord, ...], bucket: str, home: Home, flags: str, *, as_json: bool) -> None:
    known = {stored.record.job_id for stored in jobs.open_store(home).list()}  # the store may have been lost
    live = (r for r in records if not r.status.final)
    elsewhere = next((r.job_id for r in live if r.driver != home.id or r.job_id not in known), None)
    if as_json:
        found: InBucket = {
            "schema_version": SCHEMA_VERSION,
            "bucket": bucket,
            "jobs": [
                {
                    "job": r.job_id,
                    "name": r.spec.name,
                    "status": r.status,
                    "here": r.driver == home.id,
                    "started": iso(r.created_at),
                }
                for r in records
            ],
        }
        click.echo(one_object(found))
    elif records:
        rows = [
            (r.job_id, r.status, "here" if r.driver == home.id else "another computer", iso(r.created_at))
            for r in records
        ]
        click.echo(table(rows, ("job", "status", "driven from", "launched")))
    else:
        say(f"bucket {bucket} holds no jobs; next: `cloudtrain ls` shows those of this computer")
    if elsewhere is not None:
        say(f"next: `cloudtrain adopt {elsewhere}{flags}` takes one over")
