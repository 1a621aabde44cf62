from __future__ import annotations

from collections.abc import Callable

import pytest

from cloudtrain.provisioner.errors import CloudUnreachable, PoolUnavailable
from cloudtrain.provisioner.model import Machine
from tests.contract.cloud_contract import CloudContract
from tests.fakes import FakeClock, FakeCloud


class FakeWorld:
    job = "digits-1a2b"

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cloud = FakeCloud(self.clock)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(600):
            if holds():
                return
            self.clock.advance(1)
        raise AssertionError("never held")

    def refuse_once(self, code: str) -> None:
        self.cloud.refuse("", PoolUnavailable("no", code=code), times=1)

    def lose_reply(self) -> None:
        self.cloud.faults.add("launch", CloudUnreachable("lost"), when="after")

    def interrupt(self, machine: Machine) -> None:
        self.cloud.interrupt(machine.instance_id)


class TestFakeCloud(CloudContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()
