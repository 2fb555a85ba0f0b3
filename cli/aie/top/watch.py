"""Look, draw, wait, again: until Ctrl-C, or once.

A server that is not there at the first look is an error. One that goes away later is waited for: it may be started
again, and whoever watches wants to see that, too.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.live import Live

from aie.top.history import History
from aie.top.look import Look
from aie.top.picture import Picture
from aie.top.screen import draw, plain_lines, told_of
from aie.top.summary import document
from aie_engine import EnvironmentLacksError

__all__ = ["JsonLines", "Lines", "Output", "Screen", "watch"]


class Output(Protocol):
    """Where the looks go."""

    def show(self, history: History, trouble: str | None) -> None:
        """trouble: why there is nothing new."""


def watch(
    look: Callable[[], Look],
    output: Output,
    *,
    interval_s: float,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """once: two looks `interval_s` apart, for there to be rates, and one picture; with an interval of 0 a single look.
    Raises `EnvironmentLacksError` from the first look, and with `once` from either."""
    history = History()
    history.add(look())
    if once:
        if interval_s > 0:
            sleep(interval_s)
            history.add(look())
        output.show(history, None)
        return
    output.show(history, None)
    next_s = clock()
    while True:
        next_s = max(next_s + interval_s, clock())
        sleep(max(0.0, next_s - clock()))
        trouble: str | None = None
        try:
            history.add(look())
        except EnvironmentLacksError as error:
            trouble = f"{error} Trying again."
        output.show(history, trouble)


@dataclass(slots=True)
class Screen:
    """Drawn in place on a terminal; a context, which leaves the last picture behind."""

    console: Console
    url: str
    once: bool = False
    max_rows: int | None = None  # of requests, where the picture is as high as it wants to be
    wall_clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S")
    _live: Live | None = None
    _last: Picture | None = None

    def __enter__(self) -> "Screen":
        if not self.once:
            self._live = Live(console=self.console, auto_refresh=False, screen=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            if self._last is not None:  # all of it: here is room
                self._last.is_fitted = False
                self.console.print(self._last)

    def show(self, history: History, trouble: str | None) -> None:
        rows = self.max_rows or 20
        self._last = picture = draw(history, self.url, when=self.wall_clock(), trouble=trouble, max_rows=rows)
        if self._live is None:
            self.console.print(picture)
        else:
            picture.is_fitted = True
            self._live.update(picture, refresh=True)


@dataclass(slots=True)
class Lines:
    """A line per model and look, and those for what went wrong meanwhile, for where there is no terminal. A trouble is
    told once, until it is another."""

    write: Callable[[str], None]
    wall_clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S")
    _told: str | None = None

    def show(self, history: History, trouble: str | None) -> None:
        if trouble is None:
            for line in plain_lines(history):
                self.write(f"{self.wall_clock()} {line}")
            for line in told_of(history):
                self.write(line)
        elif trouble != self._told:
            self.write(f"{self.wall_clock()} {trouble}")
        self._told = trouble


@dataclass(slots=True)
class JsonLines:
    """An object per look; one with `trouble` alone where there is nothing new."""

    write: Callable[[str], None]
    url: str

    def show(self, history: History, trouble: str | None) -> None:
        what = document(history, self.url) if trouble is None else {"url": self.url, "trouble": trouble}
        self.write(json.dumps(what))
