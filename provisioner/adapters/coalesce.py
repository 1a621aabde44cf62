"""Threads that ask one kind of question at once share a call, and none gets an answer older than its question."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Backoff:
    """When the next call of a kind may start: ``gap_s`` after the last one, and later and later while it is throttled.

    Not locked: one thread at a time uses it.
    """

    def __init__(
        self,
        gap_s: float,
        *,
        most_s: float = 8.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._least_s = self._gap_s = gap_s
        self._most_s = most_s
        self._now = now
        self._sleep = sleep
        self._chance = chance
        self._next_at = float("-inf")

    def wait(self) -> None:
        """Until the next call may start: at most ``most_s`` and half as much again."""
        left_s = self._next_at - self._now()
        if left_s > 0:
            self._sleep(left_s)
        self._next_at = self._now() + self._gap_s

    def note(self, *, throttled: bool) -> None:
        """What came of the call: twice the gap after a throttled one, with jitter; half of it after another."""
        if throttled:
            self._gap_s = min(max(2 * self._gap_s, 1.0), self._most_s)
            self._next_at = self._now() + self._gap_s * self._chance(0.5, 1.5)
        else:
            self._gap_s = max(self._gap_s / 2, self._least_s)


class Turns:
    """Who may start something of which only so many may start in a second: ``burst`` at once, then ``per_s``.

    Thread-safe.
    """

    def __init__(
        self,
        per_s: float,
        burst: int,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap_s = 1 / per_s
        self._burst = burst
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next_at = float("-inf")

    def take(self, patience_s: float) -> bool:
        """Wait for a turn; False, at once, where it would come later than that."""
        with self._lock:
            now = self._now()
            at = max(self._next_at, now - (self._burst - 1) * self._gap_s)
            if at - now > patience_s:
                return False
            self._next_at = at + self._gap_s
        if at > now:
            self._sleep(at - now)
        return True


@dataclass(eq=False, slots=True)
class _Batch(Generic[K, V]):
    """Keys that one call will ask for. ``before``: the call that must have ended first."""

    before: threading.Event | None
    keys: dict[K, None] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    answers: Mapping[K, V] = field(default_factory=dict)
    failure: BaseException | None = None


class Coalescer(Generic[K, V]):
    """``call`` answers a batch of keys; one call at a time. Whoever asks meanwhile shares the next one.

    The thread that opens a batch makes its call. An asker's call always starts after it asked.
    """

    def __init__(
        self, call: Callable[[tuple[K, ...]], Mapping[K, V]], *, wait: Callable[[], None] = lambda: None
    ) -> None:
        self._call = call
        self._wait = wait  # before each call; its batch grows meanwhile
        self._lock = threading.Lock()
        self._open: _Batch[K, V] | None = None
        self._last: threading.Event | None = None

    def ask(self, keys: Collection[K]) -> dict[K, V]:
        """The call's answers for these keys. Blocks for at most the running call and the next; raises what ``call``
        raises."""
        with self._lock:
            batch = self._open
            leads = batch is None
            if batch is None:
                batch = self._open = _Batch(self._last)
                self._last = batch.done
            batch.keys.update(dict.fromkeys(keys))
        if leads:
            self._lead(batch)
        else:
            batch.done.wait()
        if batch.failure is not None:
            raise batch.failure
        return {key: batch.answers[key] for key in keys}

    def _lead(self, batch: _Batch[K, V]) -> None:
        try:
            try:
                if batch.before is not None:
                    batch.before.wait()
                self._wait()
            finally:
                with self._lock:
                    self._open = None
            batch.answers = self._call(tuple(batch.keys))
        except BaseException as error:  # noqa: BLE001 - raised by ``ask``; the others of the batch wait for us, whatever happens here
            batch.failure = error
        finally:
            batch.done.set()
