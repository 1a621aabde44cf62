"""A job's record, durable in two places: the object beside its checkpoints, then the local working copy.

The bucket's copy is the truth and is changed by compare-and-set; SQLite lags by at most one save. A controller that
died between the two finds the bucket's newer copy and takes it up.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from operator import attrgetter

from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.controller.takeover import look
from cloudtrain.provisioner.errors import AccessError, CloudGone, CloudtrainError, CloudUnreachable, Conflict
from cloudtrain.provisioner.history import Fact, facts
from cloudtrain.provisioner.model import Attempt, JobRecord
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.ports import ObjectStore, Store

SLEPT_S = 20.0
"""A pause that nobody asked for: this computer slept, or was stopped. Another may have taken the job over."""


class DrivenElsewhere(CloudtrainError):
    """Another home's controller has taken the job over; this one must let go of it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} is driven from another computer now; `cloudtrain ls` there")


def see_ours(record: JobRecord, objects: ObjectStore) -> None:
    """Raise DrivenElsewhere where another home has taken the job over since the record was last written.

    For what costs money and changes nothing in the record first: a computer that slept between the two must not pay.
    """
    if look(objects, record.job_id).record.driver != record.driver:
        raise DrivenElsewhere(record.job_id)


class Journal:
    """One job's record while this controller drives it. ``record`` is what was last saved."""

    def __init__(self, store: Store, objects: ObjectStore, job_id: str) -> None:
        self._store = store
        self._objects = objects
        self._job_id = job_id
        self.reload()

    def reload(self) -> None:
        """Forget what we believed and read the working copy."""
        stored = self._store.get(self._job_id)
        self.record = stored.record
        self._version = stored.version
        self._etag = stored.etag
        self._behind = False  # the bucket's copy lacks what was kept here while it did not answer
        self._unanswered: list[JobRecord] = []  # sent to the bucket since it last answered
        self._told: tuple[object, ...] | None = None  # the record that the history for machines was last held to
        self._written: set[Fact] = set()

    @property
    def kept(self) -> bool:
        """Whether the bucket has ever had a copy."""
        return self._etag is not None

    @property
    def owing(self) -> bool:
        """Whether the bucket's copy is older than ours, because it did not answer when ours changed."""
        return self._behind and self.kept

    def open(self) -> JobRecord:
        """Meet the bucket's copy: write the first one, or take up a newer one of our own. Raises DrivenElsewhere."""
        if self.record.status.final:
            return self.record
        if self._etag is None:
            try:
                self._etag = self._objects.put(self._key, encode(self.record), if_none_match=True)
            except Conflict:
                self._take_up()
        else:
            self._take_up()
        self._keep(self.record)
        return self.record

    def save(self, record: JobRecord) -> JobRecord:
        """Make a changed record durable. Progress alone stays local: it is read again from the machine.

        Raises DrivenElsewhere, CloudUnreachable (nothing was saved), CloudGone.
        """
        if record == self.record and not self._behind:
            return record
        if self._behind or material(record) != material(self.record):
            record = replace(record, revision=self.record.revision + 1)
            self._unanswered.append(record)
            try:
                self._etag = self._objects.put(self._key, encode(record), if_match=self._etag)
            except Conflict:
                self._after_conflict(record)
            self._unanswered.clear()
            self._behind = False
        self._keep(record)
        return record

    def look_again(self) -> None:
        """Raise DrivenElsewhere where another home has taken the job over. A silent bucket says nothing."""
        with contextlib.suppress(CloudUnreachable):
            self.confirm()

    def confirm(self) -> None:
        """Raise DrivenElsewhere where another home has taken the job over, CloudUnreachable where that can't be told
        now. A bucket that refuses us, or is gone, will not tell it later either."""
        with contextlib.suppress(CloudGone, AccessError):
            see_ours(self.record, self._objects)

    def save_locally(self, record: JobRecord) -> None:
        """Keep a record while its bucket does not answer, or is gone. The bucket's copy follows with the next save."""
        if material(record) != material(self.record):
            record = replace(record, revision=self.record.revision + 1)
            self._behind = True
        self._keep(record)

    @property
    def _key(self) -> str:
        return record_key(self.record.job_id)

    def _keep(self, record: JobRecord) -> None:
        quiet = self._told is not None and material(record) == self._told
        fresh = () if quiet else tuple(fact for fact in facts(record) if fact not in self._written)
        self._version = self._store.save(record, version=self._version, etag=self._etag, facts=fresh, durable=not quiet)
        self._written.update(fresh)
        if not quiet:
            self._told = material(record)
        self.record = record

    def _read(self) -> tuple[JobRecord, str]:
        found = self._objects.get(self._key)
        if found is None:
            raise CloudtrainError(f"the record of job {self.record.job_id} is missing from its bucket; nothing is done")
        theirs = decode(found[0])
        if theirs.driver != self.record.driver:
            raise DrivenElsewhere(theirs.job_id)
        return theirs, found[1]

    def _take_up(self) -> None:
        theirs, self._etag = self._read()
        self._behind = theirs.revision < self.record.revision
        if theirs.revision > self.record.revision:  # equal: ours has the same facts and newer progress
            self.record = theirs

    def _after_conflict(self, wanted: JobRecord) -> None:
        """A lost reply looks like a conflict: when the bucket holds just what we wrote, now or before, it was ours."""
        theirs, etag = self._read()
        if theirs not in self._unanswered:
            raise Conflict(f"the record of job {wanted.job_id} changed under us")
        if theirs != wanted:
            etag = self._objects.put(self._key, encode(wanted), if_match=etag)
        self._etag = etag


# Progress: it changes with every look at a machine, and is read again from there.
_PROGRESS = ("last_step", "run_seconds", "mounted_bytes", "received_bytes", "sent_bytes")
_OF_RECORD = attrgetter(*(f.name for f in fields(JobRecord) if f.name not in ("attempts", "revision")))
_OF_ATTEMPT = attrgetter(*(f.name for f in fields(Attempt) if f.name not in _PROGRESS))


def material(record: JobRecord) -> tuple[object, ...]:
    """What is left of the record without what is only progress. It serves to be compared: several times in a pass."""
    return _OF_RECORD(record), tuple(map(_OF_ATTEMPT, record.attempts))
