"""What a look says, model by model, as values: for the screen, for plain lines and for JSON alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aie.top.figures import PREDICTION_PHASES, Model, Rates
from aie.top.history import History

__all__ = ["Latency", "ModelSummary", "document", "summaries"]

_QUANTILES = (0.5, 0.9, 0.99)
_LATENCIES = ("ttft", "itl", "e2e", *PREDICTION_PHASES)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in milliseconds. One that fewer observations than it needs stand behind is None."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """None: the server does not say, or nothing happened. Rates are since the last look, latencies of the window."""

    model: Model
    seconds: float | None  # that the rates are of
    window_s: float | None  # that the latencies are of; None: since the server's start
    generated_per_s: float | None
    prompt_per_s: float | None
    hit_share: float | None  # of the prompt tokens looked up, those that the prefix cache had
    drafted_per_s: float | None
    accepted_share: float | None
    preemptions: float | None
    steps_per_s: float | None
    mean_batch: float | None
    execute_share: float | None  # of the time in steps
    inputs_per_s: float | None
    cuts: Mapping[str, float]  # of the batches of a predictor, what part was cut for which reason
    latencies: Mapping[str, Latency]


def summaries(history: History) -> list[ModelSummary]:
    """Of all models at the last look."""
    look = history.last
    if look is None:
        return []
    return [_summary(model, history.latest(name), history.lately(name)) for name, model in look.figures.models.items()]


def _summary(model: Model, latest: Rates, lately: Rates) -> ModelSummary:
    num_batches = sum(lately.cuts.values())
    mean_batch = latest.share("step_requests", "steps")
    if model.is_predictor:
        mean_batch = lately.grown.get("batch_inputs", 0.0) / num_batches if num_batches else None
    return ModelSummary(
        model=model,
        seconds=latest.seconds,
        window_s=lately.seconds,
        generated_per_s=latest.per_s("generated_tokens"),
        prompt_per_s=latest.per_s("prompt_tokens"),
        hit_share=_or(lately.share("hits", "hit_queries"), model.gauges.get("hit_rate")),
        drafted_per_s=latest.per_s("drafted"),
        accepted_share=lately.share("accepted", "drafted"),
        preemptions=latest.grown.get("preemptions"),
        steps_per_s=latest.per_s("steps"),
        mean_batch=_or(mean_batch, model.gauges.get("mean_batch")),
        execute_share=latest.share("execute_s", "step_s"),
        inputs_per_s=latest.per_s("inputs"),
        cuts={reason: cuts / num_batches for reason, cuts in lately.cuts.items() if cuts} if num_batches else {},
        latencies={
            key: _latency(lately, key)
            for key in _LATENCIES
            if key in lately.histograms and lately.histograms[key].count
        },
    )


def _latency(rates: Rates, key: str) -> Latency:
    count = round(rates.histograms[key].count)
    found = [rates.quantile_ms(key, q) if count * (1 - q) >= 1 - 1e-9 else None for q in _QUANTILES]
    return Latency(count, *found)


def _or(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def document(history: History, url: str) -> dict[str, Any]:
    """The last look as one JSON object."""
    look = history.last
    assert look is not None, "nothing was seen"
    requests = look.requests
    return {
        "url": url,
        "server": look.figures.server,
        "front_memory_bytes": look.figures.front_memory,
        "models": {one.model.name: _model_document(one) for one in summaries(history)},
        "open": None if requests is None else list(requests.open),
        "recent": None if requests is None else list(requests.recent),
        "queues": None if requests is None else dict(requests.queues),
        "num_open_of_others": None if requests is None else requests.num_open_of_others,
        "why_no_requests": look.why_no_requests,
        "events": None if look.events is None else list(look.events),
    }


def _model_document(summary: ModelSummary) -> dict[str, Any]:
    plain = {
        name: getattr(summary, name)
        for name in (
            "seconds", "window_s", "generated_per_s", "prompt_per_s", "hit_share", "drafted_per_s", "accepted_share",
            "preemptions", "steps_per_s", "mean_batch", "execute_share", "inputs_per_s",
        )
    }  # fmt: skip
    latencies = {
        f"{key}_ms": {"count": one.count, "p50": one.p50, "p90": one.p90, "p99": one.p99}
        for key, one in summary.latencies.items()
    }
    return {**summary.model.gauges, **plain, "cuts": dict(summary.cuts), **latencies}
