"""The Store port in a dictionary, held to the same tests as SQLite's (tests/unit/test_store.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudtrain.provisioner.errors import Conflict, NotFound
from cloudtrain.provisioner.history import Fact
from cloudtrain.provisioner.model import EndReason, JobRecord
from cloudtrain.provisioner.ports import Event, Stored


@dataclass
class _Row:
    stored: Stored
    live: str | None = None
    events: list[Event] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


class FakeStore:
    """Jobs in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._events = 0

    def add(self, record: JobRecord) -> None:
        live_names = {s.record.spec.name for s in self.list(live_only=True)}
        if record.job_id in self._rows or record.spec.name in live_names:
            raise Conflict(f"a live job named {record.spec.name!r} exists; end it with `cloudtrain down`")
        self._rows[record.job_id] = _Row(Stored(record, 1, None, "run"))

    def put(self, record: JobRecord, etag: str) -> None:
        others = [s for s in self.list(live_only=True) if s.record.job_id != record.job_id]
        if not record.status.final and record.spec.name in {s.record.spec.name for s in others}:
            raise Conflict(f"a live job named {record.spec.name!r} exists; end it with `cloudtrain down`")
        before = self._rows.get(record.job_id)
        version = before.stored.version + 1 if before is not None else 1
        wanted = "stop" if record.outcome is EndReason.STOPPED else "run"
        self._rows[record.job_id] = _Row(
            Stored(record, version, etag, wanted),
            None,
            before.events if before else [],
            before.facts if before else [],
        )

    def get(self, job_id: str) -> Stored:
        return self._row(job_id).stored

    def wanted(self, job_id: str) -> str:
        return self._row(job_id).stored.wanted

    def heads(self) -> dict[str, tuple[int, str]]:
        return {s.record.job_id: (s.version, s.wanted) for s in self.list(live_only=True)}

    def list(self, *, live_only: bool = False) -> tuple[Stored, ...]:
        rows = sorted((r.stored for r in self._rows.values()), key=lambda s: (s.record.created_at, s.record.job_id))
        return tuple(s for s in rows if not (live_only and s.record.status.final))

    def save(
        self,
        record: JobRecord,
        *,
        version: int,
        etag: str | None,
        facts: Sequence[Fact] = (),
        durable: bool = True,
    ) -> int:
        row = self._row(record.job_id)
        if row.stored.version != version:
            raise Conflict(f"job {record.job_id} was changed by another process")
        row.stored = Stored(record, version + 1, etag, row.stored.wanted)
        row.facts += [fact for fact in facts if fact not in row.facts]
        return version + 1

    def want(self, job_id: str, wanted: str) -> None:
        row = self._row(job_id)
        if (row.stored.wanted, wanted) != ("cancel", "stop"):
            row.stored = Stored(row.stored.record, row.stored.version, row.stored.etag, wanted)

    def set_live(self, job_id: str, document: str) -> None:
        self._row(job_id).live = document

    def live(self, job_id: str) -> str | None:
        return self._row(job_id).live

    def add_event(self, job_id: str, at: float, text: str) -> None:
        self._events += 1
        if job_id in self._rows:
            self._rows[job_id].events.append(Event(self._events, at, text))

    def events(self, job_id: str, *, after: int = 0) -> tuple[Event, ...]:
        return tuple(e for e in self._row(job_id).events if e.number > after)

    def facts(self, job_id: str) -> tuple[Fact, ...]:
        return tuple(self._row(job_id).facts)

    def _row(self, job_id: str) -> _Row:
        if job_id not in self._rows:
            raise NotFound(f"no job {job_id!r} here; `cloudtrain ls` shows all")
        return self._rows[job_id]
