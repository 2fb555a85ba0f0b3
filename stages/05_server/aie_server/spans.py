"""A request as spans, made of its timeline after it has ended: what a tracing system draws as a waterfall.

    chat tiny ─────────────────────────────────────────────   the server's part, by the GenAI conventions
      prepare ──                                              read, check, gate, tokenize
         queue ────                                           until it is in the batch
              prefill ─────                                   until the first token
                    decode ──────────•─────────────────────   until the last one; • preempted, by whom
                                                      write   until the client had taken it

Of a predictor: pre, queue, compute, post. Instants are on the clock of `time.monotonic`. Nothing here knows
OpenTelemetry's library; the names of attributes are those of its semantic conventions (HTTP, and GenAI 1.37), and
`aie.*` where they have none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from aie_engine import TimelineReport
from aie_server.access_log import AccessRecord
from aie_server.api.request_names import Names
from aie_server.api.request_times import front_times, prediction_times
from aie_server.api.request_view import Engines
from aie_server.request_book import ChoiceTrace, RequestTrace

__all__ = ["SpanFacts", "SpanNote", "spans_of"]

Value = str | int | float | list[str]

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_QUEUE: Final = ("turn", "batch_full", "budget", "prefix", "blocks")
_PREFILL: Final = ("prefill", "paused")
_DECODE: Final = ("decode", "stalled", "preempted", "recompute", "between")


@dataclass(slots=True)
class SpanNote:
    """Something that happened within a span."""

    name: str
    at_s: float
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class SpanFacts:
    """One span, with those inside it."""

    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Value] = field(default_factory=dict)
    notes: list[SpanNote] = field(default_factory=list)
    children: list["SpanFacts"] = field(default_factory=list)
    has_failed: bool = False  # by the server's fault


def spans_of(record: AccessRecord, trace: RequestTrace | None, engines: Engines, names: Names) -> SpanFacts:
    """trace: of a request to a model; without it, there is one span. engines: what they said of its choices."""
    end_s = record.started_s + record.duration_s
    root = SpanFacts(f"{record.method} {record.route}", record.started_s, end_s, _http(record))
    root.has_failed = record.status >= 500
    if trace is None:
        return root
    operation = _OPERATIONS.get(trace.path, trace.path.rpartition("/")[2])
    root.name = f"{operation} {trace.model}"
    root.attributes |= {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "aie",
        "gen_ai.request.model": trace.model,
        "gen_ai.response.model": trace.model,
    }
    if trace.is_prediction:
        root.attributes |= _batch(trace)
        if trace.prompt_tokens:
            root.attributes["gen_ai.usage.input_tokens"] = trace.prompt_tokens
        root.children = list(_prediction(trace, end_s))
        return root
    reports = engines.reports(trace)
    root.attributes |= _usage(trace, reports)
    root.children = list(_generation(trace, reports, names, end_s))
    return root


def _http(record: AccessRecord) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "url.path": record.target,
        "http.response.status_code": record.status,
        "http.response.body.size": record.num_bytes,
        "client.address": record.client,
        "aie.request.id": record.request_id,
    }
    if record.status >= 400:
        attributes["error.type"] = record.error or str(record.status)
    return attributes


def _usage(trace: RequestTrace, reports: Mapping[str, TimelineReport]) -> dict[str, Value]:
    usage: dict[str, Value] = {}
    if trace.choices:
        usage["gen_ai.usage.input_tokens"] = trace.prompt_tokens
        usage["gen_ai.usage.output_tokens"] = sum(choice.num_tokens for choice in trace.choices)
        usage["gen_ai.response.finish_reasons"] = [choice.reason or "" for choice in trace.choices]
    if reports:
        known = [reports[choice.engine_id] for choice in trace.choices if choice.engine_id in reports]
        usage["gen_ai.usage.cache_read.input_tokens"] = sum(report.cached_tokens for report in known)
        usage["aie.preemptions"] = sum(report.preemptions for report in known)
    return usage


def _batch(trace: RequestTrace) -> dict[str, Value]:
    if trace.batch is None:
        return {}
    return {"aie.inputs": trace.num_inputs, "aie.batch.size": trace.batch.size, "aie.batch.cut": trace.batch.reason}


def _prediction(trace: RequestTrace, end_s: float) -> Iterator[SpanFacts]:
    """The phases as they lie end to end; of several inputs, of the one that took longest."""
    at_s = trace.started_s
    for phase, us in prediction_times(trace, end_s).phases_us.items():
        if us:
            yield SpanFacts(phase, at_s, at_s + us / 1e6, _batch(trace) if phase == "compute" else {})
        at_s += us / 1e6


def _generation(
    trace: RequestTrace, reports: Mapping[str, TimelineReport], names: Names, end_s: float
) -> Iterator[SpanFacts]:
    times, is_submitted = front_times(trace, end_s)
    prepared_s = trace.started_s + times.total_us / 1e6
    yield SpanFacts("prepare", trace.started_s, prepared_s, _milliseconds(times.phases_us, times.phases_us))
    if not is_submitted:
        return
    for choice in trace.choices:
        report = reports.get(choice.engine_id)
        if report is not None:
            yield from _engine(trace, choice, report, names, prepared_s)
        else:
            span = SpanFacts("engine", prepared_s, choice.done_s or end_s, _choice(trace, choice))
            if choice.first_token_s is not None:
                span.notes.append(SpanNote("first token", choice.first_token_s))
            yield span
    done_s = max((choice.done_s or end_s for choice in trace.choices), default=end_s)
    if done_s < end_s:
        yield SpanFacts("write", done_s, end_s, {"aie.blocked_ms": round(trace.blocked_s * 1e3, 3)})


def _engine(
    trace: RequestTrace, choice: ChoiceTrace, report: TimelineReport, names: Names, prepared_s: float
) -> Iterator[SpanFacts]:
    """Queue, prefill and decode, each as far as it came to it."""
    over_s = report.added_s + report.total_us / 1e6
    admitted_us = next((event.at_us for event in report.events if event.what == "admitted"), report.total_us)
    first_us = report.first_token_us
    admitted_s = report.added_s + admitted_us / 1e6
    first_s = over_s if first_us is None else report.added_s + first_us / 1e6
    mine = _choice(trace, choice)
    queue = SpanFacts("queue", prepared_s, max(prepared_s, admitted_s), mine | _milliseconds(report.phases_us, _QUEUE))
    if report.added_s > prepared_s:
        queue.attributes["aie.phase.hand_over_ms"] = round((report.added_s - prepared_s) * 1e3, 3)
    if report.held_by:
        queue.attributes["aie.held_by"] = [str(share["who"]) for share in names.shares(report.held_by)]
    spans = [queue]
    if admitted_us < report.total_us:
        spans.append(SpanFacts("prefill", admitted_s, first_s, mine | _milliseconds(report.phases_us, _PREFILL)))
        spans[-1].attributes |= {
            "aie.prefill.tokens": report.prefill_tokens, "aie.prefill.steps": report.prefill_steps,
            "aie.prefill.cached_tokens": report.cached_tokens,
        }  # fmt: skip
    if first_us is not None:
        spans.append(SpanFacts("decode", first_s, over_s, mine | _milliseconds(report.phases_us, _DECODE)))
        spans[-1].attributes |= {
            "aie.decode.tokens": report.generated_tokens, "aie.decode.steps": report.decode_steps,
            "aie.decode.drafted_tokens": report.drafted_tokens, "aie.decode.accepted_tokens": report.accepted_tokens,
        }  # fmt: skip
        if report.stalled_by:
            spans[-1].attributes["aie.stalled_by"] = [str(share["who"]) for share in names.shares(report.stalled_by)]
    for event in report.events:
        if event.at_us <= admitted_us:
            continue
        note = SpanNote("resumed" if event.what == "admitted" else event.what, report.added_s + event.at_us / 1e6)
        if event.what == "preempted":
            note.attributes = {"aie.lost_tokens": event.tokens, "aie.preempted_by": names.of(event.by)}
        next(span for span in reversed(spans) if span.start_s <= note.at_s or span is queue).notes.append(note)
    yield from spans


def _choice(trace: RequestTrace, choice: ChoiceTrace) -> dict[str, Value]:
    """To tell several apart."""
    return {"aie.choice.index": choice.index} if len(trace.choices) > 1 else {}


def _milliseconds(phases_us: Mapping[str, int], names: object) -> dict[str, Value]:
    """Those phases that took any time."""
    assert isinstance(names, tuple | dict), names
    return {f"aie.phase.{name}_ms": phases_us[name] / 1e3 for name in names if phases_us.get(name)}
