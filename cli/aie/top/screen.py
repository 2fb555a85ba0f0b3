"""What is drawn: a block of lines for each model, the open requests, and those that ended last."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aie.console import format_bytes
from aie.top.figures import PREDICTION_PHASES
from aie.top.history import History
from aie.top.look import Look, Requests
from aie.top.summary import Latency, ModelSummary, summaries
from aie.top.words import bar, count, duration, largest_phases, percent, who_held, who_stalled

__all__ = ["draw", "plain_lines"]

_NAMES = {"ttft": "first token", "itl": "between tokens", "e2e": "whole"}
_WORTH_A_NAME = 0.02  # of a request's time
_LEAST_ENDED = 3  # requests that ended are shown, however many are open

_REASONS = {
    "batch_full": "the batch is full",
    "budget": "the tokens of a step go to others",
    "prefix": "another request is computing the prefix that it shares",
    "blocks": "too few KV blocks are free",
}


def draw(history: History, url: str, *, when: str, trouble: str | None = None, max_rows: int = 12) -> RenderableType:
    """trouble: why there is no newer look. max_rows: of requests, at most."""
    look = history.last
    head = Text.assemble(("aie top  ", "bold"), url, f"  {when}")
    parts: list[RenderableType] = [head]
    if trouble is not None:
        parts.append(Text(trouble, style="red"))
    if look is None:
        return Group(*parts)
    head.append(f"  {look.figures.server}")
    if look.figures.front_memory:
        head.append(f", front {format_bytes(look.figures.front_memory)}")
    for summary in summaries(history):
        parts.append(_model(summary, look))
    if look.why_no_requests is not None:
        parts.append(Text(f"no requests are shown: {look.why_no_requests}", style="yellow"))
    if look.requests is not None:
        parts += _requests(look.requests, max_rows)
    return Group(*parts)


def plain_lines(history: History) -> Iterator[str]:
    """A line for each model, for logs and pipes."""
    for summary in summaries(history):
        facts = [f"{name} {text}" for name, text in _facts(summary)]
        yield f"{summary.model.name or 'model'}: " + "; ".join(facts)


def _model(summary: ModelSummary, look: Look) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    table.title = Text(f"\n{summary.model.name or look.figures.server}", style="bold")
    table.title_justify = "left"
    for name, text in _facts(summary):
        table.add_row(name, text)
        if name == "batch" and (queue := _queue_of(look, summary.model.name)):
            table.add_row("", Text(queue, style="yellow"))
    return table


def _facts(summary: ModelSummary) -> Iterator[tuple[str, str]]:
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
    if "utilisation" in gauges:
        batches.append(f"{percent(gauges['utilisation'])} full since the start")
    if summary.cuts:
        largest = sorted(summary.cuts.items(), key=lambda item: item[1], reverse=True)
        batches.append("cut because " + " · ".join(f"{reason} {percent(share)}" for reason, share in largest))
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


def _queue_of(look: Look, model: str) -> str:
    queue = None if look.requests is None else look.requests.queues.get(model)
    if queue is None:
        return ""
    reason = _REASONS.get(queue.get("reason", ""), str(queue.get("reason")))
    text = f"{queue.get('request_id')} waits for {duration(queue.get('for_us', 0))}: {reason}"
    if queue.get("reason") == "blocks":
        # What the running ones may soon grow by is kept free, too.
        text += f" ({queue.get('blocks_needed')} needed with some to grow, {queue.get('blocks_free')} free)"
    holders = queue.get("holders") or []
    return text + (f"; held by {who_held(holders)}" if holders else "")


def _requests(requests: Requests, max_rows: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    num_ended = min(len(requests.recent), max(_LEAST_ENDED, max_rows - len(requests.open)))
    if requests.open:
        parts.append(_table("open", _oldest_first(requests.open)[: max(1, max_rows - num_ended)], len(requests.open)))
    if requests.num_open_of_others:
        parts.append(Text(f"{requests.num_open_of_others} more are open, of other clients", style="yellow"))
    if num_ended:
        parts.append(_table("ended", requests.recent[:num_ended], num_ended))
    for model, why in requests.unanswered.items():
        parts.append(Text(f"{model}: {why}", style="yellow"))
    return parts


def _oldest_first(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(entries, key=lambda entry: entry.get("total_us", 0), reverse=True)


def _table(name: str, entries: Sequence[Mapping[str, Any]], num_all: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="cyan", expand=False)
    table.add_column(
        "ended last" if name == "ended" else f"{name} ({num_all})", no_wrap=True, max_width=24, overflow="ellipsis"
    )
    table.add_column("state" if name == "open" else "status", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("where the time went", overflow="fold")
    for entry in entries:
        state = entry.get("state") if name == "open" else entry.get("status")
        table.add_row(
            str(entry.get("request_id")),
            str(state),
            duration(entry.get("total_us", 0)),
            _token_counts(entry),
            _where(entry),
        )
    return table


def _token_counts(entry: Mapping[str, Any]) -> str:
    if "prompt_tokens" not in entry:
        return f"{entry['num_inputs']} in" if "num_inputs" in entry else ""
    return f"{entry['prompt_tokens']}+{entry.get('generated_tokens', 0)}"


def _where(entry: Mapping[str, Any]) -> str:
    """The phases, and who is to blame for those that weigh something."""
    phases: Mapping[str, int] = entry.get("phases_us", {})
    least_us = entry.get("total_us", 0) * _WORTH_A_NAME
    parts = [largest_phases(phases)]
    if entry.get("held_by") and sum(phases.get(phase, 0) for phase in ("blocks", "prefix", "preempted")) > least_us:
        parts.append(f"held by {who_held(entry['held_by'], 2)}")
    if entry.get("stalled_by") and phases.get("stalled", 0) > least_us:
        parts.append(f"stalled by {who_stalled(entry['stalled_by'], 2)}")
    if entry.get("preemptions"):
        parts.append(f"preempted {entry['preemptions']} times" if entry["preemptions"] > 1 else "preempted once")
    if "batch" in entry:
        parts.append(f"batch of {entry['batch']['size']}, cut: {entry['batch']['cut']}")
    return "; ".join(part for part in parts if part)
