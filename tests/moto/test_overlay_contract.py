"""The same adapters on the embedded cloud's API, whose overlay gives moto EC2's meaning."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from cloudtrain.provisioner.adapters.ec2 import Ec2Cloud
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.model import Machine
from tests.contract.cloud_contract import CloudContract
from tests.moto.local_server import Cloud, serving

_NUMBERS = itertools.count(1)


class OverlayWorld:
    """EC2's adapter on the embedded cloud. Each look lets a second pass."""

    def __init__(self, local: Cloud) -> None:
        self._local = local
        self.job = f"digits-{next(_NUMBERS)}a"
        self.cloud = Ec2Cloud(local.clients, address=lambda: "127.0.0.1", is_dead=lambda: False)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(300):
            if holds():
                return
            self._local.clock.ahead_s += 1
            time.sleep(0.01)
        raise AssertionError("never held")

    def refuse_once(self, code: str) -> None:
        client.fault_add(self._local.local, "RunInstances", code, times=1)

    def lose_reply(self) -> None:
        client.fault_add(self._local.local, "RunInstances", "lost", lost=True, times=1)

    def interrupt(self, machine: Machine) -> None:
        assert client.interrupt(self._local.local, machine.job_id, notice_s=30.0)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with serving(tmp_path_factory.mktemp("local"), hide_s=2.0) as cloud:
        yield cloud


class TestEc2OnTheEmbeddedCloud(CloudContract):
    @pytest.fixture
    def world(self, local: Cloud) -> OverlayWorld:
        return OverlayWorld(local)
