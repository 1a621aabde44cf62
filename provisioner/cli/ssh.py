"""``cloudtrain ssh``: the system's ssh to a job's machine, with the key that was pinned before it booted."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from cloudtrain.provisioner.cli import sshing
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.jobs import open_store
from cloudtrain.provisioner.cli.words import counted, say
from cloudtrain.provisioner.errors import EXIT_OK, NotFound, UsageError
from cloudtrain.provisioner.home import Home, write_private

INCLUDE = "Include cloudtrain/*.conf"  # relative to ~/.ssh; only at the top does it hold for every host


@click.command("ssh", short_help="Open a shell on a job's machine, or run a command there.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Another attempt's machine.")
@click.option("--config", is_flag=True, help="Print an entry for ~/.ssh/config instead.")
@click.option("--write", is_flag=True, help="With --config: put the entry where ssh finds it.")
def command(job: str, words: tuple[str, ...], attempt: int | None, config: bool, write: bool) -> int:
    """Open a shell on a job's machine, or run a command there.

    Starts in the job's folder, with the image's Python. The exit code is the command's; one word after `--` may be a
    whole shell line. With --config --write, `ssh cloudtrain-JOB` works too, and so do scp, rsync and editors; the entry
    goes when the job is over and the command is given again.

    \b
    Examples:
      cloudtrain ssh digits
      cloudtrain ssh digits -- nvidia-smi
      cloudtrain ssh digits --config --write
    """
    if write and not config:
        raise UsageError("--write goes with --config; see `cloudtrain ssh --help`")
    if config and words:
        raise UsageError("--config runs no command; leave `-- COMMAND` out")
    program = sshing.require_ssh()
    home = Home.from_env()
    if config:
        return _config(home, job, attempt, write=write)
    way = sshing.way_to(home, job, attempt)
    terminal = "-t" if sys.stdin.isatty() and sys.stdout.isatty() else "-T"
    return _become([program, "-F", str(way.config), terminal, way.alias, remote_line(words, way.venv)])


def _become(command_line: list[str]) -> NoReturn:
    """Run in our place: ssh has the terminal, its signals and the exit code to itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command_line[0], command_line)  # noqa: S606 - no shell; every word is ours or meant for the machine


def remote_line(words: tuple[str, ...], venv: str | None) -> str:
    """What the login shell there is given: the job's folder, its Python, then the command or a shell."""
    line = "cd ~/cloudtrain/work 2>/dev/null; "
    if venv is not None:
        activate = shlex.quote(f"{venv}/bin/activate")
        line += f"[ ! -f {activate} ] || . {activate}; "
    if not words:
        return line + 'exec "${SHELL:-/bin/sh}" -i'
    return line + (words[0] if len(words) == 1 else shlex.join(words))


def _config(home: Home, job: str, attempt: int | None, *, write: bool) -> int:
    folder = Path.home() / ".ssh" / "cloudtrain"
    _forget_ended(home, folder)
    way = sshing.way_to(home, job, attempt)
    if not write:
        click.echo(way.entry, nl=False)
        say(f"next: `cloudtrain ssh {way.job_id} --config --write` puts it where ssh finds it")
        return EXIT_OK
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = folder / f"{way.job_id}.conf"
    write_private(entry, way.entry)
    say(f"wrote {entry}")
    config = folder.parent / "config"
    if _include(config):
        say(f"wrote `{INCLUDE}` at the top of {config}")
    click.echo(way.alias)
    say(f"next: `ssh {way.alias}`, also in scp, rsync and editors; after an interruption give this command again")
    return EXIT_OK


def _forget_ended(home: Home, folder: Path) -> None:
    """Remove the entries of jobs that are over. Those of another home are left alone."""
    store, gone = open_store(home), 0
    for entry in sorted(folder.glob("*.conf")):
        try:
            over = store.get(entry.stem).record.status.final
        except NotFound:
            continue
        if over:
            entry.unlink(missing_ok=True)
            gone += 1
    if gone:
        say(f"removed {counted(gone, 'ssh entry') if gone == 1 else f'{gone} ssh entries'} of jobs that are over")


def _include(config: Path) -> bool:
    """See that ssh reads our entries; whether the line had to be added. A linked file stays a link."""
    config = config.resolve()
    text = config.read_bytes().decode("utf-8", "surrogateescape") if config.exists() else ""  # it goes back as it was
    if any(line.strip() == INCLUDE for line in text.splitlines()):
        return False
    mode = config.stat().st_mode & 0o777 if config.exists() else 0o600
    write_private(config, f"{INCLUDE}\n\n{text}" if text else f"{INCLUDE}\n")
    config.chmod(mode)
    return True
