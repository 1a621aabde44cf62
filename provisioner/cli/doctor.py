"""``cloudtrain doctor``: what in the account would fail a launch, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from cloudtrain.pricing import catalog
from cloudtrain.provisioner.account.facts import Finding, Level, Wants
from cloudtrain.provisioner.account_outputs import Checked
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.plan import require_file
from cloudtrain.provisioner.cli.words import columns, counted, printable, say
from cloudtrain.provisioner.errors import EXIT_ACCESS, EXIT_OK
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile import overrides
from cloudtrain.provisioner.jobfile import reader as jobfile
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.launch import launching
from cloudtrain.provisioner.outputs import SCHEMA_VERSION
from cloudtrain.provisioner.plan import make_plan
from cloudtrain.provisioner.spec import JobSpec, Resources

COMMON = "{T4:1, L4:1, A10G:1}"
"""The cheapest GPU families, which most first jobs use: all of them are counted by the same two quotas."""
WIDTH = 80
_INDENT = "      "


@click.command("doctor", short_help="Check the account: what would fail a launch, and its fix.")
@click.argument("job_file", metavar="[JOB.yaml]", type=click.Path(path_type=Path), required=False)
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Which account.")
@click.option("--region", multiple=True, metavar="REGION", help="Look there; may be given several times.")
@click.option("--gpu", metavar="TYPE:N", help="For these accelerators, such as T4:1 or '{A100:8, H100:8}'.")
@click.option("--spot/--on-demand", "spot", default=None, help="For one way to buy.  [default: both]")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
def command(
    job_file: Path | None, cloud: str, region: tuple[str, ...], gpu: str | None, spot: bool | None, output: str
) -> int:
    """Check the account: what would fail a launch, and its fix. Nothing is started.

    Looks at what JOB.yaml would use; without one, at the cheapest GPU families in the default region. Ends with 6
    where something fails.

    \b
    Examples:
      cloudtrain doctor
      cloudtrain doctor job.yaml
      cloudtrain doctor --gpu A100:8 --spot --region us-east-2
    """
    if job_file is not None:
        require_file(job_file)
    if cloud == "local":
        launching.require_local_extra()
    from cloudtrain.provisioner.cli import account  # noqa: PLC0415 - boto3
    from cloudtrain.provisioner.launch.preflight import REGIONS, examine  # noqa: PLC0415

    home = Home.from_env()
    prices = catalog.load()
    ground = None
    if job_file is None:
        ground = account.ground(cloud, home)
        flags = Overrides(gpu=gpu or COMMON, regions=region or (ground.region,))
        spec = overrides.apply(_any_job(spot), flags, prices)
    else:
        spec = overrides.apply(jobfile.load(job_file), Overrides(gpu=gpu, spot=spot, regions=region), prices)
    plan = make_plan(spec, prices, cloud=cloud)
    wants = Wants(plan.offerings, spec.disk_size_gib, spec.aws, spec.max_run_s)
    looked_at = set(wants.regions if region else wants.regions[:REGIONS])
    wants = replace(wants, offerings=tuple(o for o in wants.offerings if o.pool.region in looked_at))
    _, findings = examine(ground or account.ground(cloud, home), wants)
    _show(findings, wants, cloud, "" if job_file is None else f" {job_file}", as_json=output == "json")
    return EXIT_ACCESS if any(f.level is Level.FAIL for f in findings) else EXIT_OK


def _any_job(spot: bool | None) -> JobSpec:
    markets = (True, False) if spot is None else (spot,)
    return JobSpec("doctor", "true", tuple(Resources(use_spot=market, memory="1+") for market in markets))


def _show(findings: Sequence[Finding], wants: Wants, cloud: str, job: str, *, as_json: bool) -> None:
    failed = [f for f in findings if f.level is Level.FAIL]
    warned = [f for f in findings if f.level is Level.WARN]
    if as_json:
        told: Checked = {
            "schema_version": SCHEMA_VERSION,
            "cloud": cloud,
            "regions": list(wants.regions),
            "findings": [
                {"check": f.check, "level": f.level.value, "where": f.where, "what": f.what, "fix": f.fix}
                for f in findings
            ],
        }
        click.echo(tables.one_object(told))
    else:
        for finding in (*failed, *warned):
            click.echo("\n".join(_trouble(finding)))
            click.echo()
        for finding in findings:
            if finding.level is Level.OK:
                click.echo("\n".join(wrapped(f"ok    {finding.check}: {_words(finding)}")))
    well = len(findings) - len(failed) - len(warned)
    local = " --cloud local" if cloud == "local" else ""
    say(
        f"{counted(len(failed), 'failure')}, {counted(len(warned), 'warning')}, {well} ok in {', '.join(wants.regions)}"
    )
    if cloud == "local" and (failed or warned):
        say(
            "a fix is worded for AWS: an `aws …` command would act on a real account, not on the cloud on this computer"
        )
    if failed:
        say(f"next: mend the failures, then `cloudtrain doctor{job}{local}` again")
    else:
        say(f"next: `cloudtrain launch{job or ' JOB.yaml'}{local}`")


def _trouble(finding: Finding) -> Iterator[str]:
    head = "FAIL" if finding.level is Level.FAIL else "warn"
    yield from wrapped(f"{head}  {finding.check}: {_words(finding)}")
    if finding.fix:
        yield from wrapped(f"{_INDENT}fix: {finding.fix}")


def _words(finding: Finding) -> str:
    where = "" if finding.where == "account" else f"{finding.where}: "
    return printable(where + finding.what)


def wrapped(text: str) -> list[str]:
    """Lines that fit 80 columns and the terminal, but for longer words. A command in backticks goes on behind
    a backslash, so that it can be copied."""
    width = min(WIDTH, columns() or WIDTH)
    lines, line, in_command = [], "", False
    indent = text[: len(text) - len(text.lstrip())]
    for word in text.strip().split(" "):
        goes_on = in_command
        opens = word.count("`") % 2 == 1 and not in_command
        room = width - (2 if in_command or opens else 0)  # for the backslash
        if line and len(line) + 1 + len(word) > room:
            lines.append(line + (" \\" if goes_on else ""))
            line = ""
        if line:
            line += f" {word}"
        else:
            line = (indent if not lines else _INDENT + ("  " if goes_on else "")) + word
        if word.count("`") % 2:
            in_command = not in_command
    return [*lines, line] if line else lines
