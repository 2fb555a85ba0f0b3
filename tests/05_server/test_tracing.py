"""Spans of a request: where they begin and end, what they say, and that nobody waits for them."""

import threading
from typing import Any

import pytest

from aie_engine import ENGINE_PHASES, BatchFacts, EnvironmentLacksError, InvalidInputError, Share, TimelineReport
from aie_engine.timeline_report import TimelineEvent
from aie_server import load_tracing
from aie_server.access_log import AccessRecord
from aie_server.api.request_names import Names
from aie_server.api.request_view import Engines
from aie_server.ended_requests import EndedRequests
from aie_server.request_book import RequestTrace
from aie_server.spans import SpanFacts, spans_of
from aie_server.tracing import _traces_url

WAIT_S = 5.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record_of(trace: RequestTrace | None = None, **fields: Any) -> AccessRecord:
    facts = {
        "client": "127.0.0.1", "method": "POST", "target": "/v1/chat/completions", "route": "/v1/chat/completions",
        "status": 200, "num_bytes": 70, "duration_s": 0.030, "request_id": "mine", "started_s": 50.0,
    }  # fmt: skip
    return AccessRecord(**{**facts, **fields})  # type: ignore[arg-type]


def trace_of(**fields: Any) -> RequestTrace:
    made = RequestTrace("mine", "127.0.0.1", "/v1/chat/completions", "tiny", 50.0, 50.001, 50.002)
    for name, value in {"admitted_s": 50.004, "submitted_s": 50.005, "finished_s": 50.030, **fields}.items():
        setattr(made, name, value)
    return made


def report_of(engine_id: str) -> TimelineReport:
    """Taken in at 50.006, admitted after 1 ms, its first token after 5, its last after 21; preempted in between."""
    phases = dict.fromkeys(ENGINE_PHASES, 0)
    phases |= {"turn": 1000, "prefill": 4000, "decode": 9000, "preempted": 4000, "recompute": 3000}
    events = [
        TimelineEvent(1000, "admitted", 8), TimelineEvent(9000, "preempted", 12, "big-1"),
        TimelineEvent(13000, "admitted", 0),
    ]  # fmt: skip
    return TimelineReport(
        request_id=engine_id, state="length", is_open=False, added_s=50.006, total_us=21_000, phases_us=phases,
        first_token_us=5000, prompt_tokens=20, cached_tokens=8, prefill_steps=1, prefill_tokens=12,
        recomputed_tokens=12, decode_steps=6, generated_tokens=7, drafted_tokens=0, accepted_tokens=0, preemptions=1,
        lost_tokens=12, preempted_by=[Share("big-1", times=1)], held_by=[Share("big-1", 500, 4)], stalled_by=[],
        events=events, num_events=3,
    )  # fmt: skip


def engines_of(*reports: TimelineReport) -> Engines:
    engines = Engines()
    engines._reports["tiny"] = {report.request_id: report for report in reports}
    return engines


def ms(span: SpanFacts) -> tuple[float, float]:
    return round((span.start_s - 50) * 1e3, 3), round((span.end_s - 50) * 1e3, 3)


# A timeline as spans


def test_a_generation_from_queue_to_last_byte() -> None:
    trace = trace_of(prompt_tokens=20)
    choice = trace.add_choice(0, "e0")
    choice.done_s, choice.reason, choice.num_tokens = 50.028, "length", 7
    root = spans_of(record_of(), trace, engines_of(report_of("e0")), Names([trace], None))
    assert (root.name, ms(root), root.has_failed) == ("chat tiny", (0, 30), False)
    assert [(child.name, ms(child)) for child in root.children] == [
        ("prepare", (0, 5)), ("queue", (5, 7)), ("prefill", (7, 11)), ("decode", (11, 27)), ("write", (28, 30)),
    ]  # fmt: skip
    assert {key: value for key, value in root.attributes.items() if key.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "aie", "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny", "gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 8, "gen_ai.response.finish_reasons": ["length"],
    }  # fmt: skip
    _, queue, prefill, decode, _ = root.children
    assert queue.attributes == {
        "aie.phase.turn_ms": 1.0, "aie.phase.hand_over_ms": 1.0, "aie.held_by": ["big-1"],
    }  # fmt: skip
    assert prefill.attributes["aie.prefill.cached_tokens"] == 8 and decode.attributes["aie.phase.recompute_ms"] == 3.0
    assert [(note.name, round(note.at_s, 3), note.attributes) for note in decode.notes] == [
        ("preempted", 50.015, {"aie.lost_tokens": 12, "aie.preempted_by": "big-1"}), ("resumed", 50.019, {}),
    ]  # fmt: skip


def test_an_engine_that_has_forgotten_it_and_one_that_was_refused() -> None:
    trace = trace_of()
    first, second = trace.add_choice(0, "e0"), trace.add_choice(1, "e1")
    first.done_s, second.done_s, first.first_token_s = 50.020, 50.030, 50.010
    root = spans_of(record_of(), trace, Engines(), Names([trace], None))
    assert [(child.name, ms(child)) for child in root.children] == [
        ("prepare", (0, 5)), ("engine", (5, 20)), ("engine", (5, 30)),
    ]  # fmt: skip
    assert [child.attributes for child in root.children[1:]] == [{"aie.choice.index": 0}, {"aie.choice.index": 1}]
    assert [note.name for note in root.children[1].notes] == ["first token"]
    refused = trace_of(admitted_s=None, submitted_s=None)
    root = spans_of(record_of(status=429, error="rate_limited"), refused, Engines(), Names([], None))
    assert [child.name for child in root.children] == ["prepare"]
    assert root.attributes["error.type"] == "rate_limited" and not root.has_failed


def test_a_prediction_and_what_is_no_request_to_a_model() -> None:
    trace = trace_of(is_prediction=True, path="/v1/embeddings", computed_s=50.025, num_inputs=3, prompt_tokens=12)
    trace.batch = BatchFacts(8, "full", 0.008, 0.010, 0.0, 0.0, 0)
    root = spans_of(record_of(), trace, Engines(), Names([trace], None))
    assert root.name == "embeddings tiny" and root.attributes["aie.batch.cut"] == "full"
    assert root.attributes["gen_ai.usage.input_tokens"] == 12 and trace.counts == {"inputs": 3, "prompt_tokens": 12}
    spans = {child.name: ms(child) for child in root.children}
    assert spans == {
        "read": (0, 1), "validate": (1, 2), "gate": (2, 4), "pre": (4, 5), "queue": (5, 13), "compute": (13, 23),
        "gather": (23, 25), "post": (25, 30),
    }  # fmt: skip
    root = spans_of(record_of(status=500, error="internal_error"), None, Engines(), Names([], None))
    assert (root.name, root.has_failed, root.children) == ("POST /v1/chat/completions", True, [])


# The thread after the answers


def test_what_comes_too_fast_is_counted() -> None:
    may_go_on, is_busy = threading.Event(), threading.Event()
    handled: list[tuple[list[int], int]] = []

    def handle(some: Any, missed: int) -> None:
        is_busy.set()
        assert may_go_on.wait(WAIT_S)
        handled.append((list(some), missed))
        if some == [0]:
            raise RuntimeError("ends nothing")

    ended = EndedRequests[int](handle, name="test", max_queued=2)
    ended.note(0)
    assert is_busy.wait(WAIT_S)
    for number in range(1, 6):  # comes back at once
        ended.note(number)
    may_go_on.set()
    ended.close()
    ended.close()
    assert handled == [([0], 0), ([1, 2], 3)]


# The library


@pytest.fixture
def exporter() -> Any:
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs the extra otel: pip install 'aie[otel]'"
    )
    return memory.InMemorySpanExporter()


def test_a_served_request_belongs_to_the_trace_of_its_client(harness: Any, exporter: Any) -> None:
    server = harness.serve(spans=load_tracing(None, exporter=exporter))
    headers = {"traceparent": PARENT, "tracestate": "a=b", "X-Request-Id": "mine"}
    harness.connect().post("/v1/completions", {"prompt": "hi", "max_tokens": 3}, headers).answer()
    harness.connect().post("/v1/completions", {"prompt": "hi", "max_tokens": 3}, {"traceparent": "junk"}).answer()
    assert harness.post("/v1/completions", {"prompt": {}}).status == 400
    harness.get("/health")
    server.close()
    spans = exporter.get_finished_spans()
    mine, other, bad = [span for span in spans if span.kind.name == "SERVER"]
    assert mine.context.trace_id == int(PARENT[3:35], 16) and mine.parent.span_id == int(PARENT[36:52], 16)
    assert mine.context.trace_state.to_header() == "a=b"
    assert (mine.name, mine.attributes["aie.request.id"]) == ("text_completion fake", "mine")
    assert mine.attributes["gen_ai.usage.output_tokens"] == 3 and mine.attributes["http.response.status_code"] == 200
    assert other.parent is None and other.context.trace_id != mine.context.trace_id
    assert bad.attributes["error.type"] == "invalid_input"
    inside = [span for span in spans if span.parent is not None and span.parent.span_id == mine.context.span_id]
    assert {span.name for span in inside} >= {"prepare", "engine"}
    assert all(mine.start_time <= span.start_time <= span.end_time <= mine.end_time for span in inside)
    assert mine.resource.attributes["service.name"] == "aie"


def test_a_client_that_wants_no_trace_gets_none(harness: Any, exporter: Any) -> None:
    server = harness.serve(spans=load_tracing(None, exporter=exporter))
    harness.connect().post("/v1/completions", {"prompt": "hi"}, {"traceparent": f"{PARENT[:-2]}00"}).answer()
    server.close()
    assert exporter.get_finished_spans() == ()


def test_a_collector_that_takes_nothing_holds_nothing_up(harness: Any, exporter: Any) -> None:
    is_over = threading.Event()

    class Stuck(type(exporter)):  # type: ignore[misc]
        def export(self, spans: Any) -> Any:
            is_over.wait(60)

        def shutdown(self) -> None:
            pass

    sink = load_tracing(None, exporter=Stuck())
    server = harness.serve(spans=sink)
    assert harness.complete().status == 200
    server._tracing.close(0.05)
    server.close()  # comes back, though the span was never taken
    is_over.set()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://[::1]:1/otlp/", "https://[::1]:1/otlp/v1/traces"),
        ("http://c/v1/traces", "http://c/v1/traces"),
    ],
)
def test_where_spans_go(given: str, url: str) -> None:
    assert _traces_url(given) == url


@pytest.mark.parametrize("given", ["", "localhost:4318", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_what_is_no_collector(given: str) -> None:
    with pytest.raises(InvalidInputError, match="no address of a collector"):
        load_tracing(given)


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(EnvironmentLacksError, match=r"pip install 'aie\[otel\]'"):
        load_tracing("http://localhost:4318")
