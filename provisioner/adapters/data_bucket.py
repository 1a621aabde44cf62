"""Data in buckets, at launch: what a user's bucket holds, and files of this computer by their content into ours."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from cloudtrain.provisioner.adapters.aws_codes import NO_BUCKET
from cloudtrain.provisioner.adapters.aws_errors import code_of, translate, translated
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.errors import AccessError, Conflict, NotFound, UsageError
from cloudtrain.provisioner.shipping.mounts import LIMIT_FILES, S3Object, parse_s3
from cloudtrain.trainer.contract import content_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SMALL_BYTES = 8 << 20  # read whole, and put
PART_BYTES = 16 << 20
MOST_PARTS = 10_000  # S3 User Guide, "Multipart upload limits", 2026-11
PARTS_AT_A_TIME = 4  # of one file; each holds its bytes in memory
_CHUNK_BYTES = 1 << 20
_REFUSED = ("403", "AccessDenied", "Forbidden")

Open = Callable[[], AbstractContextManager[BinaryIO]]
Moved = Callable[[int], None]


def list_source(clients: Clients, source: str, region: str) -> tuple[str, list[S3Object]]:
    """The region of the bucket of an "s3://…" source, and its objects: below the prefix, else the one of that name.

    ``region``: where to ask first. With the user's own credentials. Blocks a second for each 5,000 objects or so.
    Raises NotFound (no such bucket), AccessError, UsageError (too many objects), CloudUnreachable.
    """
    bucket, prefix = parse_s3(source)
    where = _region(clients, bucket, region, source)
    client = clients.client("s3", where)
    with _denied(source):
        found = list(_listed(client, bucket, f"{prefix}/" if prefix else "", source))
        if not found and prefix:
            found = list(_listed(client, bucket, prefix, source, most=1))  # the shortest name comes first
    return where, found


def _region(clients: Clients, bucket: str, region: str, source: str) -> str:
    """Where the bucket is, which S3 tells also those who may list a prefix of it alone, and not the whole."""
    with _denied(source):
        try:
            reply: Any = clients.client("s3", region).head_bucket(Bucket=bucket)
        except ClientError as error:
            if code_of(error) in NO_BUCKET:
                raise NotFound(f"{source}: there is no bucket {bucket}; correct file_mounts") from error
            if code_of(error) not in _REFUSED:
                raise
            reply = error.response
    headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(reply.get("BucketRegion") or headers.get("x-amz-bucket-region") or region)


def _listed(client: S3Client, bucket: str, prefix: str, source: str, most: int | None = None) -> Iterator[S3Object]:
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": most or LIMIT_FILES + 1}
    )
    count = 0
    for page in pages:
        for item in page.get("Contents", ()):
            count += 1
            if count > LIMIT_FILES:
                raise UsageError(
                    f"{source} holds more than {LIMIT_FILES:,} objects: choose a narrower prefix, or pack them into "
                    "larger files (tar)"
                )
            yield S3Object(item["Key"], item["Size"], item["ETag"], item.get("StorageClass", "STANDARD"))


@contextmanager
def _denied(source: str) -> Iterator[None]:
    """Errors of S3 as ours; what the user may not do says whose rights are meant."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and code_of(error) in _REFUSED:
            raise AccessError(
                f"{source}: your credentials may not list it (s3:ListBucket): ask the bucket's owner, or use another "
                "AWS_PROFILE"
            ) from error
        raise translate(error, f"list {source}") from error


class Halted(Exception):
    """The upload was given up. What was sent is used by the next one."""


class ContentStore:
    """Files by their content in our bucket: ``files/<sha256>``, each written once and never changed. Thread-safe."""

    def __init__(self, clients: Clients, bucket: str, region: str, *, moved: Moved = lambda count: None) -> None:
        """``moved``: told of every byte that a file has got further, sent or found to be there."""
        self._clients = clients
        self._bucket = bucket
        self._region = region
        self._moved = moved
        self._lock = threading.Lock()
        self._known: dict[str, Future[None]] = {}  # of this run: two files of one content are sent once
        self.sent_bytes = 0
        self.halt = threading.Event()  # once set, every ``add`` ends soon, with Halted

    def add(self, opened: Open, size: int) -> str:
        """See that a file's content is in the bucket; returns its SHA-256. Idempotent; a large file that was broken off
        goes on where it was. ``opened`` is called once or twice, and raises what it wants where the file has changed.

        Raises AccessError, CloudUnreachable, and Conflict where the file was another when it was read again.
        """
        data: bytes | None = None
        with opened() as file:
            if size <= SMALL_BYTES:
                data = file.read(SMALL_BYTES + 1)
                sha256 = hashlib.sha256(data).hexdigest()
            else:
                sha256 = self._digest(file)
        with self._lock:
            before = self._known.get(sha256)
            ours = self._known[sha256] = before or Future()
        if before is not None:
            before.result()
            self._moved(size)
            return sha256
        try:
            self._send(sha256, data, opened, size)
            ours.set_result(None)
        except BaseException as error:
            ours.set_exception(error)
            raise
        return sha256

    def _digest(self, file: BinaryIO) -> str:
        digest = hashlib.sha256()
        while data := file.read(_CHUNK_BYTES):
            if self.halt.is_set():
                raise Halted
            digest.update(data)
        return digest.hexdigest()

    def put_manifest(self, key: str, data: bytes) -> None:
        """Write a manifest, once. Raises Conflict where there is another one."""
        client = self._client()
        with translated(f"write {self._bucket}/{key}"):
            client.put_object(Bucket=self._bucket, Key=key, Body=data, ChecksumSHA256=_base64(data), IfNoneMatch="*")

    def _client(self) -> S3Client:
        with translated(f"bucket {self._bucket}"):
            return self._clients.client("s3", self._region)

    def _send(self, sha256: str, data: bytes | None, opened: Open, size: int) -> None:
        key, client = content_key(sha256), self._client()
        with translated(f"write {self._bucket}/{key}"):
            if self._is_there(client, key, size):
                self._moved(size)
                return
            if data is not None:
                client.put_object(Bucket=self._bucket, Key=key, Body=data, ChecksumSHA256=_base64(data))
                self._count(size)
            else:
                large = _Multipart(client, self._bucket, key, size, self._count, self._moved)
                large.send(opened, sha256, self.halt)

    def _is_there(self, client: S3Client, key: str, size: int) -> bool:
        try:
            return client.head_object(Bucket=self._bucket, Key=key)["ContentLength"] == size
        except ClientError as error:
            if code_of(error) in ("404", "NoSuchKey"):
                return False
            raise

    def _count(self, count: int) -> None:
        with self._lock:
            self.sent_bytes += count
        self._moved(count)


class _Multipart:
    """One large file on its way: begun, or taken up where an earlier launch was broken off."""

    def __init__(self, client: S3Client, bucket: str, key: str, size: int, sent: Moved, found: Moved) -> None:
        self._client: Any = client  # the stubs want each argument by name
        self._where = {"Bucket": bucket, "Key": key}
        self._part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        self._sent = sent
        self._found = found

    def send(self, opened: Open, sha256: str, halt: threading.Event) -> None:
        """Upload what is missing and complete it. Raises Conflict where the bytes are not those of ``sha256``, Halted;
        then what was sent stays, for another try."""
        upload, there = self._begun()
        digest = hashlib.sha256()
        parts: list[Future[dict[str, Any]]] = []
        waiting = threading.BoundedSemaphore(PARTS_AT_A_TIME)
        with opened() as file, ThreadPoolExecutor(PARTS_AT_A_TIME) as pool:
            while data := file.read(self._part_bytes):
                digest.update(data)
                waiting.acquire()
                number = len(parts) + 1
                parts.append(pool.submit(self._part, upload, number, data, there.get(number)))
                parts[-1].add_done_callback(lambda _: waiting.release())
                if halt.is_set():
                    raise Halted
                if any(part.done() and part.exception() for part in parts[-PARTS_AT_A_TIME:]):
                    break
        done = [part.result() for part in parts]
        if digest.hexdigest() != sha256:
            self._client.abort_multipart_upload(**self._where, UploadId=upload)
            raise Conflict("the file changed while it was uploaded")
        self._client.complete_multipart_upload(**self._where, UploadId=upload, MultipartUpload={"Parts": done})

    def _begun(self) -> tuple[str, dict[int, dict[str, Any]]]:
        """The upload, and its parts that are there by number."""
        bucket, key = self._where["Bucket"], self._where["Key"]
        try:
            found = self._client.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", ())
            for item in found:
                if item["Key"] == key and item.get("ChecksumAlgorithm") == "SHA256":
                    pages = self._client.get_paginator("list_parts").paginate(**self._where, UploadId=item["UploadId"])
                    return item["UploadId"], {p["PartNumber"]: p for page in pages for p in page.get("Parts", ())}
        except ClientError as error:
            if code_of(error) not in ("AccessDenied", "NoSuchUpload"):  # it can be begun all the same
                raise
        return self._client.create_multipart_upload(**self._where, ChecksumAlgorithm="SHA256")["UploadId"], {}

    def _part(self, upload: str, number: int, data: bytes, there: dict[str, Any] | None) -> dict[str, Any]:
        checksum = _base64(data)
        if there is not None and _same(there, data, checksum):
            self._found(len(data))
            return {"PartNumber": number, "ETag": there["ETag"], "ChecksumSHA256": checksum}
        reply = self._client.upload_part(
            **self._where, UploadId=upload, PartNumber=number, Body=data, ChecksumSHA256=checksum
        )
        self._sent(len(data))
        return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumSHA256": checksum}


def _same(there: dict[str, Any], data: bytes, checksum: str) -> bool:
    """Whether a part in the bucket has these bytes, as far as it can be known: by its checksum, else its MD5."""
    if there["Size"] != len(data):
        return False
    if "ChecksumSHA256" in there:
        return bool(there["ChecksumSHA256"] == checksum)
    return bool(there["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())


def _base64(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode("ascii")
