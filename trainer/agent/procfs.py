"""The process table, from /proc, and who in it belongs to the job. Linux.

A job's processes are those of its process group or session, and those that left both (torchrun starts its workers in
sessions of their own) but were started with the job's environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torchrun")


@dataclass(frozen=True)
class Process:
    """One living process. ``marked``: it was started with the job's environment."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    name: str
    argv: tuple[str, ...] = ()
    marked: bool = False
    cpu_s: float = 0.0  # used so far, by itself and the children that it has waited for

    @property
    def passes_nothing_on(self) -> bool:
        """A shell dies of SIGTERM before its child has saved; torchrun without --shutdown-timeout kills its workers
        30 s after one (pytorch#119856). Their children are the ones to tell."""
        return self.name in SHELLS or any(
            word in _LAUNCHERS or word.endswith("/torchrun") for word in self.argv[1:4] + self.argv[:1]
        )


def read_table(marks: Sequence[str] = (), proc: Path = Path("/proc")) -> tuple[Process, ...]:
    """Every process that lives; zombies do not. ``marks``: NAME=value pairs of the environment, all of which make a
    process ``marked``. One that ends meanwhile, or that may not be looked into, is left out or unmarked."""
    wanted = {mark.encode() for mark in marks}
    table = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # proc(5): pid (comm) state ppid pgrp session …; comm may hold blanks and brackets.
        name = text[text.index("(") + 1 : text.rindex(")")]
        words = text[text.rindex(")") + 2 :].split()
        state, ppid, pgid, sid = words[:4]
        if state in "ZX":
            continue
        argv = tuple(_read(entry / "cmdline").decode(errors="replace").split("\0")[:-1])
        marked = bool(wanted) and wanted <= set(_read(entry / "environ").split(b"\0"))
        cpu_s = sum(int(ticks) for ticks in words[11:15]) / _TICKS_PER_S  # utime stime cutime cstime
        table.append(Process(int(entry.name), int(ppid), int(pgid), int(sid), name, argv, marked, cpu_s))
    return tuple(table)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def members(table: Iterable[Process], leader: int | None, *, excluded: Collection[int] = ()) -> tuple[Process, ...]:
    """The job's processes: of the group or session that ``leader`` founded, or marked."""
    return tuple(
        p for p in table if p.pid not in excluded and (p.marked or (leader is not None and leader in (p.pgid, p.sid)))
    )


def stop_targets(job: Iterable[Process]) -> tuple[int, ...]:
    """Who gets SIGTERM: on each path down from the job's roots the first process that is no shell and no torchrun,
    never its children (a loader worker that dies takes the save with it). A shell without children is told itself."""
    job = tuple(job)
    pids = {p.pid for p in job}
    targets: list[int] = []
    open_ends = [p for p in job if p.ppid not in pids]
    while open_ends:
        process = open_ends.pop()
        children = [p for p in job if p.ppid == process.pid]
        if process.passes_nothing_on and children:
            open_ends.extend(children)
        else:
            targets.append(process.pid)
    return tuple(sorted(targets))
