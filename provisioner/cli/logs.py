"""``cloudtrain logs``: what the job's ``run`` has written, byte for byte."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import click

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.cli import jobs
from cloudtrain.provisioner.cli.attend import goes_on
from cloudtrain.provisioner.cli.complete import any_job
from cloudtrain.provisioner.cli.words import printable, say
from cloudtrain.provisioner.home import Home, log_path
from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.ports import Clock, Store

POLL_S = 0.2
CHECK_EVERY_S = 3.0
CHUNK = 1 << 20


class Tail:
    """Copies the logs of a job's attempts, oldest first, as far as they go; then what was added."""

    def __init__(self, job_dir: Path, out: BinaryIO, announce: Callable[[str], None]) -> None:
        self._job_dir = job_dir
        self._out = out
        self._announce = announce
        self._offsets: dict[int, int] = {}
        self._announced: set[int] = set()

    def copy(self, record: JobRecord) -> int:
        """Write what is new; returns the number of bytes."""
        copied = 0
        for attempt in record.attempts:
            generation = attempt.generation
            path = log_path(self._job_dir, generation)
            if not path.exists():
                continue
            several = len(record.attempts) > 1
            copied += self._copy_file(
                path, generation, f"--- attempt {generation} on {attempt.pool}" if several else ""
            )
        self._out.flush()
        return copied

    def skip_to(self, lines: int, record: JobRecord) -> None:
        """Leave out all but the last lines of what there is now, counted over all attempts."""
        for attempt in reversed(record.attempts):
            path = log_path(self._job_dir, attempt.generation)
            if path.exists():
                offset, found = _last_lines(path, lines)
                lines -= found
                if offset:
                    self._offsets[attempt.generation] = offset

    def _copy_file(self, path: Path, generation: int, head: str) -> int:
        begin = self._offsets.get(generation, 0)
        copied = 0
        with path.open("rb") as file:
            file.seek(begin)
            while data := file.read(CHUNK):
                if head and generation not in self._announced:
                    self._out.flush()
                    self._announce(head)
                self._announced.add(generation)
                self._out.write(data)
                copied += len(data)
        self._offsets[generation] = begin + copied
        return copied


def _last_lines(path: Path, wanted: int) -> tuple[int, int]:
    """Where the last lines of a file begin, and how many of them there are. A file's unfinished last line is one."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        if wanted == 0 or position == 0:
            return position, 0
        found, end = 0, position
        while position > 0:
            begin = max(0, position - CHUNK)
            file.seek(begin)
            data = file.read(position - begin)
            place = len(data)
            while (place := data.rfind(b"\n", 0, place)) >= 0:
                if begin + place + 1 == end:
                    continue  # what ends the last line does not begin one
                found += 1
                if found == wanted:
                    return begin + place + 1, found
            position = begin
        return 0, found + 1


@click.command("logs", short_help="Print what a job's run has written.")
@click.argument("job", metavar="JOB", shell_complete=any_job)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
def command(job: str, follow: bool, tail: int | None) -> None:
    """Print what a job's run has written.

    JOB is an id, the beginning of one, or the name of a live job. The attempts come one after the other, from the
    copies on this computer.

    \b
    Examples:
      cloudtrain logs -f digits
      cloudtrain logs digits --tail 20
      cloudtrain logs digits-1a2b3c > digits.log
    """
    home = Home.from_env()
    store = jobs.open_store(home)
    record = jobs.find(store, job).record
    jobs.see_driven(home, [record])
    record = store.get(record.job_id).record
    log = Tail(home.root / "jobs" / record.job_id, sys.stdout.buffer, say)
    if tail is not None:
        log.skip_to(tail, record)
    copied = log.copy(record)
    if follow:
        try:
            record = watch(log, record, home=home, store=store, clock=SystemClock())
        except KeyboardInterrupt:
            say(f"\n{goes_on(record.job_id, store.get(record.job_id).record)}")
            raise
    if not copied and not follow and tail != 0:
        say("nothing was written yet")
    if record.status is JobStatus.STOPPED:
        say(f"job {record.job_id} is stopped; next: `cloudtrain resume {record.job_id}` goes on")
    elif record.status.final:
        words = f": {printable(record.detail)}" if record.detail else ""
        say(f"job {record.job_id} {record.status}{words}; next: `cloudtrain show {record.job_id}`")
    else:
        say(f"next: `cloudtrain logs -f {record.job_id}` goes on as it is written")


def watch(tail: Tail, record: JobRecord, *, home: Home, store: Store, clock: Clock) -> JobRecord:
    """Copy as it comes until the job has ended; returns its record then."""
    check_at = clock.now() + CHECK_EVERY_S
    while not (stored := store.get(record.job_id)).resting:
        clock.sleep(POLL_S)
        record = stored.record
        tail.copy(record)
        if clock.now() >= check_at:
            check_at = clock.now() + CHECK_EVERY_S
            jobs.see_driven(home, [record])
    tail.copy(stored.record)
    return stored.record
