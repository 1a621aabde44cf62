"""The state of every random number generator that a training loop may draw from, as plain values and tensors.

NumPy's own pickles would make a checkpoint unreadable for ``torch.load(weights_only=True)``; lists of numbers do not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

RandomState = dict[str, Any]


def capture(generators: Sequence[torch.Generator] = ()) -> RandomState:
    """The state now of torch, CUDA (where in use), Python, NumPy (where imported) and of ``generators``."""
    version, words, gauss = random.getstate()
    state: RandomState = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call] # torch
        "python": [version, list(words), gauss],
        "generators": [generator.get_state() for generator in generators],
    }
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return state


def restore(state: RandomState, generators: Sequence[torch.Generator] | None = None) -> None:
    """Put back what ``capture`` returned; without ``generators``, they are left as they are.

    Raises ValueError when the generators are not as many as there were.
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        if len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        else:
            had, has = len(state["cuda"]), torch.cuda.device_count()
            print(f"cloudtrain: random numbers on the GPU start anew: {had} GPUs then, {has} now", file=sys.stderr)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if generators is not None:
        if len(generators) != len(state["generators"]):
            raise ValueError(f"{len(state['generators'])} generators were saved, the loader has {len(generators)}")
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
