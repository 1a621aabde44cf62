"""The Store port on SQLite: the controller's working copy of every job's record, and the index that ``ls`` reads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Door:
    """A connection that is kept, for one thread at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    db: sqlite3.Connection | None = None
    file: tuple[int, int] | None = None  # device and inode of the file that it has open

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
        self.db = self.file = None


class SqliteStore:
    """WAL, so that readers never wait for the writer. Safe to use from several threads: one connection writes, another
    reads, and threads wait for their turn at them. Opening one for each call was most of what a call cost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading, self._writing = _Door(), _Door()
        with self._write() as db:
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

    def _write(self, *, durable: bool = True) -> AbstractContextManager[sqlite3.Connection]:
        """The connection that writes. What is not ``durable`` may be lost with the computer's power, and nothing else
        with it."""
        return self._connection(self._writing, "FULL" if durable else "NORMAL")

    def _read(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._connection(self._reading, "FULL")

    @contextmanager
    def _connection(self, door: _Door, synchronous: str) -> Iterator[sqlite3.Connection]:
        with door.lock:
            try:
                db = self._opened(door)
                db.execute(f"PRAGMA synchronous={synchronous}")
                yield db
                if db.in_transaction:
                    db.execute("COMMIT")
            except sqlite3.IntegrityError:
                raise
            except sqlite3.OperationalError as error:
                door.close()
                raise CloudtrainError(f"{self._path}: {error}{_remedy(error)}") from error
            except sqlite3.DatabaseError as error:
                door.close()
                raise CloudtrainError(
                    f"{self._path} is damaged ({error}): move it away; `cloudtrain adopt` brings back the jobs that run"
                ) from error
            finally:
                if door.db is not None and door.db.in_transaction:
                    door.db.execute("ROLLBACK")

    def _opened(self, door: _Door) -> sqlite3.Connection:
        """The door's connection; opened anew where another file lies at the path now, or none."""
        if door.db is None or _identity(self._path) != door.file:
            door.close()
            door.db = sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)
            door.file = _identity(self._path)
        return door.db

    def add(self, record: JobRecord) -> None:
        """Store a new job. Raises Conflict where the id, or a live job of that name, exists."""
        with self._write() as db:
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
        with self._write() as db:
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
        with self._read() as db:
            row = db.execute("SELECT record, version, etag, wanted FROM jobs WHERE job_id=?", (job_id,)).fetchone()
        if row is None:
            raise NotFound(f"no job {job_id!r} here; `cloudtrain ls` shows all")
        return Stored(decode(row[0]), row[1], row[2], row[3])

    def wanted(self, job_id: str) -> str:
        """What the person wants of the job. Raises NotFound."""
        with self._read() as db:
            row = db.execute("SELECT wanted FROM jobs WHERE job_id=?", (job_id,)).fetchone()
        if row is None:
            raise NotFound(f"no job {job_id!r} here; `cloudtrain ls` shows all")
        return str(row[0])

    def heads(self) -> dict[str, tuple[int, str]]:
        """Of each job that is not over: its version, and what the person wants of it."""
        with self._read() as db:
            rows = db.execute("SELECT job_id, version, wanted FROM jobs WHERE NOT final").fetchall()
        return {job_id: (version, wanted) for job_id, version, wanted in rows}

    def list(self, *, live_only: bool = False) -> tuple[Stored, ...]:
        """All jobs, oldest first."""
        with self._read() as db:
            rows = db.execute(
                "SELECT record, version, etag, wanted FROM jobs WHERE NOT (final AND ?) ORDER BY created_at, job_id",
                (live_only,),
            ).fetchall()
        return tuple(Stored(decode(row[0]), row[1], row[2], row[3]) for row in rows)

    def save(
        self,
        record: JobRecord,
        *,
        version: int,
        etag: str | None,
        facts: Sequence[Fact] = (),
        durable: bool = True,
    ) -> int:
        """Replace a record by compare-and-set, and with it add the facts that are new; returns the new version. What is
        not ``durable`` waits for no disk, and a computer that loses power may come back without it. Raises Conflict."""
        final = record.status.final
        with self._write(durable=durable) as db:
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
        with self._write() as db:
            db.execute(
                "UPDATE jobs SET wanted=? WHERE job_id=? AND NOT (wanted='cancel' AND ?='stop')",
                (wanted, job_id, wanted),
            )

    def set_live(self, job_id: str, document: str) -> None:
        """Replace the job's live view (JSON)."""
        with self._write(durable=False) as db:
            db.execute("UPDATE jobs SET live=? WHERE job_id=?", (document, job_id))

    def live(self, job_id: str) -> str | None:
        """The job's live view."""
        with self._read() as db:
            row = db.execute("SELECT live FROM jobs WHERE job_id=?", (job_id,)).fetchone()
        return row[0] if row else None

    def add_event(self, job_id: str, at: float, text: str) -> None:
        """Append to the job's history."""
        with self._write(durable=False) as db:
            db.execute("INSERT INTO events (job_id, at, text) VALUES (?, ?, ?)", (job_id, at, text))

    def events(self, job_id: str, *, after: int = 0) -> tuple[Event, ...]:
        """The job's history after event number ``after``."""
        with self._read() as db:
            rows = db.execute(
                "SELECT number, at, text FROM events WHERE job_id=? AND number>? ORDER BY number", (job_id, after)
            ).fetchall()
        return tuple(Event(*row) for row in rows)

    def facts(self, job_id: str) -> tuple[Fact, ...]:
        """The job's history for machines, in the order in which it was learnt."""
        with self._read() as db:
            rows = db.execute(
                "SELECT at, kind, generation, document FROM facts WHERE job_id=? ORDER BY number", (job_id,)
            ).fetchall()
        return tuple(Fact(*row) for row in rows)


def _remedy(error: sqlite3.OperationalError) -> str:
    if "full" in str(error):
        return ": nothing was changed, and what runs goes on; make room there and repeat"
    if "locked" in str(error):
        return ": nothing was changed; another process has it: repeat"
    return "; may its folder be written to?"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino
