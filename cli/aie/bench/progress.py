"""What is seen while a level runs: a picture on a terminal, a line when it ends elsewhere, or nothing."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, get_args

from rich.console import Console, RenderableType
from rich.live import Live

from aie.bench.dashboard import draw
from aie.bench.generator import Outcome
from aie.bench.running import Running
from aie.console import note
from aie_engine import InvalidInputError

__all__ = ["Progress", "Seen", "Ui", "choose_ui"]

Ui = Literal["none", "plain", "live"]

_PER_S = 4
_PLAIN_EVERY_S = 10.0


class Seen:
    """What the server says of itself meanwhile; nothing, unless somebody looks."""

    def __init__(
        self,
        memory_bytes: Callable[[], int | None] = lambda: None,
        gauges: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.memory_bytes, self.gauges = memory_bytes, gauges


class Progress:
    """Of one level. total: of the requests; None: the clock decides how many."""

    def __init__(self, label: str, total: int | None, *, ui: Ui | None = None, console: Console | None = None) -> None:
        self._label, self._total = label, total
        self._ui = choose_ui(None) if ui is None else ui
        self.running = Running()
        self.server = Seen()
        self._live: Live | None = None
        self._said_s = 0.0
        if self._ui == "live":
            # On standard error: standard output is the result, and may go elsewhere.
            console = Console(stderr=True, markup=False, emoji=False, highlight=False) if console is None else console
            self._live = Live(self._picture(), console=console, auto_refresh=False, transient=True)
            self._live.start()

    @property
    def outcomes(self) -> list[Outcome]:
        """Of requests that have ended."""
        return self.running.outcomes

    @property
    def elapsed_s(self) -> float:
        return self.running.elapsed_s

    @property
    def start_s(self) -> float:
        return self.running.start_s

    def begin(self, start_s: float) -> None:
        """The clock runs from then on."""
        self.running.begin(start_s)

    def started(self, outcome: Outcome) -> None:
        """One is under way."""
        self.running.started(outcome)

    def step(self, outcome: Outcome) -> None:
        """One has ended."""
        self.running.ended(outcome)

    def flowed(self, events: int) -> None:
        """So many events with text have come to those that are under way."""
        self.running.flowed(events)

    async def show(self) -> None:
        """Draws until cancelled."""
        with suppress(OSError):  # who does not look any more misses it
            while True:
                await asyncio.sleep(1 / _PER_S)
                self.refresh()

    def refresh(self) -> None:
        """Once."""
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        elif self._ui == "plain" and self.elapsed_s - self._said_s >= _PLAIN_EVERY_S:
            self._said_s = self.elapsed_s
            note(self._text())

    def end(self) -> None:
        """The line that stays."""
        if self._live is not None:
            self._live.stop()
        if self._ui != "none":
            note(self._text())

    def _picture(self) -> RenderableType:
        return draw(
            self._label, self._total, self.running.look(), memory_bytes=self.server.memory_bytes(),
            gauges=self.server.gauges(),
        )  # fmt: skip

    def _text(self) -> str:
        of = "" if self._total is None else f" of {self._total}"
        failed = sum(one.error is not None and one.kind not in ("cancelled", "stopped") for one in self.outcomes)
        bad = f", {failed} not answered" if failed else ""
        return f"{self._label}: {len(self.outcomes)}{of} done in {self.elapsed_s:.1f} s{bad}"


def choose_ui(wanted: str | None) -> Ui:
    """As asked; else the picture where a person looks at a terminal that can show it. Raises `InvalidInputError`."""
    for known in get_args(Ui):
        if wanted == known:
            return known  # type: ignore[no-any-return]
    if wanted is not None:
        raise InvalidInputError(f"--ui is {wanted!r}; choose {', '.join(get_args(Ui))}.", param="ui")
    can = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return "live" if can and not os.environ.get("CI") else "plain"
