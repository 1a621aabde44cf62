"""How things are said on a terminal: money, durations, sizes, times, and text that others wrote."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from datetime import UTC, datetime

import click

HINTS_OFF_ENV = "CLOUDTRAIN_DEMO"  # the demo's own commands: what they would advise is gone when it ends
_WORD = re.compile(r"(\s*)((?:`[^`]*`|\S)+)")
SIMULATED = "local, simulated prices"  # beside whatever the embedded cloud says of money


def say(text: str = "") -> None:
    """One line on stderr: progress, warnings, what to do next. Results go to stdout."""
    if text.startswith("next: ") and HINTS_OFF_ENV in os.environ:
        return
    tell(text, err=True)


def tell(text: str = "", *, err: bool = False) -> None:
    """Lines for a person, broken between words where they go to a terminal that is narrower."""
    room = columns(err=err)
    click.echo(text if room is None else fit(text, room), err=err)


def columns(*, err: bool = False) -> int | None:
    """How wide the terminal is that results (or what is said) go to; None where they go elsewhere."""
    return shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None


def fit(text: str, room: int) -> str:
    """Lines broken at blanks so that they are no wider than ``room``.

    What stands in backticks is there to be copied: it stays in one piece, and so does a word that is wider.
    """
    return "\n".join(_broken(line, room) if len(line) > room else line for line in text.split("\n"))


def _broken(line: str, room: int) -> str:
    further = " " * (len(line) - len(line.lstrip()) + 2)
    lines = [""]
    for match in _WORD.finditer(line):
        blanks, word = match.groups()
        if lines[-1].strip() and len(lines[-1]) + len(blanks) + len(word) > room:
            lines.append(further + word)
        else:
            lines[-1] += blanks + word
    return "\n".join(lines)


def heed_no_ctrl_c() -> None:
    """From here on to the end of the command: its last words, and what it clears away, are not cut off by another
    Ctrl-C, nor does Python complain of one while it shuts down. Only for what takes a moment."""
    if threading.current_thread() is threading.main_thread():  # signals are the main thread's
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def printable(text: str) -> str:
    """Text that came from elsewhere (a machine, a file name), without what could steer the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def duration(seconds: float) -> str:
    """42s, 3m07s, 2h05m, 3d04h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def dollars(usd: float) -> str:
    """Cents from one dollar on, ten-thousandths below: a minute on a small machine costs less than a cent."""
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def size(count: int) -> str:
    """12 B, 3.4 KiB, 56.7 MiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def clock_time(at: float) -> str:
    """Hours, minutes and seconds where the person sits."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S")


def counted(number: int, noun: str) -> str:
    """1 file, 2 files."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
