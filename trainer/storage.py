"""S3, as the agent and the controller use it: whole objects, conditions, checksums. The agent's only use of boto3.

Conditions go with ``put`` alone: ``upload_file`` has none (s3transfer's ALLOWED_UPLOAD_ARGS, boto3 1.44). So pointers
and manifests are put, and bulk data is uploaded under keys that nobody else writes. Slow to import, since boto3 is.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from .agent.objects import Conflict, Denied, ObjectsError, Piece
from .agent.objects import ObjectMissing as ObjectMissing

_DELETE_BATCH = 1000  # DeleteObjects' limit
_CONFLICT_TRIES = 5
_CONFLICT_WAIT_S = 0.1
_LOCAL_URL = re.compile(r"(https?://127\.0\.0\.1:\d+)/[^\s\"']*")  # the embedded cloud's path is its secret
_MISSING = ("NoSuchKey", "404", "NotFound")
_DENIED = ("AccessDenied", "403", "Forbidden")
_CHUNK_BYTES = 1 << 20
_IMDS_TIMEOUT_S = 3  # botocore's own 1 s and one try give a machine that boots too little
_IMDS_TRIES = 3
_CONNECTIONS = 32  # of one client at a time; boto3's own 10 are short for downloads in parallel


class S3Objects:
    """One bucket: ``agent.objects.Objects`` on a boto3 S3 client, whose time-outs bound every call. Thread-safe."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self.moved_bytes = 0

    def _moved(self, count: int) -> None:
        self.moved_bytes += count

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object's bytes and its ETag; None where there is none. botocore verifies S3's checksum."""
        try:
            with _translated(f"read {self._bucket}/{key}"):
                reply = self._client.get_object(Bucket=self._bucket, Key=key)
                return reply["Body"].read(), reply["ETag"]
        except ObjectMissing:
            return None
        except Denied:
            if self._is_unlisted(key):
                return None
            raise

    def _is_unlisted(self, key: str) -> bool:
        """Whether a list says that there is no such object.

        S3 says 404 for one only to who may list "the bucket" (API reference, GetObject), else 403; whether a role that
        may list this prefix alone counts is not documented.
        """
        try:
            with _translated(f"list {self._bucket}/{key}"):
                reply = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        except ObjectsError:
            return False
        return all(item["Key"] != key for item in reply.get("Contents", ()))  # the key itself would come first

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Write an object, verified by S3 against its SHA-256; returns its new ETag.

        ``if_match``: only while the object has this ETag. ``if_none_match``: only while there is none. Raises
        Conflict where that does not hold.
        """
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": key, "Body": data}
        arguments["ChecksumSHA256"] = base64.b64encode(hashlib.sha256(data).digest()).decode("ascii")
        if if_match is not None:
            arguments["IfMatch"] = if_match
        if if_none_match:
            arguments["IfNoneMatch"] = "*"
        doing = f"write {self._bucket}/{key}"
        for attempt in range(1, _CONFLICT_TRIES + 1):
            try:
                with _translated(doing):
                    return str(self._client.put_object(**arguments)["ETag"])
            except Conflict as lost:
                etag = self._written_before(key, data, lost)
                if etag is None:
                    raise
                return etag
            except ObjectMissing as error:  # If-Match on an object that is gone is answered with 404
                raise Conflict(str(error)) from error.__cause__
            except ObjectsError as error:
                if attempt == _CONFLICT_TRIES or _reply_to(error).get("HTTPStatusCode") != 409:
                    raise
                time.sleep(_CONFLICT_WAIT_S * attempt)  # another conditional write was under way
        raise AssertionError("the last attempt returns or raises")

    def read(self, key: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> Piece:
        """``length`` bytes of an object from ``start``; None: all of it, and then botocore verifies S3's checksum.

        Raises Conflict where its ETag is another than ``if_match``, ObjectMissing, Denied.
        """
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": key}
        if length is not None:
            arguments["Range"] = f"bytes={start}-{start + length - 1}"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        doing = f"read {self._bucket}/{key}"
        with _translated(doing):
            reply = self._client.get_object(**arguments)
        plain = reply.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in reply
        return Piece(self._chunks(reply["Body"], doing), etag_is_md5=plain)

    def _chunks(self, body: Any, doing: str) -> Iterator[bytes]:
        with _translated(doing), body:
            while data := body.read(_CHUNK_BYTES):
                yield data

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of every object under the prefix."""
        with _translated(f"list {self._bucket}/{prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            found = [(item["Key"], int(item["Size"])) for page in pages for item in page.get("Contents", ())]
        return iter(found)

    def download(self, key: str, path: Path) -> None:
        """Write the object to a file, replaced whole. Raises ObjectMissing."""
        with _translated(f"read {self._bucket}/{key}"):
            self._client.download_file(self._bucket, key, str(path), Callback=self._moved)

    def upload_file(self, path: Path, key: str) -> None:
        """Write a file as an object, in parts where it is large; every part is verified against its SHA-256."""
        # A multipart upload made without an algorithm is refused once its parts carry checksums (botocore#3216).
        with _translated(f"write {self._bucket}/{key}"):
            extra = {"ChecksumAlgorithm": "SHA256"}
            self._client.upload_file(str(path), self._bucket, key, ExtraArgs=extra, Callback=self._moved)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        wanted = list(keys)
        for start in range(0, len(wanted), _DELETE_BATCH):
            batch = [{"Key": key} for key in wanted[start : start + _DELETE_BATCH]]
            with _translated(f"delete {len(batch)} objects of {self._bucket}"):
                reply = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
            for refused in reply.get("Errors", ()):
                raise ObjectsError(f"delete {self._bucket}/{refused.get('Key')}: {refused.get('Code')}")

    def _written_before(self, key: str, data: bytes, lost: Conflict) -> str | None:
        """The ETag of the object, where the refused write is our own, repeated by botocore after its reply was lost."""
        if not _reply_to(lost).get("RetryAttempts"):
            return None
        found = self.get(key)
        return found[1] if found is not None and found[0] == data else None


def connect(bucket: str, region: str) -> S3Objects:
    """The bucket, with the credentials that boto3 finds by itself: on a machine, those of its role.

    AWS_ENDPOINT_URL is honoured, as a host of the embedded cloud sets it. Raises ObjectsError while there are no
    credentials: a new machine's role can be missing from its metadata for minutes (boto/boto3#3755, 2023-06), and a
    client that was made without them never gets any (boto/botocore#1791, 2019-07).
    """
    core = botocore.session.get_session()
    core.set_config_variable("metadata_service_timeout", _IMDS_TIMEOUT_S)
    core.set_config_variable("metadata_service_num_attempts", _IMDS_TRIES)
    session = boto3.session.Session(botocore_session=core)
    with _translated(f"bucket {bucket}"):
        if session.get_credentials() is None:
            raise NoCredentialsError
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 5},
        s3={"addressing_style": "auto"},
        max_pool_connections=_CONNECTIONS,
        user_agent_extra="cloudtrain-agent",
    )
    return S3Objects(session.client("s3", region_name=region, config=config), bucket)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError, Boto3Error) as error:
        # A transfer's own error hides the one that caused it.
        cause = error.__context__ if isinstance(error, Boto3Error) and error.__context__ is not None else error
        raise _translate(cause, doing) from cause


def _translate(error: BaseException, doing: str) -> ObjectsError:
    words = _LOCAL_URL.sub(r"\1/…", " ".join(str(error).split()))
    text = f"{doing}: {words}"
    code = error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""
    if code in ("PreconditionFailed", "412"):
        return Conflict(text)
    if code in _DENIED:
        return Denied(text)
    return ObjectMissing(text) if code in _MISSING else ObjectsError(text)


def _reply_to(error: ObjectsError) -> dict[str, Any]:
    """What botocore knows about the reply that an error was made from: HTTP status, number of retries."""
    cause = error.__cause__
    return dict(cause.response["ResponseMetadata"]) if isinstance(cause, ClientError) else {}
