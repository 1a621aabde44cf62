"""How fast the command line feels: ``--help`` against a bare click program, ``launch`` against ``import torch``.

``python benchmarks/cli.py [--json]``. Needs nothing running; starts an embedded cloud of its own and ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _claims import Claim, interleaved_ratio, report, run_s

CLOUDTRAIN = str(Path(sys.executable).with_name("cloudtrain"))
JOB_FILE = Path(__file__).parent.parent / "templates" / "digits.yaml"
BAR = 2.5  # a person feels the difference between one wait and three
HELP_ROUNDS = 11
LAUNCH_ROUNDS = 5
FIRST_STEP_DEADLINE_S = 120.0

BARE_CLICK = '''
import click


@click.group()
def main():
    """A program that does nothing."""


@main.command()
@click.argument("name")
def greet(name):
    """Greet somebody."""


main()
'''


def clean_environment(home: Path) -> dict[str, str]:
    """This environment, with a state folder of its own and no way to an AWS account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CLOUDTRAIN_"))}
    return {**kept, "CLOUDTRAIN_HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "NO_COLOR": "1"}


def help_ratio(folder: Path) -> Claim:
    """``cloudtrain --help`` over the help of a bare click program."""
    bare = folder / "bare.py"
    bare.write_text(BARE_CLICK)
    environment = clean_environment(folder / "home")
    ratio = interleaved_ratio(
        lambda: run_s([CLOUDTRAIN, "--help"], environment),
        lambda: run_s([sys.executable, str(bare), "--help"], environment),
        HELP_ROUNDS,
    )
    return Claim("cloudtrain --help / bare click program's --help", ratio, "x", BAR)


def completion_ratio(folder: Path) -> Claim:
    """What a shell waits for when TAB is pressed after ``cloudtrain down``, over the help of a bare click program."""
    bare = folder / "bare.py"
    bare.write_text(BARE_CLICK)
    environment = clean_environment(folder / "home")
    asks = {"_CLOUDTRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "cloudtrain down d", "COMP_CWORD": "2"}
    ratio = interleaved_ratio(
        lambda: run_s([CLOUDTRAIN], {**environment, **asks}),
        lambda: run_s([sys.executable, str(bare), "--help"], environment),
        HELP_ROUNDS,
    )
    return Claim("completion of a JOB / bare click program's --help", ratio, "x", BAR)


def ask(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """The object that a cloudtrain command prints. Raises SystemExit with the command's last words where it fails."""
    done = subprocess.run([CLOUDTRAIN, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"cloudtrain {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def end(environment: dict[str, str], *arguments: str) -> None:
    """Run a command that ends something; it may have ended by itself."""
    command = [CLOUDTRAIN, *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def launch_to_first_step_s(environment: dict[str, str]) -> float:
    """Seconds from typing ``launch`` to the first training step of the digits job; the job is then ended."""
    started_at = time.time()
    job = ask(environment, "launch", str(JOB_FILE), "--cloud", "local", "--yes", "--detach", "-o", "json")["job"]
    while not (first_step_at := ask(environment, "show", job, "-o", "json").get("first_step_at")):
        if time.time() - started_at > FIRST_STEP_DEADLINE_S:
            raise TimeoutError(f"{job} made no step in {FIRST_STEP_DEADLINE_S:g} s; see `cloudtrain logs {job}`")
        time.sleep(1)  # seldom: asking takes CPU from what is measured
    end(environment, "down", job, "--yes")
    return float(first_step_at) - started_at


def launch_ratio(folder: Path) -> Claim:
    """``launch`` to first step, embedded cloud up and boot time 0, over ``import torch`` alone."""
    environment = clean_environment(folder / "home")
    subprocess.run([CLOUDTRAIN, "local", "up"], env=environment, stdout=subprocess.DEVNULL, check=True)
    try:
        ratio = interleaved_ratio(
            lambda: launch_to_first_step_s(environment),
            lambda: run_s([sys.executable, "-c", "import torch"], environment),
            LAUNCH_ROUNDS,
        )
    finally:
        end(environment, "down", "--all", "--yes")
        end(environment, "local", "down", "--yes")
    return Claim("launch --cloud local to first training step / import torch", ratio, "x", BAR)


def main() -> int:
    """Returns 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object, last")
    parser.add_argument("--only", choices=["help", "completion", "launch"], help="measure one claim")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-bench-") as folder:
        measures = {"help": help_ratio, "completion": completion_ratio, "launch": launch_ratio}
        claims = [measures[name](Path(folder)) for name in measures if options.only in (None, name)]
    return report(claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
