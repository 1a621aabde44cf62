"""moto's methods, replaced for as long as the embedded cloud lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """What was changed in moto, for the whole process, and how it was."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def replace(self, owner: type, name: str, method: Callable[..., Any]) -> None:
        """Let ``method(original, this, *args)`` stand for a method; ``original`` takes the arguments alone."""
        original = getattr(owner, name, None)
        own = name in vars(owner)

        def replaced(this: Any, *args: Any, **kwargs: Any) -> Any:
            return method(None if original is None else functools.partial(original, this), this, *args, **kwargs)

        setattr(owner, name, replaced if original is None else functools.wraps(original)(replaced))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def set(self, owner: Any, name: str, value: object) -> None:
        """Give an attribute another value."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def later(self, undo: Callable[[], object]) -> None:
        """Do this too when everything is put back."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put moto back as it was."""
        while self._undo:
            self._undo.pop()()
