"""What the tests over SSH share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudtrain.provisioner.adapters.ssh import ParamikoRemote


@pytest.fixture
def remote() -> Iterator[ParamikoRemote]:
    remote = ParamikoRemote()
    yield remote
    remote.close()
