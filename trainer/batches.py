"""Walks a user's own loader over epochs and can go on, exactly, from the middle of one.

An epoch's order depends on random numbers drawn at its start, and what follows depends on those drawn since. So the
state at both moments is kept: to go on, the order is drawn again from the first, the batches already used are passed
over as indices (no data is loaded), and the second is put back before the next batch is fetched.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from . import random_state
from .random_state import RandomState


class DataMismatch(Exception):
    """The loader can't give what the checkpoint says comes next."""


class _Order:
    """A loader's sampler (of batches or of indices), with its random state kept and its first part passed over."""

    def __init__(self, sampler: Any, generators: list[torch.Generator]) -> None:
        self._sampler = sampler
        self._generators = generators
        self._resume: tuple[RandomState, int, RandomState] | None = None
        self.start: RandomState | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def resume(self, start: RandomState, position: int, now: RandomState) -> None:
        """Make the next iteration go on after ``position`` of an epoch that began in the state ``start``."""
        self._resume = (start, position, now)

    def __iter__(self) -> Iterator[Any]:
        # Runs on the first next(), after the loader has drawn its workers' seed and before any sample is fetched: so
        # neither persistent workers nor the number of workers make a difference.
        if self._resume is None:
            self.start = random_state.capture(self._generators)
            yield from self._sampler
            return
        self.start, position, now = self._resume
        self._resume = None
        _restore(self.start, self._generators)
        indices = iter(self._sampler)
        _skip(indices, position)
        random_state.restore(now)
        yield from indices


class Batches:
    """The batches of ``loader``, ``epochs`` times over or without end.

    A ``DataLoader`` over a map-style dataset goes on exactly, whatever its ``shuffle``, ``generator`` and number of
    workers, if what its workers do draws no random numbers of their own (they start anew with a new process). Of
    any other iterable the batches already used are fetched and dropped.

    ``epoch`` counts from 0; ``position`` is the number of batches of it handed out so far.
    """

    def __init__(
        self, loader: Iterable[Any], epochs: int | None = None, resume: Mapping[str, Any] | None = None
    ) -> None:
        self.epoch = 0
        self.position = 0
        self._epochs = epochs
        self._loader = loader
        self._order: _Order | None = None
        self._start: RandomState | None = None
        self._resume = resume
        if isinstance(loader, DataLoader):
            self._loader, self._order = _ours(loader)
        if resume is not None:
            self.epoch, self.position = int(resume["epoch"]), int(resume["position"])

    def state(self) -> dict[str, Any]:
        """Where it is, for ``resume`` (which also takes ``now``: the random state at that moment)."""
        start = self._order.start if self._order else self._start
        return {"epoch": self.epoch, "position": self.position, "start": start}

    def __iter__(self) -> Iterator[Any]:
        while self._epochs is None or self.epoch < self._epochs:
            for batch in self._open():
                self.position += 1
                yield batch
            if self.position == 0:
                raise DataMismatch("the loader gave no batch: its dataset is empty, or smaller than one whole batch")
            self.epoch += 1
            self.position = 0

    def _open(self) -> Iterator[Any]:
        _set_epoch(self._loader, self.epoch)
        resume, self._resume = self._resume, None
        if self._order is not None:
            if resume is not None:
                self._order.resume(resume["start"], self.position, resume["now"])
            return iter(self._loader)
        if resume is None:
            self._start = random_state.capture()
            return iter(self._loader)
        self._start = resume["start"]
        random_state.restore(resume["start"])
        batches = iter(self._loader)
        _skip(batches, self.position)
        random_state.restore(resume["now"])
        return batches


class _Worker:
    """A worker's first act: from then on it ends when the loader says so, not on SIGTERM.

    A SIGTERM that reaches the whole process group would else end the workers, and their end raises an error in the
    middle of the step that was to be completed and saved. A worker whose parent is gone notices by itself.
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._users is not None:
            self._users(worker)


def _ours(loader: DataLoader[Any]) -> tuple[DataLoader[Any], _Order | None]:
    """A copy of ``loader`` (of its own class, whatever its arguments) whose workers outlive a SIGTERM.

    Over a map-style dataset it takes its indices through the _Order that is returned.
    """
    copied = copy.copy(loader)
    vars(copied).update({"worker_init_fn": _Worker(loader.worker_init_fn), "_iterator": None})
    if isinstance(loader.dataset, IterableDataset):
        return copied, None
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    found = [getattr(part, "generator", None) for part in (loader, *_samplers(loader))]
    generators = list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
    order = _Order(getattr(loader, attribute), generators)
    # A DataLoader refuses a new sampler by setattr, for its workers' sake; this copy has none yet.
    vars(copied)[attribute] = order
    return copied, order


def _samplers(loader: Any) -> list[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell samplers that shuffle by an epoch number (DistributedSampler) which one this is."""
    samplers = _samplers(loader)
    inner = [sampler._sampler if isinstance(sampler, _Order) else sampler for sampler in samplers]
    for sampler in inner:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _restore(start: RandomState, generators: list[torch.Generator]) -> None:
    try:
        random_state.restore(start, generators)
    except ValueError as error:
        raise DataMismatch(f"the loader is not the one that the checkpoint was made with: {error}") from None


def _skip(items: Iterator[Any], count: int) -> None:
    nothing = object()
    for done in range(count):
        if next(items, nothing) is nothing:
            raise DataMismatch(
                f"the checkpoint is {count} batches into an epoch, but the loader has only {done}: "
                "give it the dataset and batch size that the checkpoint was made with"
            )
