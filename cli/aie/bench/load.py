"""The closed loop: `concurrency` clients, each sending its next request when the last one has been answered."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aie.bench.client import Endpoint, Outcome, get_text, send_streaming
from aie.bench.workload import PlannedRequest

__all__ = ["LevelResult", "Sampler", "run_level"]

_SAMPLE_EVERY_S = 0.25


@dataclass(slots=True)
class LevelResult:
    """One row of the table before it is summed up."""

    concurrency: int
    outcomes: list[Outcome]
    wall_s: float
    peak_rss_bytes: int | None = None
    mean_batch: float | None = None


@dataclass(slots=True)
class Sampler:
    """Watches the server while a level runs: memory through `read_rss`, batch size through its /metrics."""

    endpoint: Endpoint
    metrics_names: tuple[str, str] | None  # counters (requests over all steps, steps); None: not offered
    read_rss: Callable[[], int | None]
    peak_rss_bytes: int | None = field(default=None)

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            rss = self.read_rss()
            if rss is not None:
                self.peak_rss_bytes = max(rss, self.peak_rss_bytes or 0)
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def batch_counters(self) -> tuple[float, float] | None:
        """(sum of batch sizes, number of steps) since the server started."""
        if self.metrics_names is None:
            return None
        try:
            status, text = await get_text(self.endpoint, "/metrics")
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            return None
        found = {name: _metric(text, name) for name in self.metrics_names} if status == 200 else {}
        values = [value for value in found.values() if value is not None]
        return (values[0], values[1]) if len(values) == 2 else None


async def run_level(
    endpoint: Endpoint,
    model: str,
    planned: list[PlannedRequest],
    concurrency: int,
    *,
    sampler: Sampler,
    timeout_s: float,
    duration_s: float | None = None,
    on_done: Callable[[Outcome], None] = lambda _outcome: None,
    chat: bool = False,
) -> LevelResult:
    """Sends all of `planned`, at most `concurrency` at once, and stops starting new ones after `duration_s`.

    chat: each prompt as a message of a user to /v1/chat/completions, instead of to /v1/completions as it is."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    waiting = iter(planned)
    outcomes: list[Outcome] = []
    before = await sampler.batch_counters()
    watcher = asyncio.create_task(sampler.watch())
    start_s = time.perf_counter()

    async def client() -> None:
        for request in waiting:
            if duration_s is not None and time.perf_counter() - start_s >= duration_s:
                break
            asked: object = [{"role": "user", "content": request.prompt}] if chat else request.prompt
            body: dict[str, object] = {
                "model": model, "messages" if chat else "prompt": asked, "max_tokens": request.max_tokens,
                "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            outcome = await send_streaming(endpoint, path, body, timeout_s=timeout_s)
            outcomes.append(outcome)
            on_done(outcome)

    try:
        await asyncio.gather(*(client() for _ in range(concurrency)))
        wall_s = time.perf_counter() - start_s
    finally:
        watcher.cancel()
    after = await sampler.batch_counters()
    result = LevelResult(concurrency, outcomes, wall_s, sampler.peak_rss_bytes)
    if before is not None and after is not None and after[1] > before[1]:
        result.mean_batch = (after[0] - before[0]) / (after[1] - before[1])
    return result


def _metric(text: str, name: str) -> float | None:
    """The sum over all label sets of one sample name in the Prometheus text format."""
    total = None
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            try:
                total = (total or 0.0) + float(line.rsplit(" ", 1)[1])
            except ValueError:
                return None
    return total
