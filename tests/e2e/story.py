"""A person at a terminal, for end-to-end tests: the real command, in processes of its own, in a home of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.provisioner import report
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.cli.jobs import live_view
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.ports import Stored
from tests import forms

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "templates" / "digits.yaml"
PATIENCE_S = 120.0
COMMAND = (sys.executable, "-m", "cloudtrain.provisioner.cli.main")


@dataclass
class Said:
    """What a command printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The object on the last line of stdout."""
        return json.loads(self.out.strip().splitlines()[-1])


@dataclass
class Person:
    """Runs commands in one home."""

    home: Path
    command: tuple[str, ...] = COMMAND
    cwd: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """A plain environment: nothing of the machine's own AWS set-up."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CLOUDTRAIN_"))}
        mine = {"CLOUDTRAIN_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config")}
        return {**kept, **mine, "NO_COLOR": "1", "COLUMNS": "80", **self.extra}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.cwd or self.home,
        )

    def wait(self, process: subprocess.Popen[str]) -> Said:
        """What a started command printed once it has ended; one that does not end is killed, and fails the test."""
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{process.args!r} did not end in {PATIENCE_S:.0f} s:\n{out}\n{err}") from None
        return Said(process.returncode, out, err)

    def run(self, *arguments: str) -> Said:
        """Run a command to its end."""
        said = self.wait(self.start(*arguments))
        forms.check(arguments, said.out)
        return said

    def ok(self, *arguments: str) -> Said:
        """Run a command that must succeed."""
        said = self.run(*arguments)
        assert said.code == 0, f"{arguments}: {said}"
        return said

    def launch(self, job: Path, *flags: str) -> Any:
        """Launch, follow to the end, and return the final report; the job must succeed."""
        return self.ok("launch", str(job), "--cloud", "local", "--yes", "-o", "json", *flags).json()

    def cloud(self) -> client.LocalCloud:
        """The embedded cloud of this home."""
        found = client.find(Path(self.extra.get("CLOUDTRAIN_LOCAL_HOME", self.home / "local")))
        assert found is not None
        return found

    def machines(self) -> list[dict[str, Any]]:
        """Machines of the embedded cloud that are not terminated."""
        return [m for m in client.status(self.cloud())["machines"] if m["state"] != "terminated"]

    def rows(self) -> list[dict[str, Any]]:
        """What ``ls`` would list, newest first, without the cost of a command: for waiting. It brings no controller
        back."""
        store, now = SqliteStore(self.home / "jobs.db"), time.time()
        stored = reversed(store.list())
        return [dict(report.listed(s.record, live_view(store, s.record.job_id), now)) for s in stored]

    def stored(self) -> tuple[Stored, ...]:
        """What the store holds, oldest first: for tests that look at records themselves."""
        return SqliteStore(self.home / "jobs.db").list()

    def jobs(self) -> list[dict[str, Any]]:
        """What ``ls`` lists."""
        listed: list[dict[str, Any]] = self.ok("ls", "-o", "json").json()["jobs"]
        return listed

    def kill_controller(self) -> bool:
        """kill -9; whether there was one."""
        try:
            os.kill(int((self.home / "controller.pid").read_text()), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return False
        return True

    def leave(self) -> None:
        """End everything that this home started."""
        self.run("local", "down", "--yes")
        self.kill_controller()


def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something to hold. Most looks are commands, in processes of their own: they leave the processors free
    for twice the time that they took, for what is waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        looked_at = time.monotonic()
        if holds():
            return
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for: {what}"
        time.sleep(min(1.0, max(0.05, 2 * (time.monotonic() - looked_at))))


def counting_job(folder: Path, *, steps: int = 2000) -> Path:
    """A job named "count" that needs no torch: for what is not about training. It takes its time, a second for 20
    steps, until ``hurry`` is called."""
    work = folder / "work"
    work.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("count.py"), work)
    path, hold = work / "job.yaml", _hold(folder)
    hold.touch()
    path.write_text(
        "name: count\n"
        "resources: {accelerators: 'T4:1', use_spot: true, memory: 16+}\n"
        "workdir: .\n"
        f"run: python count.py {steps} {shlex.quote(str(hold))}\n"
        "checkpoint: {interval: 10 steps, keep: 3}\n"
    )
    return path


def hurry(folder: Path) -> None:
    """Let the counting job of a folder go on as fast as it can."""
    _hold(folder).unlink()


def _hold(folder: Path) -> Path:
    return folder / "hold"


def digits_job(
    path: Path, *, epochs: int = 8, options: str = "", run: str | None = None, interval: str = "50 steps"
) -> Path:
    """A short digits job file."""
    command = run or f"python -m cloudtrain.trainer --epochs {epochs} --seed 7 {options}"
    text = "".join(f"  {line}\n" for line in command.splitlines())
    path.write_text(
        "name: digits\n"
        "resources: {accelerators: 'T4:1', use_spot: true, memory: 16+}\n"
        f"run: |\n{text}"
        f"checkpoint: {{interval: {interval}, keep: 3}}\n"
    )
    return path
