"""A line that counts answers while a level runs."""

import sys
import time

from aie.bench.client import Outcome

__all__ = ["Progress"]

_REDRAW_EVERY_S = 0.1  # a write per answer would itself be load


class Progress:
    """Rewritten on a terminal, once per level elsewhere. total: of the requests; None: nobody knows."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = "" if total is None else f" of {total}"
        self.outcomes: list[Outcome] = []  # of requests that have ended
        self.start_s = time.perf_counter()
        self._drawn_s = 0.0
        self._live = sys.stderr.isatty()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.start_s

    def step(self, outcome: Outcome) -> None:
        """One more."""
        self.outcomes.append(outcome)
        if self._live and time.perf_counter() - self._drawn_s >= _REDRAW_EVERY_S:
            self._drawn_s = time.perf_counter()
            print(f"\r\x1b[K{self._text()}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The line as it stays."""
        print(f"\r\x1b[K{self._text()}" if self._live else self._text(), file=sys.stderr, flush=True)

    def _text(self) -> str:
        return f"{self._label}: {len(self.outcomes)}{self._total} done in {self.elapsed_s:.1f} s"
