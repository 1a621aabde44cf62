"""``cloudtrain local demo``: the whole story on this computer, told by the real commands."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import click

from cloudtrain.provisioner.cli.words import HINTS_OFF_ENV, SIMULATED
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.localcloud import client

WANTED_ACCURACY = 0.97
INTERRUPT_AT_STEP = 500
NOTICE = "10s"


@click.command("demo", short_help="Show the whole story: launch, interruption, resume, bill.")
def demo() -> None:
    """Show the whole story on this computer, in about a minute and a state folder of its own.

    Trains on real images, takes the machine away in the middle with a ten-second notice, and checks what came home:
    no step lost, the accuracy, nothing left running.

    \b
    Example:
      cloudtrain local demo
    """
    with tempfile.TemporaryDirectory(prefix="cloudtrain-demo-") as folder, as_file(_job_file()) as job_file:
        story = _Story(Path(folder))
        try:
            story.tell("A cloud of this computer's own: no account, no money.", "local", "up")
            story.tell(
                f"It will take the job's machine away at step {INTERRUPT_AT_STEP}, as EC2 does with spot machines.",
                *("local", "interrupt", "digits", "--at-step", str(INTERRUPT_AT_STEP), "--notice", NOTICE),
            )
            story.tell(
                "Launch. Watch for the notice, the last checkpoint, and the next machine.",
                *("launch", str(job_file), "--cloud", "local", "--yes", "--into", str(Path(folder) / "results")),
            )
            story.tell("What is left running?", "local", "status")
            lines = _checked(story)
        finally:
            story.run("local", "down", "--yes", quiet=True)
    click.echo("")
    for line in lines:
        click.secho(f"  ✓ {line}", fg="green")
    click.echo("\nnext: `cloudtrain launch templates/digits.yaml --cloud local`, then a job file of your own (README)")


def _job_file() -> Any:
    return files("cloudtrain") / "templates" / "digits.yaml"


class _Story:
    """Runs commands as a person would, each shown before its output."""

    def __init__(self, folder: Path) -> None:
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("CLOUDTRAIN_")}
        self._folder = folder
        self.home = folder / "home"
        self._env["CLOUDTRAIN_HOME"] = str(self.home)
        self._env["XDG_CONFIG_HOME"] = str(folder / "config")  # nobody's own defaults
        self._env[HINTS_OFF_ENV] = "1"

    def tell(self, words: str, *arguments: str) -> None:
        """Say what comes, show the command, run it. Raises CloudtrainError where it fails."""
        click.secho(f"\n{words}", bold=True)
        click.secho(f"$ cloudtrain {shlex.join(arguments)}", fg="cyan")
        code = self.run(*arguments)
        if code != 0:
            raise CloudtrainError(f"the demo stops: `cloudtrain {shlex.join(arguments)}` ended with {code}")

    def run(self, *arguments: str, quiet: bool = False) -> int:
        """Run a command on this terminal; returns its exit code."""
        sink = subprocess.DEVNULL if quiet else None
        command = [sys.executable, "-m", "cloudtrain.provisioner.cli.main", *arguments]
        done = subprocess.run(command, env=self._env, cwd=self._folder, stdout=sink, stderr=sink, check=False)  # noqa: S603 - our own command
        return done.returncode

    def ask(self, *arguments: str) -> Any:
        """The JSON object that a command prints."""
        command = [sys.executable, "-m", "cloudtrain.provisioner.cli.main", *arguments, "-o", "json"]
        done = subprocess.run(command, env=self._env, cwd=self._folder, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own command
        return json.loads(done.stdout)


def _checked(story: _Story) -> list[str]:
    """What the story promised, each seen to hold. Raises CloudtrainError for the first that does not."""
    job = story.ask("ls")["jobs"][0]["job"]
    report = story.ask("show", job)
    cloud = client.find(story.home / "local")
    machines = [m for m in client.status(cloud)["machines"] if m["state"] != "terminated"] if cloud else ["no cloud"]
    accuracy = report["metrics"]["accuracy"]
    pools = [attempt["pool"] for attempt in report["attempts"]]
    promises = {
        f"succeeded after {report['interruptions']} interruption": report["interruptions"] == 1,
        f"{report['lost_steps']} of {report['steps']} steps lost": report["lost_steps"] == 0,
        f"moved from {pools[0]} to {pools[-1]}": pools[0] != pools[-1],
        f"test accuracy {accuracy:.1%}": accuracy >= WANTED_ACCURACY,
        f"bill ${report['usd']:.4f} ({SIMULATED})": report["usd"] > 0,
        f"{len(machines)} machines left running": not machines,
    }
    for promise, holds in promises.items():
        if not holds:
            raise CloudtrainError(f"the demo's promise does not hold: {promise}; please report it")
    return list(promises)
