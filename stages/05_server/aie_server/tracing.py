"""Spans to a tracing system, by OpenTelemetry's library, which is an extra (`pip install 'aie[otel]'`).

A request that has ended is put into a queue with an end, and that is all its thread does. Another asks the engine where
its time went, makes spans of that (spans.py) and gives them to the library, whose own thread sends them. Where nobody
takes them, they are dropped, there or here; no answer waits for any of it.
"""

import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from aie_engine import EnvironmentLacksError, InvalidInputError
from aie_server.access_log import AccessRecord
from aie_server.api.debug_requests import ask_engines
from aie_server.api.request_names import Names
from aie_server.ended_requests import EndedRequests
from aie_server.request_book import RequestBook, RequestTrace
from aie_server.served import ModelTable
from aie_server.spans import SpanFacts, spans_of

__all__ = ["SpanSink", "Tracing", "load_tracing"]

_MAX_QUEUED: Final = 1024
_TRACES: Final = "/v1/traces"
_CLOSE_S: Final = 2.0  # for spans that are still to be sent

_log = logging.getLogger("aie.tracing")


class SpanSink:
    """OpenTelemetry's library behind two methods. provider: its TracerProvider."""

    def __init__(self, provider: Any) -> None:
        self._provider: Any = provider
        self._tracer = provider.get_tracer("aie")
        self._trace = importlib.import_module("opentelemetry.trace")
        context = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = context.TraceContextTextMapPropagator()

    def write(self, span: SpanFacts, traceparent: str, tracestate: str, epoch_s: float) -> None:
        """span: with all inside it. epoch_s: when the clock of its instants began, since 1970."""
        carrier = {"traceparent": traceparent, "tracestate": tracestate} if traceparent else {}
        parent = self._propagator.extract(carrier)  # without a valid one: a trace of its own
        self._write(span, parent, epoch_s, self._trace.SpanKind.SERVER)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Send what is left, if somebody takes it soon. A second call does nothing."""
        provider, self._provider = self._provider, None
        if provider is not None:
            closing = threading.Thread(target=provider.shutdown, name="aie-tracing-end", daemon=True)
            closing.start()
            closing.join(timeout_s)

    def _write(self, span: SpanFacts, parent: Any, epoch_s: float, kind: Any) -> None:
        def ns(at_s: float) -> int:
            return round((epoch_s + at_s) * 1e9)

        made = self._tracer.start_span(span.name, parent, kind, span.attributes, start_time=ns(span.start_s))
        for note in span.notes:
            made.add_event(note.name, note.attributes, ns(note.at_s))
        if span.has_failed:
            made.set_status(self._trace.StatusCode.ERROR)
        if made.is_recording():
            inside = self._trace.set_span_in_context(made)
            for child in span.children:
                self._write(child, inside, epoch_s, self._trace.SpanKind.INTERNAL)
        made.end(ns(max(span.start_s, span.end_s)))


class Tracing:
    """`note` from any thread; `close` ends the one that works, and the sink."""

    def __init__(
        self, sink: SpanSink, book: RequestBook, models: ModelTable, *, epoch: Callable[[], float] | None = None
    ) -> None:
        self._sink = sink
        self._book = book
        self._models = models
        self._epoch = epoch or (lambda: time.time() - time.monotonic())
        self._ended = EndedRequests[tuple[AccessRecord, RequestTrace | None]](
            self._write, name="tracing", max_queued=_MAX_QUEUED
        )

    def note(self, record: AccessRecord, trace: RequestTrace | None) -> None:
        """A request has ended. Of those that ask for nothing, such as probes, there are no spans."""
        if record.method == "POST":
            self._ended.note((record, trace))

    def close(self, timeout_s: float = 5.0) -> None:
        """Works off what is queued; a second call does nothing."""
        self._ended.close(timeout_s)
        self._sink.close(min(timeout_s, _CLOSE_S))

    def _write(self, ended: Sequence[tuple[AccessRecord, RequestTrace | None]], missed: int) -> None:
        if missed:
            _log.warning("%d requests have no spans: they came faster than spans are made", missed)
        engines = ask_engines(self._models, [trace for _, trace in ended if trace is not None])
        traces = [trace for traces in self._book.snapshot() for trace in traces]
        names, epoch_s = Names(traces, None), self._epoch()
        for record, trace in ended:
            span = spans_of(record, trace, engines, names)
            self._sink.write(span, record.traceparent, record.tracestate, epoch_s)


def load_tracing(endpoint: str | None, *, exporter: Any = None) -> SpanSink:
    """endpoint: of a collector that speaks OTLP over HTTP, such as http://localhost:4318; None: as the library's own
    variables say (OTEL_EXPORTER_OTLP_ENDPOINT and its kin). exporter: one of the library's instead.

    Raises `InvalidInputError` for what is no address, and `EnvironmentLacksError` where the library is not installed.
    """
    url = None if endpoint is None else _traces_url(endpoint)
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        if exporter is None:
            http = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            exporter = http.OTLPSpanExporter(endpoint=url)
    except ImportError:
        raise EnvironmentLacksError(
            "Tracing needs OpenTelemetry's library; install it with: pip install 'aie[otel]'."
        ) from None
    resource = resources.Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(resources.Resource({"service.name": "aie"}))
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return SpanSink(provider)


def _traces_url(endpoint: str) -> str:
    """As of OTEL_EXPORTER_OTLP_ENDPOINT: a collector's address, without the path of its traces, or with it."""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidInputError(
            f"{endpoint[:200]!r} is no address of a collector; give something like http://localhost:4318.",
            param="otel_endpoint",
        )
    return endpoint if parts.path.endswith(_TRACES) else endpoint.rstrip("/") + _TRACES
