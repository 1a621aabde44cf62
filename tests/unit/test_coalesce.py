"""Sharing calls: no answer is older than its question, one call at a time, and after a throttled one the next waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudtrain.provisioner.adapters.coalesce import Backoff, Coalescer, Turns
from tests.waiting import until


class Calls:
    """A call that lasts until it is let go, and answers with its number."""

    def __init__(self) -> None:
        self.made: list[tuple[str, ...]] = []
        self.running = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0

    def __call__(self, keys: tuple[str, ...]) -> dict[str, int]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.made.append(keys)
        number = len(self.made)
        self.running.release()
        assert self.go.acquire(timeout=10)
        self.at_once -= 1
        return dict.fromkeys(keys, number)


def test_who_asks_during_a_call_shares_the_next_one() -> None:
    calls = Calls()
    shared = Coalescer[str, int](calls)
    with ThreadPoolExecutor(22) as pool:
        first = pool.submit(shared.ask, ["a"])
        assert calls.running.acquire(timeout=10)
        late = [pool.submit(shared.ask, [key]) for key in ["a", *(f"b{n}" for n in range(20))]]
        until(lambda: shared._open is not None and len(shared._open.keys) == 21)
        calls.go.release(2)
        assert first.result(10) == {"a": 1}
        assert [list(one.result(10).values()) for one in late] == [[2]] * 21
    assert [len(keys) for keys in calls.made] == [1, 21]
    assert calls.most_at_once == 1


def test_the_one_who_waits_for_a_gap_takes_along_who_asks_meanwhile() -> None:
    waiting, gap_over = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert gap_over.wait(10)

    shared = Coalescer[str, int](lambda keys: dict.fromkeys(keys, len(keys)), wait=wait)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(shared.ask, ["a"])
        assert waiting.wait(10)
        two = pool.submit(shared.ask, ["b", "c"])
        until(lambda: shared._open is not None and len(shared._open.keys) == 3)
        gap_over.set()
        assert (one.result(10), two.result(10)) == ({"a": 3}, {"b": 3, "c": 3})


def test_a_call_that_breaks_breaks_for_all_who_shared_it_and_for_no_later_one() -> None:
    broken = [True]

    def call(keys: tuple[str, ...]) -> dict[str, int]:
        if broken.pop():
            raise RuntimeError("no")
        return dict.fromkeys(keys, 1)

    shared = Coalescer[str, int](call)
    with pytest.raises(RuntimeError, match="no"):
        shared.ask(["a"])
    broken.append(False)
    assert shared.ask(["a"]) == {"a": 1}


def test_many_threads_get_their_own_answers() -> None:
    shared = Coalescer[int, int](lambda keys: {key: key * key for key in keys})
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: shared.ask([n])[n], range(2000)))
    assert found == [n * n for n in range(2000)]


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def backoff(time: Time, gap_s: float) -> Backoff:
    return Backoff(gap_s, now=lambda: time.now, sleep=time.sleep, chance=lambda least, _most: least)


def test_the_first_call_waits_for_nothing_and_the_next_for_the_gap() -> None:
    time = Time()
    pace = backoff(time, 1.0)
    starts = []
    for _ in range(3):
        pace.wait()
        starts.append(time.now)
        pace.note(throttled=False)
    assert starts == [100.0, 101.0, 102.0]
    time.now += 60
    pace.wait()
    assert time.now == 162.0, "who comes late waits for nothing"


def test_throttled_calls_come_less_and_less_often_and_then_again_more() -> None:
    time = Time()
    pace = backoff(time, 0.02)
    gaps = []
    for throttled in [
        True,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
    ]:
        before = time.now
        pace.wait()
        gaps.append(round(time.now - before, 2))
        pace.note(throttled=throttled)
    assert gaps[:6] == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0]  # half of 1, 2, 4, 8, 8: jitter at its least
    assert gaps[6:9] == [8.0, 4.0, 2.0]
    assert gaps[-1] <= 0.04


def test_some_start_at_once_and_the_others_one_after_the_other() -> None:
    time = Time()
    turns = Turns(2.0, 3, now=lambda: time.now, sleep=time.sleep)
    starts = []
    for _ in range(6):
        assert turns.take(10)
        starts.append(time.now - 100)
    assert starts == [0, 0, 0, 0.5, 1.0, 1.5]
    time.now += 100
    assert turns.take(0)


def test_who_would_wait_too_long_is_told_at_once_and_keeps_nobody() -> None:
    waits: list[float] = []
    turns = Turns(2.0, 1, now=lambda: 100.0, sleep=waits.append)
    assert [turns.take(1.0) for _ in range(50)] == [True, True, True, *[False] * 47]
    assert waits == [0.5, 1.0]
    assert turns.take(1.5)
