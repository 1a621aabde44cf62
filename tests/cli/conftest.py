"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .world import World


@pytest.fixture
def world(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    return World(monkeypatch, capsys)
