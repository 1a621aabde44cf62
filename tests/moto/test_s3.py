"""What is S3's own: checksums on the wire, conflicts, lost replies, large files, refusals; the agent's connection."""

from __future__ import annotations

import hashlib
import itertools
import random
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.errors import AccessError, CloudGone, CloudUnreachable
from cloudtrain.trainer import storage
from cloudtrain.trainer.agent.objects import Conflict, Objects, ObjectsError
from tests.moto.local_server import serving

REGION = "us-east-1"
_NUMBERS = itertools.count(1)
Undo = list[Callable[[], None]]


class Bucket:
    """A bucket of its own on moto, and a look at what is sent to it."""

    def __init__(self, clients: Clients) -> None:
        self.name = f"cloudtrain-123456789012-own-{next(_NUMBERS)}"
        self.client: Any = clients.client("s3", REGION)
        self.client.create_bucket(Bucket=self.name)
        self.objects = storage.S3Objects(self.client, self.name)
        self.store = S3ObjectStore(clients, self.name, REGION)
        self.sent: list[AWSPreparedRequest] = []
        self._undo: Undo = []
        self.on("before-send.s3", lambda request, **_: self.sent.append(request))

    def on(self, event: str, handle: Callable[..., Any]) -> None:
        self.client.meta.events.register_first(event, handle)
        self._undo.append(lambda: self.client.meta.events.unregister(event, handle))

    def refuse(self, action: str, code: str, status: int, *, times: int = 1, retries: int = 0) -> None:
        """Refuse calls before they reach moto."""
        parsed = {
            "Error": {"Code": code, "Message": "no"},
            "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "r", "RetryAttempts": retries},
        }
        left = [times]

        def handle(**_: Any) -> Any:
            left[0] -= 1
            return (SimpleNamespace(status_code=status), parsed) if left[0] >= 0 else None

        self.on(f"before-call.s3.{action}", handle)

    def close(self) -> None:
        for undo in self._undo:
            undo()


@pytest.fixture
def bucket(moto_clients: Clients, request: pytest.FixtureRequest) -> Bucket:
    made = Bucket(moto_clients)
    request.addfinalizer(made.close)
    return made


def header(request: AWSPreparedRequest, name: str) -> str:
    value: Any = request.headers.get(name, "")  # botocore keeps some as bytes
    return value.decode() if isinstance(value, bytes) else str(value)


def test_it_is_what_the_agent_wants(bucket: Bucket) -> None:
    objects: Objects = bucket.objects
    assert objects.get("nothing") is None


def test_a_put_carries_its_sha256_and_its_condition(bucket: Bucket) -> None:
    etag = bucket.objects.put("k", b"data", if_none_match=True)
    bucket.objects.put("k", b"more", if_match=etag)
    first, second = bucket.sent
    assert header(first, "x-amz-checksum-sha256") == b64encode(hashlib.sha256(b"data").digest()).decode()
    assert (header(first, "If-None-Match"), header(second, "If-Match")) == ("*", etag)


def test_a_conflict_is_tried_again_and_given_up_in_the_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("cloudtrain.trainer.storage.time.sleep", waits.append)
    bucket.refuse("PutObject", "ConditionalRequestConflict", 409, times=2)
    bucket.objects.put("k", b"1", if_none_match=True)
    assert len(waits) == 2
    bucket.refuse("PutObject", "ConditionalRequestConflict", 409, times=99)
    with pytest.raises(ObjectsError, match="ConditionalRequestConflict"):
        bucket.objects.put("k", b"2")
    assert len(waits) == 2 + 4


def test_a_condition_lost_to_our_own_repeated_write_was_won(bucket: Bucket) -> None:
    # botocore sent it, the reply was lost, botocore sent it again: S3 refuses the second, and the first is ours.
    bucket.objects.put("k", b"ours")
    bucket.refuse("PutObject", "PreconditionFailed", 412, retries=1)
    etag = bucket.objects.put("k", b"ours", if_none_match=True)
    assert bucket.objects.get("k") == (b"ours", etag)


def test_and_one_lost_to_somebody_else_is_a_conflict(bucket: Bucket) -> None:
    bucket.objects.put("k", b"theirs")
    bucket.refuse("PutObject", "PreconditionFailed", 412, times=1, retries=1)
    with pytest.raises(Conflict):
        bucket.objects.put("k", b"ours", if_none_match=True)
    with pytest.raises(Conflict):  # the same bytes, and no retry: somebody else wrote them
        bucket.objects.put("k", b"theirs", if_none_match=True)


def test_a_large_file_goes_in_parts_that_are_all_checked(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "model 重.bin"
    path.write_bytes(random.Random(0).randbytes(9 * 2**20))
    bucket.objects.upload_file(path, "big")
    created = [r for r in bucket.sent if str(r.url).endswith("?uploads")]
    parts = [r for r in bucket.sent if "partNumber=" in str(r.url)]
    assert [header(r, "x-amz-checksum-algorithm") for r in created] == ["SHA256"]
    assert len(parts) == 2
    assert all(b"x-amz-checksum-sha256" in str(dict(r.headers)).lower().encode() for r in parts)
    bucket.objects.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []


def test_an_upload_that_fails_leaves_no_parts_and_names_its_cause(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x" * 9 * 2**20)
    bucket.refuse("UploadPart", "AccessDenied", 403, times=99)
    with pytest.raises(ObjectsError, match="AccessDenied"):
        bucket.objects.upload_file(path, "big")
    assert bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []
    with pytest.raises(OSError, match="gone"):
        bucket.objects.upload_file(tmp_path / "gone", "k")


def test_a_thousand_keys_are_one_call_and_a_refused_one_is_named(bucket: Bucket) -> None:
    bucket.objects.delete(f"k/{number}" for number in range(1001))
    assert len(bucket.sent) == 2
    parsed = {"Errors": [{"Key": "k/1", "Code": "AccessDenied"}], "ResponseMetadata": {"HTTPStatusCode": 200}}
    bucket.on("before-call.s3.DeleteObjects", lambda **_: (SimpleNamespace(status_code=200), parsed))
    with pytest.raises(ObjectsError, match="k/1: AccessDenied"):
        bucket.objects.delete(["k/1"])


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("AccessDenied", 403, AccessError),
        ("NoSuchBucket", 404, AccessError),
        ("SlowDown", 503, CloudUnreachable),
        ("InternalError", 500, CloudUnreachable),
    ],
)
def test_the_controller_gets_errors_of_its_own(bucket: Bucket, code: str, status: int, wanted: type[Exception]) -> None:
    bucket.objects.put("k", b"there, so that a refusal does not mean that it is missing")
    bucket.refuse("GetObject", code, status)
    with pytest.raises(wanted, match=f"bucket {bucket.name}: {code}"):
        bucket.store.get("k")


def test_no_answer_is_gone_only_where_the_embedded_cloud_is_dead(bucket: Bucket, moto_clients: Clients) -> None:
    def silent(**_: Any) -> AWSResponse:
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    bucket.on("before-call.s3.GetObject", silent)
    for is_dead, wanted in ((None, CloudUnreachable), (lambda: False, CloudUnreachable), (lambda: True, CloudGone)):
        with pytest.raises(wanted):
            S3ObjectStore(moto_clients, bucket.name, REGION, is_dead=is_dead).get("k")


def test_no_credentials_are_an_access_error(bucket: Bucket) -> None:
    def nobody(**_: Any) -> AWSResponse:
        raise NoCredentialsError

    bucket.on("before-call.s3.GetObject", nobody)
    with pytest.raises(AccessError, match="credentials"):
        bucket.store.get("k")


@pytest.mark.usefixtures("home")
def test_a_profile_that_is_not_there_is_an_access_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AccessError, match="nobody"):
        S3ObjectStore(Clients("aws"), "bucket", REGION).get("k")


@pytest.mark.usefixtures("home")
def test_the_agent_finds_the_bucket_where_its_host_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "local") as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.state.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-role")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        objects = storage.connect("cloudtrain-123456789012-us-east-1-an", REGION)
        etag = objects.put("k", b"1")
        assert objects.get("k") == (b"1", etag)
        objects._client.close()


@pytest.mark.usefixtures("home")
def test_a_machine_whose_role_has_not_arrived_yet_is_not_left_without_credentials_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ObjectsError, match="bucket b: Unable to locate credentials"):
        storage.connect("b", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-role")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert storage.connect("b", REGION)


def test_a_missing_object_may_be_answered_with_403_to_who_may_list_a_prefix_alone(bucket: Bucket) -> None:
    bucket.refuse("GetObject", "AccessDenied", 403, times=3)
    assert bucket.objects.get("jobs/a/outputs.json") is None
    bucket.objects.put("jobs/a/outputs.json", b"{}")
    with pytest.raises(ObjectsError, match="AccessDenied"):
        bucket.objects.get("jobs/a/outputs.json")
    bucket.refuse("ListObjectsV2", "AccessDenied", 403)
    with pytest.raises(ObjectsError, match="AccessDenied"):
        bucket.objects.get("jobs/a/none")
