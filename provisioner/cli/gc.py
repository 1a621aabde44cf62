"""``cloudtrain gc``: what jobs left in an account, listed with its price, and ended."""

from __future__ import annotations

import sys
from decimal import Decimal
from functools import cache

import click
from click.core import ParameterSource

from cloudtrain.pricing import catalog
from cloudtrain.pricing.model import CapacityType
from cloudtrain.pricing.transfer import usd_per_month
from cloudtrain.provisioner.account_outputs import Cleared, Leftover, StaleData
from cloudtrain.provisioner.adapters.account_setup import find_bucket
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.inventory import AwsInventory
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.tables import one_object, table
from cloudtrain.provisioner.cli.words import SIMULATED, counted, dollars, printable, say, size, tell
from cloudtrain.provisioner.decide.garbage import Verdict
from cloudtrain.provisioner.errors import EXIT_ERROR, EXIT_NOT_FINISHED, EXIT_OK, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile.values import nearest
from cloudtrain.provisioner.launch.access import Entry, enter
from cloudtrain.provisioner.launch.clearing import Left, Scene, Survey, end, live_here, survey
from cloudtrain.provisioner.launch.clearing_data import Hoard, delete, hoard
from cloudtrain.provisioner.launch.leftover_prices import HOURS_PER_MONTH, total_usd_per_hour, usd_per_hour
from cloudtrain.provisioner.localcloud import client as local
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.outputs import SCHEMA_VERSION
from cloudtrain.provisioner.settings import Sources
from cloudtrain.provisioner.things import Kind


@click.command("gc", short_help="Find and end what jobs left in the account.")
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Which cloud.")
@click.option(
    "--region", "regions", metavar="REGION", multiple=True, help="Look here alone; repeatable.  [default: everywhere]"
)
@click.option("--bucket", metavar="NAME", help="The bucket, where it is not the one that `setup` makes.")
@click.option("--dry-run", is_flag=True, help="List, and end nothing.")
@click.option("--data", is_flag=True, help="Also what ended jobs keep in the bucket: checkpoints, snapshots, records.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask first.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How results are printed.")
@click.pass_context
def command(
    ctx: click.Context,
    cloud: str,
    regions: tuple[str, ...],
    bucket: str | None,
    dry_run: bool,
    data: bool,
    yes: bool,
    output: str,
) -> int:
    """Find and end what jobs left in the account.

    Machines, volumes, network interfaces, security groups, key pairs, spot requests and unfinished uploads that carry
    your tags and that no live job owns, in every region of the account. Which jobs live, their bucket says, whichever
    computer drives them. Nothing else is touched; what can't be told stays.

    Ends with 0 once nothing is left, 101 while machines still shut down, 1 where something can't be ended, 6 where a
    bucket may not be read: then nothing is ended.

    \b
    Examples:
      cloudtrain gc --dry-run
      cloudtrain gc --region us-east-1 --yes
      cloudtrain gc --data --dry-run
    """
    if not (dry_run or yes or sys.stdin.isatty()):
        raise UsageError(
            "gc asks before it ends anything, and there is no terminal to ask on; add --yes, or --dry-run to look"
        )
    if ctx.get_parameter_source("regions") is not ParameterSource.COMMANDLINE:
        regions = ()  # the configured region says where jobs go, not where to look
    home = Home.from_env()
    entry = _entered(cloud, home)
    scene, places = _scene(entry, home, bucket)
    _must_exist(regions, scene)
    where = regions or tuple(scene.everywhere())
    say(f"looking in {counted(len(where), 'region')} of account {entry.identity.account}")
    found = survey(scene, where, named=bool(regions))
    hoards = [hoard(scene, name, place) for name, place in places.items()] if data else []
    text = output == "table"
    if text:
        _show(found, hoards, simulated=cloud == "local", data=data)
    for trouble in found.troubles:
        say(trouble)
    left: tuple[Left, ...] = ()
    kept: list[str] = []
    if not dry_run:
        if found.ending and _agreed(_question(found, text=text), yes=yes):
            left = end(scene, found, say)
            _say_ended(found, left)
        for one in hoards:
            if one.count and _agreed(_data_question(one), yes=yes):
                still = delete(scene, one, say)
                say(f"{counted(one.count - len(still), 'object')} deleted from bucket {one.bucket}")
                kept += still
    if output == "json":
        click.echo(one_object(_document(cloud, found, hoards, left, dry_run=dry_run)))
    for name in kept:
        say(f"still in the bucket: {printable(name)}")
    _say_next(found, hoards, cloud, dry_run=dry_run, data=data)
    return EXIT_ERROR if kept or found.silent else _code(left)


def _code(left: tuple[Left, ...]) -> int:
    if any(not one.going for one in left):
        return EXIT_ERROR
    return EXIT_NOT_FINISHED if left else EXIT_OK


def _must_exist(regions: tuple[str, ...], scene: Scene) -> None:
    known = set(catalog.load().regions) if regions else set()
    for name in regions:
        if name not in known and name not in scene.everywhere():
            near = nearest(name, sorted(known))
            hint = f"did you mean {near}?" if near else "`aws account list-regions` lists them"
            raise UsageError(f"--region: no region {name!r} that the account may use: {hint}")


def _agreed(question: str, *, yes: bool) -> bool:
    agreed = yes or click.confirm(question, default=False, err=True)
    if not agreed:
        say("it stays")
    return agreed


def _entered(cloud: str, home: Home) -> Entry:
    configured = Sources.here().found().get("region")
    return enter(cloud, home, region=configured.value if configured is not None and cloud == "aws" else None)


def _scene(entry: Entry, home: Home, bucket: str | None) -> tuple[Scene, dict[str, str]]:
    """Whose things are meant; and the buckets that hold their jobs, by name, with their regions."""
    me = entry.identity
    inventory = AwsInventory(entry.clients, account=me.account, owner=me.owner, home_region=entry.region)
    named = {bucket} if bucket is not None else set()
    usual = find_bucket(entry.clients, me, entry.region)
    names = sorted(named | ({usual} if usual is not None else set()))
    places = {name: region for name in names if (region := inventory.bucket_region(name)) is not None}
    if bucket is not None and bucket not in places:
        raise UsageError(f"--bucket {bucket}: account {me.account} has no such bucket; `aws s3 ls` lists yours")

    def here() -> tuple[JobRecord, ...]:
        return live_here((s.record for s in open_store(home).list()), entry.cloud, entry.cloud_id)

    scene = Scene(
        inventory=inventory,
        objects=lambda name, region: S3ObjectStore(entry.clients, bucket=name, region=region),
        account=me.account,
        owner=me.owner,
        arn=me.arn,
        buckets=tuple(names),
        here=here,
        everywhere=cache(lambda: _everywhere(inventory, here(), entry, home)),
        clock=SystemClock(),
    )
    return scene, places


def _everywhere(inventory: AwsInventory, here: tuple[JobRecord, ...], entry: Entry, home: Home) -> tuple[str, ...]:
    """Every region that is enabled. In the embedded cloud those that have machines or jobs: each one that is asked
    takes it a second to make."""
    if entry.cloud == "aws":
        return inventory.regions()
    running = local.find(home.local_home)
    zones = {o.pool.zone_id: o.pool.region for o in catalog.load().offerings(*CapacityType)}
    machines = local.status(running)["machines"] if running is not None else []
    used = {zones[machine["zone_id"]] for machine in machines if machine["zone_id"] in zones}
    jobs = {region for record in here for region in record.regions}
    return tuple(sorted(used | jobs | {entry.region}))


def _total(found: Survey) -> Decimal:
    return total_usd_per_hour(verdict.thing for verdict in found.ending)


def _what(verdict: Verdict) -> str:
    thing = verdict.thing
    if thing.pool is not None:
        return f"{thing.pool.instance_type} {thing.pool.capacity_type}"
    return f"{thing.kind}, {thing.size_gib} GiB" if thing.size_gib else str(thing.kind)


def _show(found: Survey, hoards: list[Hoard], *, simulated: bool, data: bool) -> None:
    note = f" ({SIMULATED})" if simulated else ""
    if found.ending:
        rows = [
            (v.thing.thing_id, _what(v), v.thing.region, v.job_id, _money(usd_per_hour(v.thing))) for v in found.ending
        ]
        click.echo(table(rows, ("id", "what", "region", "job", "$/hour"), ("$/hour",)))
        for why in dict.fromkeys(f"{v.job_id or 'uploads'}: {v.why}" for v in found.ending):
            say(printable(why))
        hourly = _total(found)
        month = dollars(float(hourly * HOURS_PER_MONTH))
        tell(
            f"{counted(len(found.ending), 'thing')} to end: {dollars(float(hourly))} per hour, {month} per month{note}"
        )
    else:
        tell("nothing is left over" + (" where it could be looked" if found.troubles else ""))
    for why in dict.fromkeys(f"{v.job_id}: {v.why}" for v in found.verdicts if not v.end):
        say(f"stays, {printable(why)}")
    for machine in (v.thing for v in found.verdicts if v.damaged and v.thing.kind is Kind.MACHINE):
        by_hand = f"aws ec2 terminate-instances --region {machine.region} --instance-ids {machine.thing_id}"
        say(f"{machine.thing_id} runs: update cloudtrain, or, if you are sure that its job is over, `{by_hand}`")
    for one in hoards:
        _show_data(one, note)
    if data and not hoards:
        tell("the account has no bucket of cloudtrain's")


def _show_data(one: Hoard, note: str) -> None:
    if one.ending or one.files:
        rows = [
            (d.job_id, len(d.keys), size(d.size), _money(usd_per_month(one.region, d.size)), d.why) for d in one.ending
        ]
        if one.files:
            count = sum(item.size for item in one.files)
            rows.append(
                (
                    "file_mounts",
                    len(one.files),
                    size(count),
                    _money(usd_per_month(one.region, count)),
                    "no job names them",
                )
            )
        heads = ("job", "objects", "size", "$/month", "why")
        click.echo(table(rows, heads, ("objects", "size", "$/month")))
        month = usd_per_month(one.region, one.size)
        price = "price not known" if month is None else f"{dollars(float(month))} per month{note}"
        tell(f"bucket {one.bucket}: {counted(one.count, 'object')}, {size(one.size)} to delete: {price}")
    else:
        tell(f"bucket {one.bucket}: nothing to delete")
    for data in one.jobs:
        if not data.end:
            say(f"stays, {printable(f'{data.job_id}: {data.why}')}")
    if one.trouble:
        say(one.trouble)


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.4f}"


def _question(found: Survey, *, text: bool) -> str:
    """``text``: they are listed above already."""
    listed = "" if text else f" ({printable(', '.join(v.thing.thing_id for v in found.ending))})"
    return f"End {counted(len(found.ending), 'thing')}{listed} ({dollars(float(_total(found)))} per hour) for good?"


def _data_question(one: Hoard) -> str:
    return f"Delete {counted(one.count, 'object')}, {size(one.size)}, from bucket {one.bucket} for good?"


def _say_ended(found: Survey, left: tuple[Left, ...]) -> None:
    tell(f"{counted(len(found.ending) - len(left), 'thing')} ended and seen gone", err=True)
    for one in left:
        say(f"still there: {one.verdict.thing.kind} {one.verdict.thing.thing_id}: {printable(one.why)}")


def _say_next(found: Survey, hoards: list[Hoard], cloud: str, *, dry_run: bool, data: bool) -> None:
    flags = " --cloud local" if cloud == "local" else ""
    more = " --data" if data else ""
    if dry_run and (found.ending or any(one.count for one in hoards)):
        say(f"next: `cloudtrain gc{flags}{more}` ends them; jobs stay in `cloudtrain ls`")
    elif not data:
        say(f"next: `cloudtrain gc{flags} --data --dry-run` shows what ended jobs keep in the bucket")
    else:
        say("next: `cloudtrain ls`")


def _document(cloud: str, found: Survey, hoards: list[Hoard], left: tuple[Left, ...], *, dry_run: bool) -> Cleared:
    still = {(one.verdict.thing.kind, one.verdict.thing.thing_id): one.why for one in left}
    things: list[Leftover] = [
        {
            "id": v.thing.thing_id,
            "kind": v.thing.kind,
            "what": _what(v),
            "region": v.thing.region,
            "job": v.job_id or None,
            "usd_per_hour": _float(usd_per_hour(v.thing)),
            "end": v.end,
            "why": v.why,
            "left": still.get((v.thing.kind, v.thing.thing_id)),
        }
        for v in found.verdicts
    ]
    stored: list[StaleData] = [
        {
            "bucket": one.bucket,
            "job": d.job_id,
            "objects": len(d.keys),
            "bytes": d.size,
            "usd_per_month": _float(usd_per_month(one.region, d.size)),
            "end": d.end,
            "why": d.why,
        }
        for one in hoards
        for d in one.jobs
    ]
    unused = [item for one in hoards for item in one.files]
    return {
        "schema_version": SCHEMA_VERSION,
        "cloud": cloud,
        "simulated_prices": cloud == "local",
        "dry_run": dry_run,
        "things": things,
        "usd_per_hour": float(_total(found)),
        "usd_per_month": float(_total(found) * HOURS_PER_MONTH),
        "data": stored,
        "unused_files": len(unused),
        "unused_bytes": sum(item.size for item in unused),
        "troubles": [*found.troubles, *(one.trouble for one in hoards if one.trouble)],
    }


def _float(usd: Decimal | None) -> float | None:
    return None if usd is None else float(usd)
