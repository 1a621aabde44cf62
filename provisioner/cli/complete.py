"""What JOB may be, for a shell that completes it: read from disk, quickly, and without leaving a trace."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import click
from click.shell_completion import CompletionItem

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import home_folder

SHOWN = 100


def any_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of all jobs, newest first, and the names of the live ones."""
    return _matching(_on_disk(), ctx.params.get(param.name or ""), incomplete)


def live_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids and names of the jobs that are not over."""
    return _matching([row for row in _on_disk() if not row[2]], ctx.params.get(param.name or ""), incomplete)


def _matching(rows: Sequence[tuple[str, str, bool]], given: object, incomplete: str) -> list[CompletionItem]:
    words = {name: f"the live job {job_id}" for job_id, name, over in rows if not over}
    words |= {job_id: "over" if over else "live" for job_id, _, over in rows}
    taken = set(given) if isinstance(given, tuple) else set()
    fitting = [(word, text) for word, text in words.items() if word.startswith(incomplete) and word not in taken]
    return [CompletionItem(word, help=text) for word, text in fitting[:SHOWN]]


def _on_disk() -> list[tuple[str, str, bool]]:
    """Id, name, whether it is over. Makes no file, waits for nobody, and sees no jobs rather than raise."""
    try:
        path = home_folder() / "jobs.db"
        if not path.is_file():
            return []
        # A reader of a WAL database makes its -shm file, unless it is told that nobody writes.
        busy = path.with_name("jobs.db-wal").exists()
        uri = f"{path.as_uri()}?{'mode=ro' if busy else 'immutable=1'}"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as db:
            rows = db.execute("SELECT job_id, name, final FROM jobs ORDER BY created_at DESC, job_id LIMIT 500")
            return [(str(job_id), str(name), bool(final)) for job_id, name, final in rows]
    except (OSError, ValueError, UsageError, sqlite3.Error):
        return []


class JobCommand(click.Command):
    """Stands for a command of which only JOB is asked, so that TAB need not import the command; flags come from it."""

    def __init__(self, name: str, real: Callable[[], click.Command]) -> None:
        job = click.Argument(["job"], nargs=-1, shell_complete=JOB_COMMANDS[name])
        super().__init__(name, params=[job], add_help_option=False)
        self._real = real

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The flags that fit."""
        return self._real().shell_complete(ctx, incomplete)


# What JOB may be for each command, as its own argument says it too (a test compares them).
JOB_COMMANDS = {
    "show": any_job,
    "logs": any_job,
    "ssh": live_job,
    "tunnel": live_job,
    "stop": live_job,
    "resume": any_job,
    "down": live_job,
    "cost": any_job,
}
