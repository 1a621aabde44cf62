"""The Store port on SQLite: the controller's working copy of every job's record, and the index that ``ls`` reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.errors import CloudtrainError, Conflict, NotFound
from cloudtrain.provisioner.history import Fact
from cloudtrain.provisioner.model import EndReason, JobRecord
from cloudtrain.provisioner.ports import Event, Stored

SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY, name TEXT NOT NULL, final INTEGER NOT NULL, created_at REAL NOT NULL,
    version INTEGER NOT NULL, etag TEXT, wanted TEXT NOT NULL DEFAULT 'run', record BLOB NOT NULL, live TEXT
);
CREATE UNIQUE INDEX one_live_name ON jobs (name) WHERE NOT final;
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL
);
CREATE INDEX events_of_job ON events (job_id, number);
"""
FACTS = """
CREATE TABLE facts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    generation INTEGER NOT NULL, document TEXT NOT NULL, UNIQUE (job_id, generation, kind, at, document)
);
"""  # since version 2


class SqliteStore:
    """WAL, so that readers never wait for the writer; a connection per call, so that threads share nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._connection() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise CloudtrainError(f"{path} was written by a newer cloudtrain (schema {version}); update cloudtrain")
            if version < SCHEMA_VERSION:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("BEGIN IMMEDIATE")
                version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been quicker
                schema = (SCHEMA if version == 0 else "") + (FACTS if version < SCHEMA_VERSION else "")
                for statement in filter(str.strip, schema.split(";\n")):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=FULL")  # intent is durable before the effect
            yield db
            if db.in_transaction:
                db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise CloudtrainError(f"{self._path}: {error}; is the disk full or the file locked?") from error
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            raise CloudtrainError(
                f"{self._path} is damaged ({error}): move it away; `cloudtrain adopt` brings back the jobs that run"
            ) from error
        finally:
            db.close()

    def add(self, record: JobRecord) -> None:
        """Store a new job. Raises Conflict where the id, or a live job of that name, exists."""
        with self._connection() as db:
            try:
                db.execute(
                    "INSERT INTO jobs (job_id, name, final, created_at, version, record) VALUES (?, ?, 0, ?, 1, ?)",
                    (record.job_id, record.spec.name, record.created_at, encode(record)),
                )
            except sqlite3.IntegrityError as error:
                raise Conflict(
                    f"a live job named {record.spec.name!r} exists; end it with `cloudtrain down`"
                ) from error

    def put(self, record: JobRecord, etag: str) -> None:
        """Store a job as its bucket has it, whatever was known of it here. Raises Conflict for a live job's name."""
        status = record.status
        wanted = "stop" if record.outcome is EndReason.STOPPED else "run"  # one that is stopping goes on stopping
        with self._connection() as db:
            try:
                db.execute(
                    "INSERT INTO jobs (job_id, name, final, created_at, version, etag, wanted, record)"
                    " VALUES (?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT (job_id) DO UPDATE SET final=excluded.final,"
                    " version=version+1, etag=excluded.etag, wanted=excluded.wanted, record=excluded.record, live=NULL",
                    (record.job_id, record.spec.name, status.final, record.created_at, etag, wanted, encode(record)),
                )
            except sqlite3.IntegrityError as error:
                raise Conflict(
                    f"a live job named {record.spec.name!r} exists; end it with `cloudtrain down`"
                ) from error

    def get(self, job_id: str) -> Stored:
        """One job. Raises NotFound."""
        with self._connection() as db:
            row = db.execute("SELECT record, version, etag, wanted FROM jobs WHERE job_id=?", (job_id,)).fetchone()
        if row is None:
            raise NotFound(f"no job {job_id!r} here; `cloudtrain ls` shows all")
        return Stored(decode(row[0]), row[1], row[2], row[3])

    def list(self, *, live_only: bool = False) -> tuple[Stored, ...]:
        """All jobs, oldest first."""
        with self._connection() as db:
            rows = db.execute(
                "SELECT record, version, etag, wanted FROM jobs WHERE NOT (final AND ?) ORDER BY created_at, job_id",
                (live_only,),
            ).fetchall()
        return tuple(Stored(decode(row[0]), row[1], row[2], row[3]) for row in rows)

    def save(self, record: JobRecord, *, version: int, etag: str | None, facts: Sequence[Fact] = ()) -> int:
        """Replace a record by compare-and-set, and with it add the facts that are new; returns the new version. Raises
        Conflict."""
        final = record.status.final
        with self._connection() as db:
            if facts:
                db.execute("BEGIN IMMEDIATE")
            changed = db.execute(
                "UPDATE jobs SET record=?, etag=?, final=?, version=version+1 WHERE job_id=? AND version=?",
                (encode(record), etag, final, record.job_id, version),
            ).rowcount
            if not changed:
                raise Conflict(f"job {record.job_id} was changed by another process")
            db.executemany(
                "INSERT OR IGNORE INTO facts (job_id, at, kind, generation, document) VALUES (?, ?, ?, ?, ?)",
                [(record.job_id, fact.at, fact.kind, fact.generation, fact.document) for fact in facts],
            )
        return version + 1

    def want(self, job_id: str, wanted: str) -> None:
        """Say what the person wants of the job: "run", "stop" or "cancel". Never conflicts; no stop undoes a cancel."""
        with self._connection() as db:
            db.execute(
                "UPDATE jobs SET wanted=? WHERE job_id=? AND NOT (wanted='cancel' AND ?='stop')",
                (wanted, job_id, wanted),
            )

    def set_live(self, job_id: str, document: str) -> None:
        """Replace the job's live view (JSON)."""
        with self._connection() as db:
            db.execute("PRAGMA synchronous=OFF")  # a view: losing it loses nothing
            db.execute("UPDATE jobs SET live=? WHERE job_id=?", (document, job_id))

    def live(self, job_id: str) -> str | None:
        """The job's live view."""
        with self._connection() as db:
            row = db.execute("SELECT live FROM jobs WHERE job_id=?", (job_id,)).fetchone()
        return row[0] if row else None

    def add_event(self, job_id: str, at: float, text: str) -> None:
        """Append to the job's history."""
        with self._connection() as db:
            db.execute("INSERT INTO events (job_id, at, text) VALUES (?, ?, ?)", (job_id, at, text))

    def events(self, job_id: str, *, after: int = 0) -> tuple[Event, ...]:
        """The job's history after event number ``after``."""
        with self._connection() as db:
            rows = db.execute(
                "SELECT number, at, text FROM events WHERE job_id=? AND number>? ORDER BY number", (job_id, after)
            ).fetchall()
        return tuple(Event(*row) for row in rows)

    def facts(self, job_id: str) -> tuple[Fact, ...]:
        """The job's history for machines, in the order in which it was learnt."""
        with self._connection() as db:
            rows = db.execute(
                "SELECT at, kind, generation, document FROM facts WHERE job_id=? ORDER BY number", (job_id,)
            ).fetchall()
        return tuple(Fact(*row) for row in rows)
