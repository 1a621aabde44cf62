"""docs/failures.md: a row for every fault that concerns control, SSH, configuration or money, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs" / "failures.md").read_text().splitlines() if line.startswith("| F")]
FAULTS = """
    F02 F03 F05 F07 F08 F10 F12 F13 F14 F15 F16 F17 F28 F29 F31 F32 F33 F34 F36 F37 F39 F40 F42 F45 F46 F50 F52 F53 F54
    F55 F56 F57
"""


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_fault_has_a_row() -> None:
    assert [row.split(" | ")[0].removeprefix("| ") for row in ROWS] == FAULTS.split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].removeprefix("| "))
def test_a_row_names_its_source_and_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named and "https://github.com/" in row
    for path, name in named:
        assert name.startswith("test_") and name in names_in(path), f"{path}::{name}"
