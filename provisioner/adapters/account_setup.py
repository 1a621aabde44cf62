"""Finds the account's bucket, and sets an account up part by part.

Each part is looked at first. What is there is left alone, what carries no mark of ours is never changed, and what may
not be looked at is not guessed. A part that fails stops only those that stand on it. All of it may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.account.setup_plan import Wanted, bucket_names
from cloudtrain.provisioner.adapters.aws_codes import NO_BUCKET
from cloudtrain.provisioner.adapters.aws_errors import code_of, translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import AccessError, CloudtrainError

REFUSED = ("403", "AccessDenied", "AccessDeniedException", "Forbidden")
_TRIES = 15
_WAIT_S = 2.0
_PRINT = "`cloudtrain setup --print policies` shows the rights"

T = TypeVar("T")


def find_bucket(clients: Clients, identity: Identity, region: str) -> str | None:
    """The account's bucket of a region; None where there is none. At most two calls; each may be repeated.

    Whoever else has the second name, which anybody can take, does not matter: the first one can be made.

    Raises AccessError where a bucket has the name and is another account's, or may not be looked at; CloudUnreachable.
    """
    refused: list[str] = []
    for name in bucket_names(identity.account, region):
        with translated(f"looking for bucket {name}"):
            try:
                clients.client("s3", region).head_bucket(Bucket=name, ExpectedBucketOwner=identity.account)
            except ClientError as error:
                if code_of(error) not in (*NO_BUCKET, *REFUSED):
                    raise
                if code_of(error) in REFUSED and name == bucket_names(identity.account, region)[0]:
                    refused.append(name)
            else:
                return name
    if refused:
        raise AccessError(
            f"bucket {refused[0]} in {region} is another account's, or you lack s3:ListBucket on it: {_PRINT} you need"
        )
    return None


def bucket_region(clients: Clients, identity: Identity, bucket: str, region: str) -> str:
    """The region of a bucket of this account, asked in ``region``. Raises AccessError where there is none."""
    with translated(f"looking for bucket {bucket}"):
        try:
            shown = clients.client("s3", region).head_bucket(Bucket=bucket, ExpectedBucketOwner=identity.account)
        except ClientError as error:
            if code_of(error) not in (*NO_BUCKET, *REFUSED):
                raise
            text = f"account {identity.account} has no bucket {bucket}, or you lack s3:ListBucket on it"
            raise AccessError(f"{text}: `aws s3 ls` lists yours, {_PRINT} you need") from error
    return shown.get("BucketRegion") or region


@dataclass(frozen=True, slots=True)
class Account:
    """What is wanted, and the clients to ask with. ``hidden``: why a bucket of its name can't be looked at.
    ``key_asked``: its key was named in this call, for volumes too; else it is the one that the bucket has.
    """

    clients: Clients
    wanted: Wanted
    hidden: str | None = None
    key_asked: bool = False

    @property
    def s3(self) -> Any:
        """S3 where the bucket is."""
        return self.clients.client("s3", self.wanted.region)

    @property
    def iam(self) -> Any:
        """IAM, which is one for all regions."""
        return self.clients.client("iam", self.wanted.region)

    @property
    def mine(self) -> dict[str, str]:
        """Which bucket, and that it must be this account's."""
        return {"Bucket": self.wanted.bucket, "ExpectedBucketOwner": self.wanted.account}


class State(StrEnum):
    """How a part was found."""

    THERE = "there"
    MISSING = "missing"
    DIFFERS = "differs"  # there, and not as it is to be
    FOREIGN = "foreign"  # not as it is to be, on something that is not ours to change
    UNSEEN = "unseen"  # it may not be looked at


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a part showed; ``note`` says more, for the person. ``ours``: it carries our mark."""

    state: State
    note: str = ""
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that an account needs.

    ``look`` and ``make`` raise botocore's errors; ``make`` may be repeated, also by two at once. ``on`` names the part
    that it belongs to, ``needs`` another that must be there. ``right`` is the action that ``make`` needs, ``peek``
    the one that ``look`` needs.
    """

    what: str
    name: str
    look: Callable[[], Seen]
    make: Callable[[], None]
    right: str
    peek: str
    on: str | None = None
    needs: str | None = None

    def __str__(self) -> str:
        return f"{self.what} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a part. ``trouble``: why it is not as it is to be, in one line that begins with its name."""

    part: Part
    trouble: str | None = None


def survey(parts: Iterable[Part]) -> dict[Part, Seen]:
    """Look at every part. A part of something that is missing is missing. Raises AccessError, CloudUnreachable."""
    seen: dict[Part, Seen] = {}
    for part in parts:
        under = next((found for other, found in seen.items() if other.what == part.on), None)
        needed = next((found for other, found in seen.items() if other.what == part.needs), None)
        absent = [found.state for found in (under, needed) if found and found.state in (State.MISSING, State.UNSEEN)]
        if absent:
            seen[part] = Seen(absent[0])
            continue
        with translated(f"looking at {part}"):
            found = _looked(part)
        kept = under is not None and not under.ours and found.state in (State.MISSING, State.DIFFERS)
        seen[part] = Seen(State.FOREIGN, found.note or f"the {part.on} was not made by setup") if kept else found
    return seen


def carry_out(seen: dict[Part, Seen]) -> Iterator[Made]:
    """Make what is missing, one after the other, as the iterator is read. A failure is told and the rest goes on."""
    broken: set[str] = set()
    for part, found in seen.items():
        if found.state is not State.THERE:
            lacks = next((what for what in (part.on, part.needs) if what in broken), None)
            trouble = f"{part}: it needs the {lacks}" if lacks else _make(part, found)
            if trouble is not None:
                broken.add(part.what)
            yield Made(part, trouble)


def _make(part: Part, found: Seen) -> str | None:
    """Make a part; returns the trouble."""
    if found.state is State.FOREIGN:
        return f"{part}: left as it is: {found.note}"
    if found.state is State.UNSEEN:
        return f"{part}: {found.note or f'it could not be looked at; it needs {part.peek}'}"
    try:
        with translated(str(part)):
            part.make()
    except CloudtrainError as error:
        return f"{error} (it needs {part.right})" if isinstance(error, AccessError) else str(error)
    return None


def eventually(call: Callable[[], T], *codes: str) -> T:
    """Make a call again while it is refused with one of these codes: what was just made is not known everywhere yet.

    Blocks at most 30 s.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            return call()
        except ClientError as error:
            if code_of(error) not in codes or attempt == _TRIES:
                raise
            time.sleep(_WAIT_S)
    raise AssertionError("the last attempt returns or raises")


def _looked(part: Part) -> Seen:
    try:
        return part.look()
    except ClientError as error:
        if code_of(error) in REFUSED:
            return Seen(State.UNSEEN, f"you lack {part.peek}")
        raise
