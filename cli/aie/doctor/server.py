"""What a server lets be seen beside its answers: its metrics, and the reason why its queue waits."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aie.bench.client import Endpoint
from aie.doctor.asking import get
from aie.doctor.measured import Neighbours
from aie.doctor.processes import Clocks, Process
from aie.top.figures import Figures, Model, Rates, figures_of, rates
from aie.top.prometheus import Scrape, parse
from aie_engine import available_cores

__all__ = ["Look", "Watch", "Window", "look_at_metrics"]

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Look:
    """At its metrics, at one moment."""

    at_s: float
    server: str
    model: Model
    front_memory: float | None
    collector: Mapping[str, float] = field(default_factory=dict)  # of Python's garbage: pause_s, runs, frozen
    held: str | None = None  # why the first in its queue waits
    workers: float | None = None  # of a model that answers at once

    @property
    def memory(self) -> float | None:
        """Of all its processes, as it tells."""
        engine = self.model.gauges.get("engine_memory", 0.0)
        return engine + self.front_memory if self.front_memory else engine or None


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen from the first look to the last. None or empty: the server does not tell."""

    looks: tuple[Look, ...]
    neighbours: Neighbours

    @property
    def rates(self) -> Rates | None:
        if len(self.looks) < 2:
            return None
        first, last = self.looks[0], self.looks[-1]
        return rates(first.model, last.model, max(1e-9, last.at_s - first.at_s))

    def gauge(self, name: str) -> list[float]:
        """As seen between the first look and the last, which are from before and after."""
        inside = self.looks[1:-1] or self.looks[1:]
        return [look.model.gauges[name] for look in inside if name in look.model.gauges]

    def held(self) -> Counter[str]:
        return Counter(look.held for look in self.looks if look.held is not None)

    def collector(self, name: str) -> float | None:
        """By how much it grew."""
        if len(self.looks) < 2 or name not in self.looks[-1].collector:
            return None
        return max(0.0, self.looks[-1].collector[name] - self.looks[0].collector.get(name, 0.0))


async def look_at_metrics(endpoint: Endpoint, model: str, *, ask_why: bool = False) -> Look | None:
    """None where there are none. ask_why: also why its queue waits, which only ours knows."""
    text = await get(endpoint, "/metrics")
    if text is None:
        return None
    try:
        scrape = parse(text)
        figures = figures_of(scrape)
    except ValueError:
        return None
    if figures is None or (found := _model_of(figures, model)) is None:
        return None
    at_s = time.perf_counter()
    held = await _why_held(endpoint, model) if ask_why and figures.server == "aie" else None
    workers = [scrape.total(one, model_name=model) for one in scrape.samples if one.endswith("prediction_workers")]
    return Look(
        at_s, figures.server, found, figures.front_memory, _collector(scrape), held, workers[0] if workers else None
    )


class Watch:
    """Looks at metrics and processes while something is measured."""

    def __init__(self, endpoint: Endpoint, model: str, process: Process | None, *, has_metrics: bool) -> None:
        self._endpoint, self._model, self._process = endpoint, model, process
        self._has_metrics = has_metrics
        self._looks: list[Look] = []
        self._task: asyncio.Task[None] | None = None
        self._before = Clocks.now(process)
        self.window = Window((), Neighbours(available_cores()))

    async def __aenter__(self) -> "Watch":
        await self._look()
        self._before = Clocks.now(self._process)
        self._task = asyncio.create_task(self._again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
        neighbours = self._before.until(Clocks.now(self._process))
        await self._look()
        self.window = Window(tuple(self._looks), neighbours)

    async def _again_and_again(self) -> None:
        while self._has_metrics:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._look(ask_why=True)

    async def _look(self, *, ask_why: bool = False) -> None:
        if self._has_metrics:
            look = await look_at_metrics(self._endpoint, self._model, ask_why=ask_why)
            if look is not None:
                self._looks.append(look)


def _model_of(figures: Figures, name: str) -> Model | None:
    """Many servers name a model otherwise in their metrics than in their API: one that stands alone is meant."""
    if name in figures.models:
        return figures.models[name]
    return next(iter(figures.models.values())) if len(figures.models) == 1 else None


async def _why_held(endpoint: Endpoint, model: str) -> str | None:
    text = await get(endpoint, "/debug/requests?limit=1")
    try:
        reason = json.loads(text or "{}")["queues"][model]["reason"]
        return str(reason)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _collector(scrape: Scrape) -> dict[str, float]:
    """Under Python's own names, or with the server's prefix before them."""
    wanted = {
        "pause_s": "python_gc_pause_seconds_total", "runs": "python_gc_collections_total",
        "frozen": "python_gc_frozen_objects",
    }  # fmt: skip
    found = {}
    for key, name in wanted.items():
        values = [scrape.total(one) for one in scrape.samples if one.endswith(name)]
        if known := [value for value in values if value is not None]:
            found[key] = sum(known)
    return found
