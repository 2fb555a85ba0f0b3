"""Stage 5, HTTP to engine calls: framing, routing, OpenAI's API, streaming, metrics.

Layout, each line built on those above it:

    config, errors                       limits, and what goes wrong
    http/                                sockets to requests, strictly; knows no models
    leases, served, control, gate        what is served, who still uses it, who loads it; the door that stage 6 guards
    predictors                           the same for models that answer at once
    events, request_book                 who listens to what happens; when each request reached which point
    stopping, text_output                token events to text
    metrics, metrics_catalog             Prometheus' text format, and every name we export
    api/                                 the endpoints
    grpc/                                the open inference protocol once more, over gRPC
    batch_growth, batch_log              batches between two looks, and a line in the log for every so many
    ended_requests, slow_requests        after the answer: those that took long, in the log
    spans, tracing                       the same timelines as spans, for OpenTelemetry
    event_sources                        what engines, workers and models did, for who listens
    auth, drain_gate, server             keys; who is inside; routes, drain, the whole

It may import stage 4 and nothing below it: no kernels, no blocks, no arrays.
"""

from aie_server.api.request_times import SERVER_PHASES
from aie_server.config import HttpLimits, ServerConfig
from aie_server.control import LoadFigures, LoadReport, ModelControl, PendingLoad, VersionState
from aie_server.errors import (
    AddressInUseError,
    DeadlineExceededError,
    GenerationError,
    ModelNotFoundError,
    RouteError,
    ServerDrainingError,
    UnauthorizedError,
    UnsupportedFieldError,
)
from aie_server.gate import AdmitRequest, Gate, OpenGate
from aie_server.http import FramingError
from aie_server.leases import Holding, Lease
from aie_server.metrics import Counter, Gauge, Histogram, Metrics
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.served import ModelTable, ServedModel, TextModel
from aie_server.server import Server
from aie_server.stopping import StopStringMatcher
from aie_server.tracing import SpanSink, load_tracing

__all__ = [
    "SERVER_PHASES",
    "AddressInUseError",
    "AdmitRequest",
    "Counter",
    "DeadlineExceededError",
    "FramingError",
    "Gate",
    "Gauge",
    "GenerationError",
    "Histogram",
    "Holding",
    "HttpLimits",
    "Lease",
    "LoadFigures",
    "LoadReport",
    "Metrics",
    "ModelControl",
    "ModelNotFoundError",
    "ModelTable",
    "OpenGate",
    "PendingLoad",
    "PredictorTable",
    "RouteError",
    "ServedModel",
    "ServedPredictor",
    "Server",
    "ServerConfig",
    "ServerDrainingError",
    "SpanSink",
    "StopStringMatcher",
    "TextModel",
    "UnauthorizedError",
    "UnsupportedFieldError",
    "VersionState",
    "load_tracing",
]
