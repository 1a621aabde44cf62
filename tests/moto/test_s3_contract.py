"""S3's adapter on plain moto, and on the embedded cloud."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.s3 import S3ObjectStore
from cloudtrain.provisioner.ports import ObjectStore
from tests.contract.objects_contract import ObjectsContract
from tests.moto.local_server import Cloud, serving

_NUMBERS = itertools.count(1)
REGION = "us-east-1"


def fresh(clients: Clients) -> S3ObjectStore:
    """A bucket of its own."""
    name = f"cloudtrain-123456789012-test-{next(_NUMBERS)}"
    clients.client("s3", REGION).create_bucket(Bucket=name)
    return S3ObjectStore(clients, name, REGION)


class TestS3OnMoto(ObjectsContract):
    @pytest.fixture
    def store(self, moto_clients: Clients) -> S3ObjectStore:
        return fresh(moto_clients)

    @pytest.mark.skip(reason="moto checks a condition and writes in two steps: now and then two writers win")
    def test_of_many_writers_one_wins(self, store: ObjectStore) -> None: ...


@pytest.fixture(scope="class")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local")) as cloud:
        yield cloud


class TestS3OnTheEmbeddedCloud(ObjectsContract):
    @pytest.fixture
    def store(self, local: Cloud) -> S3ObjectStore:
        return fresh(local.clients)
