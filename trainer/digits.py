"""The images that the package carries: 1,797 handwritten digits of 8x8 pixels. Source and licence: data/README.md."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

_FILE = Path(__file__).parent / "data" / "digits.csv.gz"
_COLUMNS = 65  # 64 pixels of 0 to 16, then the digit
_SPLIT_SEED = 0  # fixed, so that every run is measured on the same images


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images ``(n, 1, 8, 8)`` of float32 from 0 to 1, and labels ``(n,)`` of int64."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def load() -> tuple[Digits, Digits]:
    """1,348 images to train on and the 449 held out (a quarter), split at random once and for all."""
    text = gzip.decompress(_FILE.read_bytes()).decode("ascii")
    values = bytearray(map(int, text.replace("\n", ",").rstrip(",").split(",")))
    table = torch.frombuffer(values, dtype=torch.uint8).reshape(-1, _COLUMNS)
    shuffled = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(_SPLIT_SEED))]
    images = (shuffled[:, :-1].float() / 16).reshape(-1, 1, 8, 8)
    labels = shuffled[:, -1].long()
    held_out = len(table) // 4
    return Digits(images[held_out:], labels[held_out:]), Digits(images[:held_out], labels[:held_out])
