"""What the server itself counted while a level ran, from its /metrics: queue, batch, KV cache, GPU, where time went.

The client sees answers; why they were slow stands here. Names are those of ours, vLLM, SGLang, llama-server and Triton,
as `aie top` knows them. Counters are of the window alone, gauges were looked at once a second.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from aie.bench.client import Endpoint, get_text
from aie.top.figures import Figures, Model, Rates, figures_of, rates
from aie.top.prometheus import parse

__all__ = ["ServerWatch", "ServerWindow"]

_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """None: the server does not say. Shares from 0 to 1; percentiles in milliseconds, from its histograms."""

    server: str
    waiting_mean: float | None = None
    waiting_max: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    mean_batch: float | None = None  # over its steps, or over the batches of a model that answers at once
    utilisation: float | None = None  # mean batch over the largest allowed
    tokens_per_step: float | None = None
    kv_usage_max: float | None = None
    prefix_hit_share: float | None = None  # of prompt tokens
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    ended: float | None = None  # requests
    failed: float | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None
    tpot_p50_ms: float | None = None
    e2e_p50_ms: float | None = None
    queued_p50_ms: float | None = None
    memory_bytes_max: float | None = None
    gpu_utilisation_mean: float | None = None
    gpu_memory_bytes_max: float | None = None
    gpu_power_w_mean: float | None = None
    gpu_energy_j: float | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)  # batches by why they were cut
    phase_shares: Mapping[str, float] = field(default_factory=dict)  # of the time of requests in the server; sum 1


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
    _energy_j: list[float] = field(default_factory=list)  # of its GPUs

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
        elif found.is_predictor and figures.front_memory:
            gauges["memory"] = figures.front_memory
        self._gauges.append(gauges | {f"gpu_{name}": value for name, value in figures.gpu.items()})
        if "energy_j" in figures.gpu:
            self._energy_j.append(figures.gpu["energy_j"])
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
        before, now = self._first[1], self._last[1]
        grown = rates(before, now, max(1e-9, self._last[0] - self._first[0]))
        mean_batch = _mean_batch(before, now, grown)
        return ServerWindow(
            server=self._server,
            waiting_mean=self._over(fmean, "waiting", "inputs_waiting"),
            waiting_max=self._over(max, "waiting", "inputs_waiting"),
            running_mean=self._over(fmean, "running", "inputs_running"),
            running_max=self._over(max, "running", "inputs_running"),
            mean_batch=mean_batch,
            utilisation=_utilisation(mean_batch, now),
            tokens_per_step=grown.share("step_tokens", "steps"),
            kv_usage_max=self._over(max, "kv_usage"),
            prefix_hit_share=grown.share("hits", "hit_queries"),
            preemptions=grown.grown.get("preemptions"),
            prompt_tokens=grown.grown.get("prompt_tokens", grown.grown.get("input_tokens")),
            generated_tokens=grown.grown.get("generated_tokens"),
            ended=grown.grown.get("ended"),
            failed=grown.grown.get("failed"),
            ttft_p50_ms=grown.quantile_ms("ttft", 0.5),
            itl_p50_ms=grown.quantile_ms("itl", 0.5),
            tpot_p50_ms=grown.quantile_ms("tpot", 0.5),
            e2e_p50_ms=grown.quantile_ms("e2e", 0.5),
            queued_p50_ms=grown.quantile_ms("queued", 0.5),
            memory_bytes_max=self._over(max, "memory"),
            gpu_utilisation_mean=self._over(fmean, "gpu_utilisation"),
            gpu_memory_bytes_max=self._over(max, "gpu_memory_used"),
            gpu_power_w_mean=self._over(fmean, "gpu_power_w"),
            gpu_energy_j=self._energy_j[-1] - self._energy_j[0] if len(self._energy_j) > 1 else None,
            reasons={reason: round(count) for reason, count in grown.cuts.items() if round(count) > 0},
            phase_shares=_shares(grown.phases),
        )

    def _over(self, of: Callable[[Sequence[float]], float], *gauges: str) -> float | None:
        """Of the first of `gauges` that there is, over the looks between the first and the last, which are from before
        anything was sent and after all was answered; of a run shorter than a second there is only the last."""
        inside = self._gauges[1:-1] or self._gauges[1:]
        for gauge in gauges:
            values = [seen[gauge] for seen in inside if gauge in seen]
            if values:
                return float(of(values))
        return None


def _model_of(figures: Figures, name: str) -> Model | None:
    """Many servers name a model otherwise in their metrics than in their API: one that stands alone is meant."""
    if name in figures.models:
        return figures.models[name]
    return next(iter(figures.models.values())) if len(figures.models) == 1 else None


def _mean_batch(before: Model, now: Model, grown: Rates) -> float | None:
    """llama-server gives a mean since its start; with the number of steps that is a sum, and two sums are a window."""
    if now.is_predictor:
        num_batches = sum(grown.cuts.values())
        return grown.grown.get("batch_inputs", 0.0) / num_batches if num_batches else None
    mean = grown.share("step_requests", "steps")
    steps = grown.grown.get("steps")
    if mean is not None or not steps or "mean_batch" not in now.gauges:
        return mean
    sums = [one.gauges.get("mean_batch", 0.0) * one.counters.get("steps", 0.0) for one in (before, now)]
    return (sums[1] - sums[0]) / steps if sums[1] >= sums[0] else None


def _utilisation(mean_batch: float | None, now: Model) -> float | None:
    """Where a server tells the utilisation since its start, but not the largest batch: over the mean batch of the same
    time that is one over the largest batch."""
    if mean_batch is None:
        return None
    if limit := now.gauges.get("batch_limit"):
        return mean_batch / limit
    num_batches, since_start = sum(now.cuts.values()), now.gauges.get("utilisation")
    inputs = now.counters.get("batch_inputs")
    return mean_batch * since_start * num_batches / inputs if since_start is not None and inputs else None


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """A single phase is no division of anything."""
    total = sum(seconds.values())
    return {name: part / total for name, part in seconds.items()} if total > 0 and len(seconds) > 1 else {}
