"""The looks of the last half minute, and what happened in between."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from aie.top.figures import Rates, rates
from aie.top.look import Look

__all__ = ["WINDOW_S", "History"]

_EVENT_LOOKS = 100  # of which the events are kept
WINDOW_S = 30.0  # percentiles of the last few requests alone would jump


class History:
    """`last` is the newest look."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: deque[Look] = deque()
        self.events: deque[Sequence[Mapping[str, Any]]] = deque(maxlen=_EVENT_LOOKS)  # by look, the latest last

    @property
    def last(self) -> Look | None:
        return self._looks[-1] if self._looks else None

    @property
    def hears_events(self) -> bool:
        """Whether the server tells what happens, or did a moment ago."""
        return any(look.events is not None for look in self._looks)

    def add(self, look: Look) -> None:
        self._looks.append(look)
        if look.events:
            self.events.append(look.events)
        while len(self._looks) > 2 and self._looks[1].at_s <= look.at_s - self._window_s:
            self._looks.popleft()

    def latest(self, model: str) -> Rates:
        """Since the look before the last one."""
        return self._since(self._looks[-2] if len(self._looks) > 1 else None, model)

    def lately(self, model: str) -> Rates:
        """Over the whole window, as far as it was watched."""
        return self._since(self._looks[0] if len(self._looks) > 1 else None, model)

    def _since(self, before: Look | None, model: str) -> Rates:
        now = self._looks[-1]
        found = now.figures.models[model]
        if before is None:
            return rates(None, found, None)
        return rates(before.figures.models.get(model), found, now.at_s - before.at_s)
