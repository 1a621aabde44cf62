"""Ctrl-C to ``launch`` at each external effect of a launch, once and twice 50 ms apart, on a terminal and without:
``python -m tests.faults.interrupts --json``.

What must hold: the command ends at once (on a terminal it asks, and "detach" is answered); it leaves nothing, or a job
that goes on by itself and whose last words name the exact command that ends it and what its machine costs an hour; no
traceback; and once the job is over nothing is left, as ``kill_points`` checks it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.points import Point, fired
from tests.faults.stage import Stage, faults_of, options_of, record_points, try_each

END_S = 20.0
QUESTION = b"Detach or stop?"


@dataclass(frozen=True)
class Case:
    """One way to press Ctrl-C."""

    point: Point
    twice: bool
    terminal: bool

    def __str__(self) -> str:
        return (
            f"{self.point}, {'twice' if self.twice else 'once'}, {'on a terminal' if self.terminal else 'no terminal'}"
        )


@dataclass
class Try:
    """What came of it."""

    case: Case
    met: bool
    stored: bool
    wrong: list[str]
    seconds: float


def one_try(stage: Stage, case: Case) -> Try:
    """Launch, press, read what is said, wait for the job, look at everything."""
    started = time.monotonic()
    person = stage.person
    known = {s.record.job_id for s in person.stored()}
    folders = {path.name for path in (person.home / "jobs").glob("*")}
    pid_file = stage.folder / "launch.pid"
    pid_file.unlink(missing_ok=True)
    action = "int2" if case.twice else "int"
    plan = stage.plan(case.point, action, str(pid_file) if case.point.role == "controller" else "")
    words = ["launch", str(stage.job), "--cloud", "local", "--yes"]
    process, output = _start(stage, words, terminal=case.terminal, pid_file=pid_file)
    said = _read(process, output)
    met, wrong = fired(plan), []
    stage.plan(None)
    if process.returncode is None or process.returncode < 0:
        wrong.append(f"launch ended with {process.returncode}")
    if "Traceback" in said or "KeyboardInterrupt" in said or "fault of cloudtrain" in said:
        wrong.append(f"it printed {said[-600:]!r}")
    new = [s.record.job_id for s in person.stored() if s.record.job_id not in known]
    if new:
        wrong += _last_words(said, new[0]) if met else []
        person.ok("ls")
        stage.settled(new[0])
        wrong += faults_of(stage, new[0])
    else:
        wrong += [] if met else ["no job, and no Ctrl-C"]
        wrong += [f"{m['instance_id']} lives" for m in person.machines()]
        wrong += [f"folder {p.name} is left" for p in (person.home / "jobs").glob("*") if p.name not in folders]
    return Try(case, met, bool(new), wrong, time.monotonic() - started)


def _last_words(said: str, job_id: str) -> list[str]:
    """What somebody who pressed Ctrl-C must have been told of a job that goes on."""
    flat = " ".join(said.split())
    if re.search(rf"job {job_id}(?: is)? (?:SUCCEEDED|FAILED)", flat):
        return []  # it was over by then
    wanted = {"the command that ends it": f"`cloudtrain down {job_id}`", "what it costs an hour": "$/hour"}
    last = flat.rpartition(f"job {job_id} goes on by itself")[2]
    return [f"{what} is not told: {flat[-300:]!r}" for what, words in wanted.items() if words not in last]


def _start(stage: Stage, words: list[str], *, terminal: bool, pid_file: Path) -> tuple[subprocess.Popen[bytes], int]:
    person = stage.person
    if terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*person.command, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=person.env | {"TERM": "xterm"},
            cwd=person.home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )
        os.close(theirs)
    else:
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            [*person.command, *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=person.env,
            cwd=person.home,
        )
        os.close(theirs)
    pid_file.write_text(str(process.pid))
    return process, ours


def _read(process: subprocess.Popen[bytes], output: int) -> str:
    """All that it prints; a question is answered with "detach"."""
    said, answered = b"", False
    give_up = time.monotonic() + 120.0
    while time.monotonic() < give_up:
        if select.select([output], [], [], 0.2)[0]:
            try:
                chunk = os.read(output, 65536)
            except OSError:  # a terminal whose last process has left
                break
            if not chunk:
                break
            said += chunk
        elif process.poll() is not None:
            break
        if QUESTION in said and not answered:
            answered = True
            os.write(output, b"detach\n")
    os.close(output)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        said += b"\nit did not end"
    return said.decode(errors="replace")


def cases(points: Sequence[Point]) -> list[Case]:
    """Before each effect, in each of the four ways. After one is before the next."""
    before = [p for p in points if p.moment == "before"]
    return [Case(p, twice, terminal) for p in before for twice in (False, True) for terminal in (False, True)]


def summary(tries: Sequence[Try], known: int, seconds: float) -> dict[str, Any]:
    """For --json."""
    bad = [t for t in tries if t.wrong]
    return {
        "cases": known,
        "tried": len(tries),
        "met": sum(t.met for t in tries),
        "left_a_job": sum(t.stored for t in tries),
        "clean": sum(not t.wrong for t in tries),
        "faults": [{"case": str(t.case), "wrong": t.wrong} for t in bad],
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Returns 1 where a try is not clean."""
    options = options_of(__doc__, "cases")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-ctrl-c-") as folder:
        stage = Stage(Path(folder))
        try:
            known = cases(record_points(stage))
            tries = try_each(stage, known, one_try, options)
        finally:
            stage.leave()
    told = summary(tries, len(known), time.monotonic() - started)
    print(json.dumps(told) if options.json else f"{told['clean']} of {told['tried']} clean")
    return int(bool(told["faults"]))


if __name__ == "__main__":
    sys.exit(main())
