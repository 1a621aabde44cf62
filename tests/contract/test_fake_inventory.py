"""The fake Inventory keeps the contract."""

from __future__ import annotations

import pytest

from cloudtrain.provisioner.things import Kind, Thing
from tests.contract.inventory_contract import REGION, InventoryContract
from tests.fake_inventory import FakeInventory
from tests.fakes import FakeClock, FakeObjectStore


class FakeWorld:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.inventory = FakeInventory(self.clock, "me")
        self.job = "digits-1"
        self._made = 0

    def launch(self) -> str:
        self._made += 1
        tags = (("cloudtrain:owner", "me"), ("cloudtrain:job", self.job))
        name = f"i-{self._made}"
        self.inventory.things += [
            Thing(Kind.GROUP, f"sg-{self._made}", REGION, tags, name=f"cloudtrain-{self.job}"),
            Thing(Kind.MACHINE, name, REGION, tags, state="running"),
        ]
        return name

    def foreign(self) -> str:
        tags = (("cloudtrain:owner", "you"), ("cloudtrain:job", "x"))
        self.inventory.things.append(Thing(Kind.MACHINE, "i-you", REGION, tags, state="running"))
        return "i-you"

    def until(self, gone: str) -> None:
        self.clock.sleep(60)
        assert gone not in {t.thing_id for t in self.inventory.look(REGION)[0]}

    def bucket(self) -> str:
        self.inventory.buckets.setdefault("b", (REGION, FakeObjectStore()))
        return "b"


class TestFakeInventory(InventoryContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()
