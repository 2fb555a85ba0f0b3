"""What is told of a model, line by line: a name, and the figures behind it as a person reads them."""

from collections.abc import Iterator, Mapping

from aie.console import format_bytes
from aie.top.figures import PREDICTION_PHASES
from aie.top.summary import Latency, ModelSummary
from aie.top.words import bar, count, duration, percent

__all__ = ["facts_of"]

_NAMES = {"ttft": "first token", "itl": "between tokens", "e2e": "whole"}


def facts_of(summary: ModelSummary) -> Iterator[tuple[str, str]]:
    yield from _predictor_facts(summary) if summary.model.is_predictor else _generator_facts(summary)


def _generator_facts(summary: ModelSummary) -> Iterator[tuple[str, str]]:
    gauges = summary.model.gauges
    batch = [f"{count(gauges[key])} {key}" for key in ("running", "waiting") if key in gauges]
    if summary.mean_batch is not None:
        batch.append(f"mean {count(summary.mean_batch)}")
    if batch:
        yield "batch", ", ".join(batch)
    if "kv_usage" in gauges:
        yield "KV cache", _kv(gauges)
    if tokens := _tokens(summary):
        yield "tokens", tokens
    if steps := _steps(summary):
        yield "steps", steps
    yield from _latency_facts(summary, _NAMES)
    if "engine_memory" in gauges:
        yield "memory", f"{format_bytes(gauges['engine_memory'])} resident"


def _kv(gauges: Mapping[str, float]) -> str:
    text = f"{bar(gauges['kv_usage'])} {percent(gauges['kv_usage'])}"
    if "blocks_used" in gauges and "blocks_free" in gauges:
        text += f", {gauges['blocks_used']:.0f} of {gauges['blocks_used'] + gauges['blocks_free']:.0f} blocks"
    return text


def _tokens(summary: ModelSummary) -> str:
    parts = []
    if summary.generated_per_s is not None:
        parts.append(f"{count(summary.generated_per_s)}/s generated")
    if summary.prompt_per_s is not None:
        parts.append(f"{count(summary.prompt_per_s)}/s prompt")
    if summary.hit_share is not None:
        parts.append(f"{percent(summary.hit_share)} of prompts from the prefix cache")
    if summary.accepted_share is not None:
        of = "" if summary.drafted_per_s is None else f" {count(summary.drafted_per_s)}/s"
        parts.append(f"{percent(summary.accepted_share)} of{of} guesses right")
    return ", ".join(parts)


def _steps(summary: ModelSummary) -> str:
    parts = []
    if summary.steps_per_s is not None:
        parts.append(f"{count(summary.steps_per_s)}/s")
    if summary.execute_share is not None:
        parts.append(f"{percent(summary.execute_share)} of the time in the model")
    if summary.preemptions and summary.seconds:
        parts.append(f"{count(summary.preemptions)} preempted")
    return ", ".join(parts)


def _predictor_facts(summary: ModelSummary) -> Iterator[tuple[str, str]]:
    gauges = summary.model.gauges
    inputs = [f"{count(gauges.get(f'inputs_{key}', 0))} {key}" for key in ("running", "waiting")]
    if summary.inputs_per_s is not None:
        inputs.append(f"{count(summary.inputs_per_s)}/s")
    yield "inputs", ", ".join(inputs)
    batches = [] if summary.mean_batch is None else [f"mean {count(summary.mean_batch)}"]
    if summary.cuts:
        largest = sorted(summary.cuts.items(), key=lambda item: item[1], reverse=True)
        batches.append("cut because " + " · ".join(f"{reason} {percent(share)}" for reason, share in largest))
    if "utilisation" in gauges:
        batches.append(f"{percent(gauges['utilisation'])} full since the start")
    if batches:
        yield "batches", ", ".join(batches)
    yield from _latency_facts(summary, {phase: phase for phase in PREDICTION_PHASES})


def _latency_facts(summary: ModelSummary, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, name in names.items():
        if (latency := summary.latencies.get(key)) is not None:
            yield name, _latency(latency, summary.window_s)


def _latency(latency: Latency, window_s: float | None) -> str:
    found = [
        f"{name} {'–' if ms is None else duration(ms * 1e3)}"
        for name, ms in (("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99))
    ]
    since = "since its start" if window_s is None else f"in {window_s:.0f} s"
    return f"{'  '.join(found)}  (n={latency.count} {since})"
