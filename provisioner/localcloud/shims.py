"""The commands that stand in, on a local host, for those that would touch the machine it runs on.

Run as a program, ``shims.py NAME ARGUMENT...``, by the scripts in the host's home/bin. What has a meaning for a host
(power off, a power-off timer) becomes a file under the host's control folder, which the cloud reads; all else is
refused with one line. Standard library only: it runs without site-packages.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

POWEROFF = "poweroff"
TIMERS = "timers"

_CALENDAR = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_POWER_WORDS = re.compile(r"\b(poweroff|shutdown|halt|reboot)\b")
_VALUED = ("--unit", "--on-calendar", "--timer-property", "--property", "-p", "--description")
_FLAGS = ("--collect", "-G", "--quiet", "-q", "--no-block", "--no-ask-password")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+")


class Refused(Exception):
    """One line for the person who typed the command."""


def armed_timers(control: Path) -> dict[str, float]:
    """The power-off timers of a host: unit name to the time it is due, in Unix seconds."""
    timers = {}
    for path in (control / TIMERS).glob("*.json"):
        try:
            timers[path.stem] = float(json.loads(path.read_bytes())["at"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # written this moment, stopped this moment, or no timer of ours
    return timers


def _power_off(name: str, arguments: list[str], control: Path) -> None:
    flags = {word for word in arguments if word.startswith("-")}
    times = [word for word in arguments if not word.startswith("-")]
    if name == "reboot" or flags & {"-r", "--reboot", "-c", "-k"}:
        raise Refused("a local host can be switched off, not restarted: use poweroff")
    if name == "shutdown" and times[:1] not in (["now"], ["+0"]):
        raise Refused("a local host is switched off at once or by a systemd-run timer: use 'shutdown now'")
    # Replaced whole, so that the cloud never sees half of it. The text is for whoever reads the folder.
    _replace(control / POWEROFF, " ".join([name, *arguments]) + "\n")


def _systemctl(name: str, arguments: list[str], control: Path) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    verb, units = (words[0], words[1:]) if words else ("", [])
    if verb in ("poweroff", "halt", "reboot"):
        _power_off(verb, [], control)
    elif verb == "stop" and units and all(unit.endswith(".timer") for unit in units):
        for unit in units:
            path = control / TIMERS / f"{unit.removesuffix('.timer')}.json"
            if not path.exists():
                raise Refused(f"unit {unit} is not loaded on this local host")
            path.unlink()
    else:
        raise Refused(f"a local host has no systemd: 'systemctl {' '.join(arguments)}' was not run")


def _systemd_run(name: str, arguments: list[str], control: Path) -> None:
    options, command = _parse_options(arguments)
    calendar, unit = options.get("--on-calendar"), options.get("--unit", "").removesuffix(".timer")
    if calendar is None:
        raise Refused("a local host has no systemd: start a detached process with setsid")
    if not _UNIT.fullmatch(unit) or not command:
        raise Refused("systemd-run on a local host takes --unit=NAME --on-calendar='YYYY-MM-DD HH:MM:SS UTC' COMMAND")
    if not _POWER_WORDS.search(" ".join(command)):
        raise Refused(f"a local host runs no timers but those that power it off: {' '.join(command)!r} was not armed")
    at = _parse_calendar(calendar)
    timer = control / TIMERS / f"{unit}.json"
    timer.parent.mkdir(exist_ok=True)
    if timer.exists():  # as systemd does, so that a second arming is written right for the real one
        raise Refused(f"unit {unit}.timer is loaded already: 'systemctl stop {unit}.timer' first")
    _replace(timer, json.dumps({"unit": unit, "on_calendar": calendar, "at": at, "command": command}) + "\n")
    sys.stderr.write(f"Running timer as unit: {unit}.timer\n")


def _parse_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """systemd-run's options (the last of each) and its command, which starts at the first word that is neither."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word, joined, value = rest.pop(0).partition("=")
        if word == "--":
            break
        if word in _VALUED and not joined:
            if not rest:
                raise Refused(f"{word} needs a value")
            value = rest.pop(0)
        elif word not in _VALUED and word not in _FLAGS:
            raise Refused(f"a local host has no systemd: {word} is not supported")
        options[word] = value
    return options, rest


def _parse_calendar(text: str) -> float:
    """Unix seconds of the one absolute form that is served. systemd.time(7) has many more."""
    if not _CALENDAR.fullmatch(text):
        raise Refused(f"--on-calendar={text!r}: a local host takes 'YYYY-MM-DD HH:MM:SS UTC'")
    try:
        at = datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise Refused(f"--on-calendar={text!r}: there is no such time") from error
    if at <= time.time():
        raise Refused(f"--on-calendar={text!r} has passed: systemd would never fire it")
    return at


def _refuse(why: str) -> Callable[[str, list[str], Path], None]:
    def refuse(name: str, arguments: list[str], control: Path) -> None:
        raise Refused(f"a local host has no {name}: {why}")

    return refuse


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


COMMANDS: dict[str, Callable[[str, list[str], Path], None]] = {
    "poweroff": _power_off,
    "shutdown": _power_off,
    "reboot": _power_off,
    "halt": _power_off,
    "systemctl": _systemctl,
    "systemd-run": _systemd_run,
    "sudo": _refuse("run the command as yourself, within the host's home"),
    "sshd": _refuse("its SSH server is the embedded cloud's"),
    "service": _refuse("its SSH server is the embedded cloud's"),
}


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit code: 0, or 1 after one line on standard error."""
    name, rest = arguments[0], arguments[1:]
    try:
        COMMANDS[name](name, rest, Path(os.environ["CLOUDTRAIN_LOCAL_CONTROL"]))
    except (Refused, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
