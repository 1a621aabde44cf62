"""The line that redraws itself on a terminal (rich; imported only there)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text


class LiveLine:
    """Events scroll by; the line below them shows the moment."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def event(self, text: str) -> None:
        """A line that stays, above the moving one."""
        self._live.console.print(Text(text))

    def now(self, line: str, at: float) -> None:
        """Redraw."""
        self._live.update(Text(line, style="bold", no_wrap=True, overflow="ellipsis"))


@contextmanager
def live_line(console: Console | None = None) -> Iterator[LiveLine]:
    """On stderr unless told otherwise. NO_COLOR is honoured by rich."""
    with Live(Text(""), console=console or Console(stderr=True), refresh_per_second=5, transient=True) as live:
        yield LiveLine(live)
