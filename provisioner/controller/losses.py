"""Jobs whose embedded cloud has died are told so at once, also by a command that merely lists them."""

from __future__ import annotations

from cloudtrain.provisioner.controller.job_secrets import drop_where_over
from cloudtrain.provisioner.decide.job import decide
from cloudtrain.provisioner.errors import Conflict
from cloudtrain.provisioner.history import facts
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.localcloud.client import find
from cloudtrain.provisioner.model import JobRecord, Observed
from cloudtrain.provisioner.ports import Store


def gone(home: Home, record: JobRecord) -> bool:
    """Whether the embedded cloud that holds the job is dead. AWS never is."""
    if record.cloud != "local":
        return False
    found = find(home.local_home)
    return found is None or found.id != record.cloud_id


def settle(home: Home, store: Store, now: float) -> tuple[str, ...]:
    """Mark the live jobs of this home whose cloud is gone as lost; returns a line for each. Idempotent."""
    lines = []
    for stored in store.list(live_only=True):
        record = stored.record
        if record.driver != home.id or not gone(home, record):
            continue
        lost = decide(record, Observed(machines=None, cloud_gone=True), now)
        try:
            store.save(lost.record, version=stored.version, etag=stored.etag, facts=facts(lost.record))
        except Conflict:
            continue  # the controller was quicker
        for text in lost.events:
            store.add_event(record.job_id, now, text)
        lines.append(f"job {record.job_id}: {lost.record.detail}")
    if lines:
        drop_where_over(home, store)
    return tuple(lines)
