"""One booted machine in the ordinary suite, where one can be booted in seconds; all of them: ``make deadman``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.deadman.scenarios import NEVER_S, Bench, full_disk_keeps_deadline
from tests.faults.deadman.tree import CACHE, built, missing


def test_a_booted_machine_is_armed_and_tells_what_it_can_not_write(tmp_path: Path) -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    root = built(CACHE)
    if root is None:
        pytest.skip(f"no small Debian in {CACHE}: `make deadman` builds it")
    assert "the deadline stays as it was" in full_disk_keeps_deadline(Bench(root, tmp_path, NEVER_S))
