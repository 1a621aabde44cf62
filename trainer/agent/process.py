"""Starting, watching and ending the user's processes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract import AgentConfig
from .jobenv import venv_of
from .places import Places
from .procfs import Process, members, read_table, stop_targets


def shell() -> str:
    """bash; sh where there is none."""
    return shutil.which("bash") or "/bin/sh"


class Job:
    """One command of the user's (``setup`` or ``run``), in a session of its own, and all that it starts."""

    def __init__(self, script: Path, *, env: Mapping[str, str], cwd: Path, log: Path, user: str | None = None) -> None:
        """Start the shell script. ``user``: run as this one (we are root then). Raises OSError, KeyError (no user)."""
        self._marks: Sequence[str] = [f"{name}={value}" for name, value in env.items() if name in _MARKS]
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
                [shell(), str(script)],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **as_user(user),
            )

    @property
    def pid(self) -> int:
        """The shell's, which is also the group's and the session's."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The shell's, negative for a signal; None while it runs."""
        return self._process.poll()

    def members(self) -> tuple[Process, ...]:
        """What lives of the job. Reads the whole process table."""
        return members(read_table(self._marks), self.pid, excluded=(os.getpid(),))

    def alive(self) -> bool:
        """Whether anything of the job lives. Cheap while its shell does."""
        return self.exit_code() is None or bool(self.members())

    def terminate(self, told: Collection[int] = ()) -> tuple[int, ...]:
        """SIGTERM to those who can save (``stop_targets``), but for those ``told`` before; returns the pids."""
        targets = tuple(pid for pid in stop_targets(self.members()) if pid not in told)
        for pid in targets:
            _send(pid, signal.SIGTERM)
        return targets

    def kill(self) -> None:
        """SIGKILL to everything. Repeat until ``alive`` says no: a process may have been forking."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.exit_code() is None:
                os.killpg(self.pid, signal.SIGKILL)
        for process in self.members():
            _send(process.pid, signal.SIGKILL)

    def end(self, wait_s: float = 5.0) -> bool:
        """Kill until nothing lives; whether that came about in time (a process may hang in the kernel)."""
        deadline = time.monotonic() + wait_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            self.kill()
            time.sleep(0.01)
        return True


def start(config: AgentConfig, places: Places, env: Mapping[str, str], name: str, command: str) -> Job:
    """Start ``setup`` or ``run`` in ``work/``, as the job's user. Raises OSError, KeyError (no such user)."""
    venv = venv_of(config, env)
    lines = [f". {shlex.quote(str(venv / 'bin' / 'activate'))}"] if venv is not None else []
    script = places.run / f"{name}.sh"  # a file, so that neither length nor quoting matters
    script.write_text("\n".join([*lines, command]) + "\n", encoding="utf-8")
    user = config.login_user if config.host == "systemd" else None
    return Job(script, env=env, cwd=places.work, log=places.job_log, user=user)


_MARKS = ("CLOUDTRAIN_JOB_ID", "CLOUDTRAIN_ATTEMPT", "CLOUDTRAIN_CHECKPOINT_DIR")


def kill_leftovers(env: Mapping[str, str]) -> int:
    """End what an agent that died has left of this job on this machine; returns how many processes there were."""
    marks = [f"{name}={value}" for name, value in env.items() if name in _MARKS]
    left = members(read_table(marks), None, excluded=(os.getpid(),))
    for process in left:
        _send(process.pid, signal.SIGKILL)
    return len(left)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def as_user(user: str | None) -> dict[str, Any]:
    """What subprocess needs to run a command as the user; nothing where we are not root, or are that user."""
    if user is None or os.geteuid() != 0 or pwd.getpwnam(user).pw_uid == 0:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}
