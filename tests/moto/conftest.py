"""One moto for each module: making its default networks takes most of a second. Tests have jobs of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from moto import mock_aws

from cloudtrain.provisioner.adapters.clients import Clients
from tests.moto.worlds import MotoWorld, prepare_account

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def moto_clients() -> Iterator[Clients]:
    """Clients of a fresh account. The environment names no other while they live."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        with mock_aws():
            clients = Clients("aws")
            prepare_account(clients)
            yield clients


@pytest.fixture
def moto_world(moto_clients: Clients) -> Iterator[MotoWorld]:
    """EC2's adapter, and a job id that nobody has used."""
    world = MotoWorld(moto_clients, f"digits-{next(_NUMBERS)}a")
    yield world
    world.close()
