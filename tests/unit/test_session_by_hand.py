"""A script with a Session, run without cloudtrain around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from cloudtrain.trainer import checkpoint
from cloudtrain.trainer.session import Session


def test_a_script_run_by_hand_is_told_of_an_earlier_runs_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CLOUDTRAIN_")]:
        monkeypatch.delenv(name)
    checkpoint.write(tmp_path / "checkpoints", 7, {"model.pt": b"x"})
    model = torch.nn.Linear(1, 1)
    assert Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).resume() == 0
    assert "CLOUDTRAIN_RESUME=checkpoints/step-000000007 goes on" in capsys.readouterr().out
