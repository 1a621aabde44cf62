"""``cloudtrain setup``: what jobs need in an account, made, printed or taken away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click

from cloudtrain.provisioner.account import setup_template
from cloudtrain.provisioner.account.setup_plan import Document, Wanted, wanted
from cloudtrain.provisioner.adapters import account_teardown
from cloudtrain.provisioner.adapters.account_parts import account, parts
from cloudtrain.provisioner.adapters.account_setup import Account, Part, Seen, State, carry_out, find_bucket, survey
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.words import counted, printable, say, tell
from cloudtrain.provisioner.errors import AccessError, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.launch import adopting
from cloudtrain.provisioner.launch.access import Access, Entry, enter

_WORDS = {
    State.THERE: "there",
    State.MISSING: "make",
    State.DIFFERS: "mend",
    State.FOREIGN: "skip",
    State.UNSEEN: "skip",
}
_BY_ADMINISTRATOR = "an administrator can, with what `cloudtrain setup --print cloudformation` prints"


@click.command("setup", short_help="Make what jobs need in your AWS account: a bucket and a role.")
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Which cloud.")
@click.option("--region", metavar="REGION", help="Where the bucket is to be.  [default: your profile's]")
@click.option("--read", "reads", metavar="S3_URL", multiple=True, help="Data that machines may read too; repeatable.")
@click.option("--ssm", is_flag=True, help="Let machines be reached through Session Manager.")
@click.option("--kms-key", metavar="ARN", help="Your KMS key for the bucket, and for volumes that jobs name it for.")
@click.option(
    "--print",
    "printed",
    type=click.Choice(["cloudformation", "policies"]),
    help="Make nothing: print a template, or every policy, for an administrator.",
)
@click.option("--account", "account_id", metavar="ID", help="With --print: for this account, without credentials.")
@click.option("--destroy", is_flag=True, help="Take away what setup made, where it is empty.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
def command(
    cloud: str,
    region: str | None,
    reads: tuple[str, ...],
    ssm: bool,
    kms_key: str | None,
    printed: str | None,
    account_id: str | None,
    destroy: bool,
    yes: bool,
) -> None:
    """Make what jobs need in your AWS account: a bucket and a role.

    One bucket for checkpoints, logs and outputs, the machines' role and profile, and EC2's spot role. Shows what is
    there and what would be made, and asks. Repeating it is safe. It costs nothing until jobs store something.

    Ends with 6 when something could not be made.

    \b
    Examples:
      cloudtrain setup
      cloudtrain setup --region eu-west-1 --read s3://my-data/imagenet
      cloudtrain setup --print cloudformation > stack.yaml
    """
    if destroy and (printed or reads or ssm or kms_key):
        raise UsageError("--destroy goes with --cloud, --region and --yes alone")
    if account_id is not None and printed is None:
        raise UsageError("--account goes with --print; otherwise your credentials say which account")
    if printed is not None:
        _print(printed, _wanted_on_paper(cloud, region, account_id, reads, ssm=ssm, kms_key=kms_key))
        return
    if not yes and not sys.stdin.isatty():
        raise UsageError("setup asks before it acts, and there is no terminal to ask on; add --yes")
    home = Home.from_env()
    entry = enter(cloud, home, region=region)
    it = account(entry.clients, entry.identity, _wanted(entry, reads, ssm=ssm, kms_key=kms_key))
    say(f"account {it.wanted.account}, region {it.wanted.region}, as {printable(entry.identity.arn)}")
    if destroy:
        _destroy(it, entry, home, yes=yes)
    else:
        _set_up(it, cloud, yes=yes)


def _wanted(entry: Entry, reads: Iterable[str], *, ssm: bool, kms_key: str | None) -> Wanted:
    return wanted(
        entry.identity.account,
        entry.region,
        entry.identity.owner,
        reads=reads,
        ssm=ssm,
        kms_key=kms_key,
    )


def _wanted_on_paper(
    cloud: str, region: str | None, account_id: str | None, reads: Iterable[str], *, ssm: bool, kms_key: str | None
) -> Wanted:
    if account_id is not None:
        if region is None:
            raise UsageError("--account needs --region as well: where the bucket is to be")
        return wanted(account_id, region, "", reads=reads, ssm=ssm, kms_key=kms_key)
    try:
        return _wanted(enter(cloud, Home.from_env(), region=region), reads, ssm=ssm, kms_key=kms_key)
    except AccessError as error:
        raise AccessError(f"{error}; or print without credentials: add --account ID --region REGION") from error


def _print(kind: str, it: Wanted) -> None:
    if kind == "policies":
        click.echo(json.dumps(setup_template.all_policies(it), indent=2))
        say("next: have an administrator create the role, the bucket and your rights from these")
        return
    click.echo(as_yaml(setup_template.template(it)), nl=False)
    say(
        "next: `aws cloudformation deploy --stack-name cloudtrain --capabilities CAPABILITY_NAMED_IAM "
        f"--region {it.region} --template-file FILE`"
    )


def as_yaml(document: Document) -> str:
    """A template as CloudFormation reads it."""
    import yaml  # noqa: PLC0415 - only to print

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # CloudFormation knows no aliases
            return True

    text: str = yaml.dump(document, Dumper=Plain, sort_keys=False, width=100)
    return text


def _set_up(it: Account, cloud: str, *, yes: bool) -> None:
    seen = survey(parts(it))
    doctor = f"next: `cloudtrain doctor{' --cloud local' if cloud == 'local' else ''}`"
    if all(found.state is State.THERE for found in seen.values()):
        tell(f"nothing to do: account {it.wanted.account} is set up in {it.wanted.region}")
        say(doctor)
        return
    for part, found in seen.items():
        say(_row(part, found))
    doing = [part for part, found in seen.items() if found.state in (State.MISSING, State.DIFFERS)]
    say("cost: $0 a month until jobs store something; then S3's price for what they store")
    if doing and not (yes or click.confirm(f"Make or mend {counted(len(doing), 'part')}?", default=True, err=True)):
        say("nothing was changed")
        return
    failed = 0
    for made in carry_out(seen):
        if made.trouble is None:
            tell(f"made {made.part}")
        else:
            failed += 1
            say(f"not made: {printable(made.trouble)}")
    if failed:
        raise AccessError(f"{counted(failed, 'part')} of {len(seen)} could not be made; {_BY_ADMINISTRATOR}")
    say(doctor)


def _row(part: Part, found: Seen) -> str:
    words = f"  {_WORDS[found.state]:<6} {part.what:<22} {part.name}".rstrip()
    return f"{words}\n         {printable(found.note)}" if found.note else words


def _live_jobs(entry: Entry, home: Home) -> list[str]:
    """Jobs that still need the account's parts: by their records in the bucket, whichever computer drives them; and
    those of this computer that have none there yet. One whose record was there and is gone can't go on: the bucket was
    emptied, perhaps after another computer finished it."""
    try:
        bucket = find_bucket(entry.clients, entry.identity, entry.region)
    except AccessError:
        bucket = None  # nothing of ours is in it
    known, troubles = adopting.in_bucket(Access(entry, bucket)) if bucket is not None else ((), ())
    for trouble in troubles:
        raise UsageError(f"{trouble}; whether that job lives is not known: nothing is removed")
    here = [s for s in open_store(home).list(live_only=True) if s.record.cloud == entry.cloud]
    told = {record.job_id for record in known}
    told |= {s.record.job_id for s in here if s.record.bucket == bucket and s.etag is not None}
    return [r.job_id for r in known if not r.status.final] + [
        s.record.job_id for s in here if s.record.job_id not in told
    ]


def _destroy(it: Account, entry: Entry, home: Home, *, yes: bool) -> None:
    for job in _live_jobs(entry, home):
        raise UsageError(f"job {job} is not over, and needs what setup made; end it first: `cloudtrain down {job}`")
    running = account_teardown.machines(it)
    if running:
        flags = " --cloud local" if entry.cloud == "local" else ""
        raise UsageError(
            f"machines of jobs still run: {', '.join(running)}; end them first: `cloudtrain gc --dry-run{flags}` shows "
            "those that no job owns"
        )
    found = account_teardown.removals(it)
    doomed = [removal for removal in found if removal.remove is not None]
    for removal in found:
        word = "remove" if removal.remove is not None else "keep"
        why = f"\n         {printable(removal.kept)}" if removal.kept else ""
        say(f"  {word:<6} {removal.what:<22} {removal.name}{why}")
    if not doomed:
        tell("nothing to remove")
        return
    if not (yes or click.confirm(f"Remove {counted(len(doomed), 'part')} for good?", default=False, err=True)):
        say("nothing was removed")
        return
    failed = 0
    for removal in doomed:
        trouble = account_teardown.take_away(removal)
        if trouble is None:
            tell(f"removed {removal.what} {removal.name}")
        else:
            failed += 1
            say(f"not removed: {printable(trouble)}")
    if failed:
        raise AccessError(f"{counted(failed, 'part')} could not be removed; repeat it, or use the AWS console")
