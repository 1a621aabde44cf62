"""What several commands do with jobs: find the one that is meant, and see that somebody drives the live ones."""

from __future__ import annotations

import json
from typing import Any

from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.cli.words import say
from cloudtrain.provisioner.controller import losses
from cloudtrain.provisioner.controller import process as controller_process
from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Store, Stored


def open_store(home: Home) -> SqliteStore:
    """The home's store."""
    return SqliteStore(home.db)


def find(store: Store, wanted: str) -> Stored:
    """The job that ``wanted`` means: its id, a live job's name, else the newest job of that name, else the beginning of
    one id. Raises NotFound, UsageError where the beginning fits several."""
    known = store.list()
    for stored in known:
        if stored.record.job_id == wanted:
            return stored
    for stored in known:
        if stored.record.spec.name == wanted and not stored.record.status.final:
            return stored
    namesakes = [stored for stored in known if stored.record.spec.name == wanted]
    if namesakes:
        return namesakes[-1]  # none of them is live: the newest is meant
    fitting = [stored for stored in known if wanted and stored.record.job_id.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise NotFound(f"no job {wanted!r}: no id begins so and no live job has that name; `cloudtrain ls` shows all")
    ids = ", ".join(stored.record.job_id for stored in fitting[-5:])
    raise UsageError(f"{wanted!r} fits {len(fitting)} jobs ({ids}); type more of the id")


def live_view(store: Store, job_id: str) -> dict[str, Any]:
    """What the controller last saw of the job; {} before it has looked."""
    document = store.live(job_id)
    view: dict[str, Any] = json.loads(document) if document else {}
    return view


def must_be_live_here(home: Home, record: JobRecord) -> None:
    """Raise UsageError for a job that is over, or that another computer drives."""
    job_id = record.job_id
    if record.status.final:
        raise UsageError(
            f"job {job_id} is over already ({record.status}); `cloudtrain show {job_id}` tells how it went"
        )
    if record.driver != home.id:
        raise UsageError(f"job {job_id} is driven from another computer; `cloudtrain adopt {job_id}` takes it over")


def say_lost(home: Home, store: Store) -> None:
    """Name the live jobs whose embedded cloud is gone, which ends them."""
    for line in losses.settle(home, store, SystemClock().now()):
        say(line)


def use_this_shell(home: Home, records: list[JobRecord]) -> None:
    """Before acting on AWS jobs: let the controller go on with the AWS credentials of this shell, and say so."""
    if any(record.cloud == "aws" for record in records) and controller_process.renew(home):
        say("the controller goes on with the AWS credentials of this shell")


def see_driven(home: Home, records: list[JobRecord]) -> bool:
    """Bring the controller back where a live job of this home needs it; says so, and returns whether it did.

    Jobs that died with their cloud are marked so first, and said: read again what was read before.
    """
    if not any(record.driver == home.id and not record.status.final for record in records):
        return False
    store = open_store(home)
    say_lost(home, store)
    if not any(stored.record.driver == home.id and not stored.resting for stored in store.list(live_only=True)):
        return False
    restarted = controller_process.ensure(home)
    if restarted:
        say("the controller was not running; it is started again and carries on")
    return restarted
