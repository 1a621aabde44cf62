"""A loader goes on from the middle of an epoch with the same batches and random numbers as if never stopped."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from cloudtrain.trainer import random_state
from cloudtrain.trainer.batches import Batches, DataMismatch

Item = torch.Tensor


class Plain(Dataset[Item]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Item:
        return torch.tensor(index)


class Augmented(Plain):
    """Draws from all three generators for each sample: exact only if each is put back at the right moment."""

    def __getitem__(self, index: int) -> Item:
        noise = torch.rand(()).item() + random.random() + float(np.random.random())
        return torch.tensor([index, noise], dtype=torch.float64)


class Stream(IterableDataset[Item]):
    def __iter__(self) -> Iterator[Item]:
        return iter([torch.rand(()) for _ in range(23)])


class PythonShuffle(Sampler[int]):
    """Shuffles by Python's generator, as many users' samplers do."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(23))
        random.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 23


class ByEpoch(Sampler[int]):
    """Shuffles by an epoch number, as DistributedSampler does."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.randperm(23, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order)

    def __len__(self) -> int:
        return 23


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def shared_generator() -> DataLoader[Item]:
    generator = seeded()
    return DataLoader(Plain(), batch_size=4, sampler=RandomSampler(range(23), generator=generator), generator=generator)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: DataLoader(Plain(), batch_size=4, shuffle=True),
    "shuffle, last dropped": lambda: DataLoader(Plain(), batch_size=4, shuffle=True, drop_last=True),
    "shuffle, augmented": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True),
    "generator": lambda: DataLoader(Plain(), batch_size=4, shuffle=True, generator=seeded()),
    "generator shared with the sampler": shared_generator,
    "with replacement": lambda: DataLoader(Plain(), batch_size=4, sampler=RandomSampler(range(23), replacement=True)),
    "subset": lambda: DataLoader(Plain(), batch_size=4, sampler=SubsetRandomSampler(range(3, 20))),
    "weighted": lambda: DataLoader(Plain(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 23, 20)),
    "python's shuffle": lambda: DataLoader(Augmented(), batch_size=4, sampler=PythonShuffle()),
    "by epoch": lambda: DataLoader(Plain(), batch_size=4, sampler=ByEpoch()),
    "own batch sampler": lambda: DataLoader(Plain(), batch_sampler=BatchSampler(RandomSampler(range(23)), 4, False)),
    "one by one": lambda: DataLoader(Augmented(), batch_size=None, sampler=RandomSampler(range(7))),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "no DataLoader": lambda: [torch.tensor(index) for index in range(6)],
}


def run(batches: Batches, count: int) -> tuple[list[list[float]], dict[str, Any]]:
    """``count`` steps, each of which draws from torch's and Python's generator; what was seen, and where it ended."""
    seen = []
    iterator = iter(batches)
    for _ in range(count):
        batch = next(iterator)
        seen.append([*batch.flatten().tolist(), torch.rand(()).item(), random.random()])
    return seen, {**batches.state(), "now": random_state.capture()}


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def assert_exact(make: Callable[[], Any], stop: int, again: Callable[[], Any] | None = None) -> None:
    seed(1)
    whole, _ = run(Batches(make()), 20)
    seed(1)
    first, where = run(Batches(make()), stop)
    assert first == whole[:stop]
    seed(2)  # another process: nothing of the first is left
    rest, _ = run(Batches((again or make)(), resume=where), 20 - stop)
    assert rest == whole[stop:]


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 13])  # most epochs have 6 batches: mid-epoch, the last one, just past it
@pytest.mark.parametrize("name", LOADERS)
def test_goes_on_exactly(name: str, stop: int) -> None:
    assert_exact(LOADERS[name], stop)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop", [4, 8])
def test_goes_on_exactly_with_workers_and_with_another_number_of_them(stop: int, persistent: bool) -> None:
    def workers(number: int) -> Callable[[], DataLoader[Item]]:
        keep = persistent and number > 0
        return lambda: DataLoader(Plain(), batch_size=4, shuffle=True, num_workers=number, persistent_workers=keep)

    assert_exact(workers(2), stop)
    if not persistent:  # these draw their workers' seed once, others at each epoch
        assert_exact(workers(2), stop, again=workers(0))


def test_a_second_resume_is_as_exact_as_the_first() -> None:
    make = LOADERS["shuffle, augmented"]
    seed(1)
    whole, _ = run(Batches(make()), 20)
    seed(1)
    _, where = run(Batches(make()), 4)
    seed(2)
    second, where = run(Batches(make(), resume=where), 5)
    seed(3)
    third, _ = run(Batches(make(), resume=where), 11)
    assert second + third == whole[4:]


def test_passes_over_used_batches_without_loading_them() -> None:
    loaded: list[int] = []

    class Watched(Plain):
        def __getitem__(self, index: int) -> Item:
            loaded.append(index)
            return super().__getitem__(index)

    def make() -> DataLoader[Item]:
        return DataLoader(Watched(), batch_size=4, sampler=SequentialSampler(range(23)))

    _, where = run(Batches(make()), 4)
    loaded.clear()
    run(Batches(make(), resume=where), 1)
    assert loaded == [16, 17, 18, 19]


def test_the_users_loader_is_left_as_it_was() -> None:
    loader = LOADERS["shuffle"]()
    sampler = loader.batch_sampler
    run(Batches(loader), 3)
    assert loader.batch_sampler is sampler
    assert len(list(loader)) == 6


def test_persistent_workers_that_the_user_started_before_are_not_taken_over() -> None:
    loader = DataLoader(Plain(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    list(loader)
    seed(1)
    used, where = run(Batches(loader), 4)
    assert where["start"] is not None
    seed(1)
    assert run(Batches(DataLoader(Plain(), batch_size=4, shuffle=True, num_workers=1)), 4)[0] == used


def test_a_sampler_that_shuffles_by_epoch_is_told_each_epoch() -> None:
    seen = torch.cat(list(Batches(LOADERS["by epoch"](), epochs=2))).tolist()
    assert sorted(seen[:23]) == sorted(seen[23:]) == list(range(23))
    assert seen[:23] != seen[23:]


def test_ends_after_its_epochs_also_when_resumed_at_the_very_end() -> None:
    assert len(list(Batches(LOADERS["shuffle"](), epochs=3))) == 18
    _, where = run(Batches(LOADERS["shuffle"](), epochs=3), 18)
    assert list(Batches(LOADERS["shuffle"](), epochs=3, resume=where)) == []


def test_a_loader_that_can_not_give_what_comes_next_is_refused() -> None:
    _, where = run(Batches(LOADERS["shuffle"]()), 5)
    with pytest.raises(DataMismatch, match="5 batches into an epoch, but the loader has only 3"):
        next(iter(Batches(DataLoader(Plain(), batch_size=8, shuffle=True), resume=where)))
    with pytest.raises(DataMismatch, match="0 generators were saved, the loader has 1"):
        next(iter(Batches(LOADERS["generator"](), resume=where)))


def test_an_empty_loader_is_refused_instead_of_going_round_for_ever() -> None:
    with pytest.raises(DataMismatch, match="gave no batch"):
        next(iter(Batches([])))
