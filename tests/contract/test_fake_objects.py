from __future__ import annotations

import pytest

from tests.contract.objects_contract import ObjectsContract
from tests.fakes import FakeObjectStore


class TestFakeObjectStore(ObjectsContract):
    @pytest.fixture
    def store(self) -> FakeObjectStore:
        return FakeObjectStore()
