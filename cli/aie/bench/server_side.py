"""What the server itself counted while a level ran, from its /metrics: queue, batch, KV cache, preemptions.

The client sees answers; why they were slow stands here. Names are those of ours, vLLM, SGLang and llama-server, as
`aie top` knows them. Counters are of the window alone, gauges were looked at once a second.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich import box
from rich.table import Table

from aie.bench.client import Endpoint, get_text
from aie.top.figures import Figures, Model, Rates, figures_of, rates
from aie.top.prometheus import parse

__all__ = ["ServerWatch", "ServerWindow", "server_table"]

_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """None: the server does not say. Shares from 0 to 1; percentiles in milliseconds, from its histograms."""

    server: str
    waiting_mean: float | None = None
    waiting_max: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    mean_batch: float | None = None  # over its steps
    kv_usage_max: float | None = None
    prefix_hit_share: float | None = None  # of prompt tokens
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None
    e2e_p50_ms: float | None = None
    memory_bytes_max: float | None = None


@dataclass(slots=True)
class ServerWatch:
    """Looks at one model of one server, again and again."""

    endpoint: Endpoint
    model: str
    clock: Callable[[], float] = time.monotonic
    _first: tuple[float, Model] | None = None
    _last: tuple[float, Model] | None = None
    _server: str = ""
    _gauges: list[dict[str, float]] = field(default_factory=list)

    @property
    def is_offered(self) -> bool:
        """Whether a look ever found something."""
        return self._first is not None

    @property
    def gauges(self) -> dict[str, float]:
        """As they were seen last; empty where there are none."""
        return self._gauges[-1] if self._gauges else {}

    async def look(self) -> bool:
        """False where the server has no metrics, or none that say anything of the model."""
        try:
            status, text = await get_text(self.endpoint, "/metrics")
            figures = figures_of(parse(text)) if status == 200 else None
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return False
        found = None if figures is None else _model_of(figures, self.model)
        if figures is None or found is None:
            return False
        self._server = figures.server
        self._last = self.clock(), found
        self._first = self._first or self._last
        gauges = dict(found.gauges)
        if "engine_memory" in gauges and figures.front_memory:
            gauges["memory"] = gauges["engine_memory"] + figures.front_memory
        self._gauges.append(gauges)
        return True

    async def watch(self) -> None:
        """Runs until cancelled; not at all where the first look found nothing."""
        while self._first is not None:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    def window(self) -> ServerWindow | None:
        """From the first look to the last."""
        if self._first is None or self._last is None or self._first is self._last:
            return None
        grown = rates(self._first[1], self._last[1], max(1e-9, self._last[0] - self._first[0]))
        return ServerWindow(
            server=self._server,
            waiting_mean=self._over(fmean, "waiting"),
            waiting_max=self._over(max, "waiting"),
            running_mean=self._over(fmean, "running"),
            running_max=self._over(max, "running"),
            mean_batch=_mean_batch(self._first[1], self._last[1], grown),
            kv_usage_max=self._over(max, "kv_usage"),
            prefix_hit_share=grown.share("hits", "hit_queries"),
            preemptions=grown.grown.get("preemptions"),
            prompt_tokens=grown.grown.get("prompt_tokens"),
            generated_tokens=grown.grown.get("generated_tokens"),
            ttft_p50_ms=grown.quantile_ms("ttft", 0.5),
            itl_p50_ms=grown.quantile_ms("itl", 0.5),
            e2e_p50_ms=grown.quantile_ms("e2e", 0.5),
            memory_bytes_max=self._over(max, "memory"),
        )

    def _over(self, of: Callable[[Sequence[float]], float], gauge: str) -> float | None:
        """Over the looks between the first and the last, which are from before anything was sent and after all was
        answered; of a run shorter than a second there is only the last."""
        inside = self._gauges[1:-1] or self._gauges[1:]
        values = [gauges[gauge] for gauges in inside if gauge in gauges]
        return float(of(values)) if values else None


def _model_of(figures: Figures, name: str) -> Model | None:
    """Many servers name a model otherwise in their metrics than in their API: one that stands alone is meant."""
    if name in figures.models:
        return figures.models[name]
    return next(iter(figures.models.values())) if len(figures.models) == 1 else None


def _mean_batch(before: Model, now: Model, grown: Rates) -> float | None:
    """llama-server gives a mean since its start; with the number of steps that is a sum, and two sums are a window."""
    mean = grown.share("step_requests", "steps")
    steps = grown.grown.get("steps")
    if mean is not None or not steps or "mean_batch" not in now.gauges:
        return mean
    sums = [one.gauges.get("mean_batch", 0.0) * one.counters.get("steps", 0.0) for one in (before, now)]
    return (sums[1] - sums[0]) / steps if sums[1] >= sums[0] else None


def server_table(levels: Sequence[tuple[str, ServerWindow | None, float | None]]) -> Table | None:
    """levels: label, window, and the client's own median TTFT [ms] to be set beside the server's. None where no server
    said anything."""
    known = [window for _, window, _ in levels if window is not None]
    if not known:
        return None
    view = Table(title=f"What {known[0].server} counted meanwhile", title_justify="left", box=box.SIMPLE_HEAD,
                 padding=0, pad_edge=False)  # fmt: skip
    for name in ("level", "queue\nmean", "most", "running\nmean", "most", "KV\nmost", "prefix\nhits", "pre-\nempted",
                 "TTFT P50\nserver", "client"):  # fmt: skip
        view.add_column(name, justify="right", no_wrap=True)
    for label, window, client_ms in levels:
        if window is None:
            view.add_row(label, *["–"] * 9)
            continue
        view.add_row(
            label, _one(window.waiting_mean), _whole(window.waiting_max), _one(window.running_mean),
            _whole(window.running_max), _percent(window.kv_usage_max), _percent(window.prefix_hit_share),
            _whole(window.preemptions), _whole(window.ttft_p50_ms), _whole(client_ms),
        )  # fmt: skip
    return view


def _one(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
