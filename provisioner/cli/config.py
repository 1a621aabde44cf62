"""``cloudtrain config``: what flags are when nobody types them."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cloudtrain.provisioner import report, settings
from cloudtrain.provisioner.cli import tables
from cloudtrain.provisioner.cli.words import say
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import home_folder
from cloudtrain.provisioner.settings import DEFAULTS, KEYS, Sources


@click.group("config", short_help="Defaults for flags: show, set, unset.")
def command() -> None:
    """Defaults for flags: show, set, unset.

    A flag wins over the variable CLOUDTRAIN_<KEY>, that over the project's cloudtrain.yaml (the nearest, from the
    current folder upwards), and that over your own config.yaml. AWS's own variables and profiles are not touched.

    \b
    Example:
      cloudtrain config set region us-west-2
    """


@command.command("show", short_help="What is set.")
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print it.")
def show(origin: bool, output: str) -> None:
    """What is set, as commands started here would see it.

    \b
    Examples:
      cloudtrain config show --origin
      cloudtrain config show -o json
    """
    found = Sources.here().found()
    if output == "json":
        click.echo(tables.one_object(report.configured(found, DEFAULTS)))
        return
    rows = []
    for key in KEYS:
        value = found[key].value if key in found else DEFAULTS.get(key)
        rows.append((key, value, *((found[key].origin if key in found else "default",) if origin else ())))
    click.echo(tables.table(rows, ("key", "value", *(("from",) if origin else ()))))
    say("next: `cloudtrain config set KEY VALUE`, or see `cloudtrain config path`")


@command.command("path", short_help="The files that are read, and where state is kept.")
def path() -> None:
    """The files that are read, and where state is kept.

    \b
    Example:
      cloudtrain config path
    """
    sources = Sources.here()
    project = sources.project or f"no {settings.PROJECT_FILE} from here upwards"
    user = f"{sources.user}{'' if sources.user.is_file() else ' (not there yet)'}"
    for name, what in (("project", project), ("user", user), ("state", home_folder())):
        click.echo(f"{name:8} {what}")


@command.command("set", short_help="Set a default of your own.")
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
def set_(key: str, value: str) -> None:
    """Set a default of your own, for every project that does not set it.

    \b
    Keys:
      cloud    aws or local                           (--cloud)
      region   where, if the job file does not say    (--region)
      bucket   the bucket, without s3://              (--bucket)
      output   table or json                          (--output)

    \b
    Example:
      cloudtrain config set cloud local
    """
    _known(key)
    if problem := settings.refusal(key, value):
        raise UsageError(problem)
    user = Sources.here().user
    _write(user, key, value)
    click.echo(f"{key}: {value}")
    _hidden_by(key, user)


@command.command("unset", short_help="Take a default of your own out.")
@click.argument("key", metavar="KEY")
def unset(key: str) -> None:
    """Take a default of your own out.

    \b
    Example:
      cloudtrain config unset cloud
    """
    _known(key)
    user = Sources.here().user
    before = user.read_text(encoding="utf-8") if user.is_file() else ""
    if settings.edited(before, key, None) == before:
        say(f"{key} is not set in {user}; nothing changed")
        return
    _write(user, key, None)
    click.echo(f"{key} is not set any more")
    _hidden_by(key, user)


def _known(key: str) -> None:
    if key not in KEYS:
        raise UsageError(settings.unknown(key))


def _write(path: Path, key: str, value: str | None) -> None:
    """Replace the file whole, so that a full disk leaves the old one. Raises UsageError where it was wrong before."""
    before = ""
    if path.is_file():
        settings.read(path)
        before = path.read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(settings.edited(before, key, value), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _hidden_by(key: str, user: Path) -> None:
    """Say where something else still decides."""
    now = Sources.here().found().get(key)
    if now is not None and not now.origin.startswith(f"{user}:"):
        say(f"here {now.origin} decides: {key} is {now.value}")
    else:
        say("next: `cloudtrain config show --origin`")
