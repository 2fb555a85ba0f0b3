"""Every metric of the server, declared once. Names and bucket bounds are vLLM's where it has them, so boards work
unchanged."""

import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from aie_server.control import ModelControl
from aie_server.garbage_metrics import GarbageMetrics
from aie_server.metrics import Counter, Histogram, Metrics
from aie_server.served import ModelTable, ServedModel

__all__ = ["ModelMetrics", "ServerMetrics"]

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_E2E_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0)
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

_MEMORY_STATES = ("reserved", "live", "requested", "cached", "pending", "mapped")


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """The children that one model's requests touch; looked up once, not per token."""

    time_to_first_token: Histogram
    inter_token_latency: Histogram
    e2e_latency: Histogram
    prompt_tokens: Counter
    generation_tokens: Counter
    prompt_length: Histogram
    generation_length: Histogram


class ServerMetrics:
    """Declares everything in `registry`. Figures of an engine are read from its `stats()` at each scrape."""

    def __init__(self, registry: Metrics) -> None:
        self.registry = registry
        by_model = ("model_name",)
        self.requests = registry.counter(
            "requests_total", "HTTP requests by route and status; 499: the client hung up.", ("route", "status")
        )
        self.success = registry.counter(
            "request_success_total", "Choices that ended, by reason.", ("model_name", "finished_reason")
        )
        self._ttft = registry.histogram(
            "time_to_first_token_seconds", "From admission to the first token.", _TTFT_S, by_model
        )
        self._itl = registry.histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", _ITL_S, by_model
        )
        self._e2e = registry.histogram(
            "e2e_request_latency_seconds", "From admission to the last token.", _E2E_S, by_model
        )
        self._prompt = registry.counter("prompt_tokens_total", "Prompt tokens of admitted requests.", by_model)
        self._generation = registry.counter("generation_tokens_total", "Tokens generated.", by_model)
        self._prompt_length = registry.histogram(
            "request_prompt_tokens", "Prompt tokens per choice.", _LENGTHS, by_model
        )
        self._generation_length = registry.histogram(
            "request_generation_tokens", "Tokens generated per choice.", _LENGTHS, by_model
        )
        self._running = registry.gauge("num_requests_running", "Requests in the running batch.", by_model)
        self._waiting = registry.gauge("num_requests_waiting", "Requests that wait for a place in the batch.", by_model)
        self._queue = registry.gauge("queue_length", "Same as num_requests_waiting.", by_model)
        self._kv_usage = registry.gauge("kv_cache_usage_perc", "Part of the KV blocks in use, 0 to 1.", by_model)
        self._preemptions = registry.counter(
            "num_preemptions_total", "Requests put back to make room for others.", by_model
        )
        self._steps = registry.counter("engine_steps_total", "Steps of the engine.", by_model)
        self._batch_sum = registry.counter(
            "engine_step_requests_total", "Requests over all steps; by engine_steps_total: the mean batch.", by_model
        )
        self._prefilled = registry.counter("engine_prefill_tokens_total", "Prompt tokens computed.", by_model)
        self._decoded = registry.counter("engine_decode_tokens_total", "Tokens sampled.", by_model)
        self._failed_steps = registry.counter("engine_failed_steps_total", "Steps that raised an error.", by_model)
        self._step_s = registry.counter("engine_step_seconds_total", "Time spent in steps.", by_model)
        self._execute_s = registry.counter(
            "engine_execute_seconds_total", "Of which in the executor; the rest is the engine's own Python.", by_model
        )
        self._prefix_queries = registry.counter(
            "prefix_cache_queries_total", "Tokens of admitted requests that the prefix cache was asked for.", by_model
        )
        self._prefix_hits = registry.counter(
            "prefix_cache_hits_total", "Of those, tokens that it had, and that need not be computed.", by_model
        )
        self._drafted = registry.counter(
            "spec_decode_num_draft_tokens_total", "Tokens that were guessed ahead and checked.", by_model
        )
        self._accepted = registry.counter(
            "spec_decode_num_accepted_tokens_total", "Of those, tokens that were right.", by_model
        )
        self._batch = registry.gauge("batch_size", "Mean batch size since the start.", by_model)
        self._most = registry.gauge("max_batch_size", "Most requests that are computed in one step.", by_model)
        self._pool_memory = registry.gauge(
            "memory_bytes",
            "Memory of the engine's pool by state: reserved = live + cached + pending; requested is what was asked for "
            "of live; mapped files come on top.",
            ("model_name", "state"),
        )
        self._kv_blocks = registry.gauge(
            "kv_blocks",
            "Blocks of the KV cache by state: used or free; of the free, cached ones hold what may still serve.",
            ("model_name", "state"),
        )
        self._worker_memory = registry.gauge(
            "engine_resident_memory_bytes", "Resident memory of the engine's process.", by_model
        )
        self._garbage = GarbageMetrics(registry)
        self._memory = registry.gauge("process_resident_memory_bytes", "Resident memory of the front process.")
        self._loads = registry.counter("model_loads_total", "Versions that were loaded and put to serve.", by_model)
        self._load_failures = registry.counter(
            "model_load_failures_total", "Loads that failed and left everything as it was.", by_model
        )
        self._load_s = registry.counter("model_load_seconds_total", "Time spent in both.", by_model)
        self._versions = registry.gauge(
            "model_versions", "Versions in memory: serving, still held by requests, or being loaded.", by_model
        )
        self._engine_counters = (
            self._preemptions, self._steps, self._batch_sum, self._prefilled, self._decoded, self._failed_steps,
            self._step_s, self._execute_s, self._prefix_queries, self._prefix_hits, self._drafted, self._accepted,
        )  # fmt: skip
        self._engine_gauges = (
            self._running, self._waiting, self._queue, self._kv_usage, self._batch, self._most, self._pool_memory,
            self._kv_blocks, self._worker_memory,
        )  # fmt: skip
        self._scrape = threading.Lock()  # two scrapes at once would count an exchange of engines twice
        self._seen: dict[str, weakref.ref[ServedModel]] = {}  # at the last one; a version that has gone is not kept
        registry.on_scrape(lambda: self._memory.labels().set(_resident_bytes()))

    def of_model(self, name: str) -> ModelMetrics:
        return ModelMetrics(
            self._ttft.labels(name),
            self._itl.labels(name),
            self._e2e.labels(name),
            self._prompt.labels(name),
            self._generation.labels(name),
            self._prompt_length.labels(name),
            self._generation_length.labels(name),
        )

    def watch(self, models: ModelTable) -> None:
        """Read the engines of all models that serve, at each scrape."""
        self.registry.on_scrape(lambda: self._collect_all(models))

    def watch_loads(self, control: ModelControl) -> None:
        """Read how often models were loaded, at each scrape."""
        self.registry.on_scrape(lambda: self._collect_loads(control))

    def _collect_loads(self, control: ModelControl) -> None:
        for name, figures in control.figures().items():
            self._loads.labels(name).set_total(figures.num_loads)
            self._load_failures.labels(name).set_total(figures.num_failures)
            self._load_s.labels(name).set_total(figures.seconds)
            self._versions.labels(name).set(figures.num_versions)

    def _collect_all(self, models: ModelTable) -> None:
        with self._scrape, models.lease_all() as leased:
            for model in leased:
                seen = self._seen.get(model.name)
                if seen is not None and seen() is not model:
                    for counter in self._engine_counters:
                        counter.labels(model.name).begin_anew()
                self._collect(model)
            now = {model.name: weakref.ref(model) for model in leased}
            for gone in self._seen.keys() - now.keys():
                for gauge in self._engine_gauges:
                    gauge.forget(gone)
            self._seen = now

    def _collect(self, model: ServedModel) -> None:
        stats, name = model.engine.stats(), model.name
        self._running.labels(name).set(stats.num_running)
        self._waiting.labels(name).set(stats.num_waiting)
        self._queue.labels(name).set(stats.num_waiting)
        self._kv_usage.labels(name).set(stats.kv_usage)
        self._preemptions.labels(name).set_total(stats.num_preemptions)
        self._steps.labels(name).set_total(stats.steps)
        self._batch_sum.labels(name).set_total(stats.batch_size_sum)
        self._prefilled.labels(name).set_total(stats.tokens_prefill)
        self._decoded.labels(name).set_total(stats.tokens_decode)
        self._failed_steps.labels(name).set_total(stats.failed_steps)
        self._garbage.collect(name, stats)
        self._step_s.labels(name).set_total(stats.step_time_s)
        self._execute_s.labels(name).set_total(stats.execute_time_s)
        self._prefix_queries.labels(name).set_total(stats.prefix_query_tokens)
        self._prefix_hits.labels(name).set_total(stats.prefix_hit_tokens)
        self._drafted.labels(name).set_total(stats.drafted_tokens)
        self._accepted.labels(name).set_total(stats.accepted_tokens)
        self._batch.labels(name).set(stats.batch_size_sum / stats.steps if stats.steps else 0.0)
        self._most.labels(name).set(model.engine.info.max_batch_size)
        self._worker_memory.labels(name).set(stats.rss_bytes)
        for state in _MEMORY_STATES:
            self._pool_memory.labels(name, state).set(getattr(stats, f"memory_{state}_bytes"))
        self._kv_blocks.labels(name, "used").set(stats.num_kv_blocks - stats.num_free_blocks)
        self._kv_blocks.labels(name, "free").set(stats.num_free_blocks)
        self._kv_blocks.labels(name, "cached").set(stats.num_cached_blocks)


def _resident_bytes() -> float:
    """From /proc where there is one; elsewhere 0, because the standard library knows only the peak."""
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0.0
