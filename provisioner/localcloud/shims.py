"""The commands that stand in, on a local host, for those that would touch the machine it runs on.

Run as a program, ``shims.py NAME ARGUMENT...``, by the scripts in the host's home/bin. What has a meaning for a host
(power off, a power-off timer) becomes a file under the host's control folder, which the cloud reads; all else is
refused with one line. It runs without site-packages and imports next to nothing (re, json and pathlib alone would make
it three times as slow), because every boot waits for it.
"""

# pathlib is one of the slow imports:
# ruff: noqa: PTH105, PTH108, PTH110, PTH123

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

POWEROFF = "poweroff"
TIMERS = "timers"
SSH_RELOAD = "ssh-reload"  # an embedded server looks for it; an sshd has its process's id in the other
SSHD_PID = "sshd.pid"

_VALUED = ("--unit", "--on-calendar", "--timer-property", "--property", "-p", "--description")
_FLAGS = ("--collect", "-G", "--quiet", "-q", "--no-block", "--no-ask-password")


class Refused(Exception):
    """One line for the person who typed the command."""


def _power_off(name: str, arguments: list[str], control: str) -> None:
    flags = {word for word in arguments if word.startswith("-")}
    times = [word for word in arguments if not word.startswith("-")]
    if name == "reboot" or flags & {"-r", "--reboot", "-c", "-k"}:
        raise Refused("a local host can be switched off, not restarted: use poweroff")
    if name == "shutdown" and times[:1] not in (["now"], ["+0"]):
        raise Refused("a local host is switched off at once or by a systemd-run timer: use 'shutdown now'")
    # The text is for whoever reads the folder.
    _replace(f"{control}/{POWEROFF}", " ".join([name, *arguments]) + "\n")


def _init(name: str, arguments: list[str], control: str) -> None:
    if arguments != ["0"]:
        raise Refused("a local host has no runlevels: switch it off with poweroff")
    _power_off("poweroff", [], control)


def _systemctl(name: str, arguments: list[str], control: str) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    verb, units = (words[0], words[1:]) if words else ("", [])
    if verb in ("poweroff", "halt", "reboot"):
        _power_off(verb, [], control)
    elif verb == "stop" and units and all(unit.endswith(".timer") for unit in units):
        for unit in units:
            path = _timer_path(control, unit)
            if not os.path.exists(path):
                raise Refused(f"unit {unit} is not loaded on this local host")
            os.unlink(path)
    elif verb == "reload" and units in (["ssh"], ["sshd"]):
        _reload_ssh(control)
    else:
        raise Refused(f"a local host has no systemd: 'systemctl {' '.join(arguments)}' was not run")


def _reload_ssh(control: str) -> None:
    pid_file = f"{control}/{SSHD_PID}"
    try:
        with open(pid_file, encoding="ascii") as stream:
            pid = int(stream.read())
    except FileNotFoundError:
        _replace(f"{control}/{SSH_RELOAD}", "")
        return
    os.unlink(pid_file)  # it comes back once sshd, started anew by itself, listens again
    os.kill(pid, 1)  # SIGHUP; the module that has the name is one of the slow imports
    for _ in range(400):
        if os.path.exists(pid_file):
            return
        time.sleep(0.005)
    raise Refused("sshd did not come back after its reload")


def _systemd_run(name: str, arguments: list[str], control: str) -> None:
    options, command = _parse_options(arguments)
    calendar, unit = options.get("--on-calendar"), options.get("--unit", "")
    if calendar is None:
        raise Refused("a local host has no systemd: start a detached process with setsid")
    if not unit or not command:
        raise Refused("systemd-run on a local host takes --unit=NAME --on-calendar='YYYY-MM-DD HH:MM:SS UTC' COMMAND")
    if not any(word in " ".join(command) for word in ("poweroff", "shutdown", "halt")):
        raise Refused(f"a local host runs no timers but those that power it off: {' '.join(command)!r} was not armed")
    at, path = _parse_calendar(calendar), _timer_path(control, unit)
    if os.path.exists(path):  # as systemd does, so that a second arming is written right for the real one
        raise Refused(f"unit {unit} is loaded already: stop its timer first, with systemctl")
    # JSON, by hand: neither text holds a character that would need escaping.
    _replace(path, f'{{"at": {at}, "on_calendar": "{calendar}"}}\n')
    sys.stderr.write(f"Running timer as unit: {unit.removesuffix('.timer')}.timer\n")


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
    stamp = text.removesuffix(" UTC")
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        when = None
    if when is None or stamp == text or when.isoformat(" ") != stamp:
        raise Refused(f"--on-calendar={text!r}: a local host takes 'YYYY-MM-DD HH:MM:SS UTC'")
    at = when.replace(tzinfo=UTC).timestamp()
    if at <= time.time():
        raise Refused(f"--on-calendar={text!r} has passed: systemd would never fire it")
    return at


def _timer_path(control: str, unit: str) -> str:
    name = unit.removesuffix(".timer")
    if not all(letter.isalnum() or letter in ":_.@-" for letter in name) or name.startswith("."):
        raise Refused(f"{unit!r} is no name for a unit")
    return f"{control}/{TIMERS}/{name}.json"


def _refuse(why: str) -> Callable[[str, list[str], str], None]:
    def refuse(name: str, arguments: list[str], control: str) -> None:
        raise Refused(f"a local host has no {name}: {why}")

    return refuse


def _replace(path: str, text: str) -> None:
    """Write a file whole, so that the cloud never reads half of it."""
    fresh = f"{path}.{os.getpid()}~"
    with open(fresh, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(fresh, path)


_NO_RIGHTS = "run the command as yourself, within the host's home"

COMMANDS: dict[str, Callable[[str, list[str], str], None]] = {
    "poweroff": _power_off,
    "shutdown": _power_off,
    "reboot": _power_off,
    "halt": _power_off,
    "init": _init,
    "telinit": _init,
    "systemctl": _systemctl,
    "systemd-run": _systemd_run,
    "sudo": _refuse(_NO_RIGHTS),
    "su": _refuse(_NO_RIGHTS),
    "doas": _refuse(_NO_RIGHTS),
    "pkexec": _refuse(_NO_RIGHTS),
    "sshd": _refuse("its SSH server is the embedded cloud's"),
    "service": _refuse("its SSH server is the embedded cloud's"),
}


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit code: 0, or 1 after one line on standard error."""
    name, rest = arguments[0], arguments[1:]
    try:
        COMMANDS[name](name, rest, os.environ["CLOUDTRAIN_LOCAL_CONTROL"])
    except (Refused, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
