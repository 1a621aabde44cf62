"""Find and end processes by a mark in their environment, the only bond that ``setsid`` does not cut.

A process that wipes its environment is still found while its parent, or any ancestor of it, carries the mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

_PROC = Path("/proc")
_GIVE_UP_S = 10.0  # after SIGKILL; what is left by then hangs in the kernel, and nothing can end it


def marked(name: str, value: str) -> set[int]:
    """The ids of live processes that were started with ``name=value`` in their environment, and of all below them.

    Never this process. Those of other users are not seen, and could not be ended.
    """
    if sys.platform == "linux":
        found, parents = _scan_proc(f"{name}={value}".encode())
    else:
        found, parents = _scan_psutil(name, value)
    return _with_descendants(found, parents) - {os.getpid()}


def descendants(pid: int) -> set[int]:
    """The ids of all live processes below ``pid``, which is not among them."""
    _, parents = _scan_proc(None) if sys.platform == "linux" else _scan_psutil(None, "")
    return _with_descendants({pid}, parents) - {pid, os.getpid()}


def named(pids: Iterable[int], prefix: str) -> set[int]:
    """Those of the processes whose program's name begins with ``prefix``."""
    import psutil  # noqa: PLC0415 - only sshd hosts ask

    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).name().startswith(prefix):
                found.add(pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; those that are gone, or not ours, are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(find: Callable[[], set[int]], *, grace_s: float) -> set[int]:
    """SIGTERM what ``find`` finds, SIGKILL what it still finds ``grace_s`` later, again until it finds nothing.

    Returns what could not be ended: empty, but for processes that hang in the kernel. Zero grace is SIGKILL at once.
    """
    if grace_s > 0:
        asked: set[int] = set()
        deadline = time.monotonic() + grace_s
        while (found := find()) and time.monotonic() < deadline:
            send(found - asked, signal.SIGTERM)
            asked |= found
            time.sleep(min(0.02, grace_s))
    deadline = time.monotonic() + _GIVE_UP_S
    while (found := find()) and time.monotonic() < deadline:
        send(found, signal.SIGKILL)
        time.sleep(0.005)
    return found


def _with_descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    children = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    seen: set[int] = set()
    rest = list(roots)
    while rest:
        pid = rest.pop()
        if pid not in seen:
            seen.add(pid)
            rest.extend(children[pid])
    return seen


def _scan_proc(mark: bytes | None) -> tuple[set[int], dict[int, int]]:
    """The marked processes, and the parent of every live one. ``None`` marks nothing."""
    found: set[int] = set()
    parents: dict[int, int] = {}
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            # proc(5): "pid (comm) state ppid ..."; comm may hold spaces and brackets, so count from the last one.
            state, parent = (_PROC / entry.name / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state in (b"Z", b"X"):  # dead, waiting for its parent to notice
                continue
            parents[pid] = int(parent)
            if mark is not None and mark in (_PROC / entry.name / "environ").read_bytes().split(b"\0"):
                found.add(pid)
        except OSError:  # ended meanwhile, or another user's
            continue
    return found, parents


def _scan_psutil(name: str | None, value: str) -> tuple[set[int], dict[int, int]]:
    """The same as ``_scan_proc`` where there is no /proc."""
    import psutil  # noqa: PLC0415 - not needed on Linux, where the guardian should start fast

    found: set[int] = set()
    parents: dict[int, int] = {}
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[process.pid] = process.ppid()
            if name is not None and process.environ().get(name) == value:
                found.add(process.pid)
        except (psutil.Error, OSError):
            continue
    return found, parents
