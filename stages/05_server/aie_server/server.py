"""The server: routes, keys, metrics and drain on top of the HTTP layer."""

import threading
import time
from collections.abc import Sequence

from aie_engine import AieError
from aie_server.access_log import AccessRecord, log_access
from aie_server.api import repository
from aie_server.api.chat import ChatEndpoint
from aie_server.api.completions import CompletionsEndpoint
from aie_server.api.debug_events import EventsEndpoint
from aie_server.api.debug_requests import DebugRequests
from aie_server.api.generation import GenerationContext
from aie_server.api.memory import MemoryEndpoint
from aie_server.api.models import ModelEndpoint, ModelsEndpoint
from aie_server.api.predict_routes import predict_routes
from aie_server.api.predictions import PredictionContext
from aie_server.api.status import HealthEndpoint, index_endpoint, metrics_endpoint, version_endpoint
from aie_server.api.tokenize import DetokenizeEndpoint, TokenizeEndpoint
from aie_server.auth import ApiKeys
from aie_server.batch_log import BatchLog
from aie_server.config import HttpLimits, ServerConfig
from aie_server.control import ModelControl
from aie_server.drain_gate import DrainGate
from aie_server.errors import (
    RouteError,
    UnauthorizedError,
    error_object,
    retry_after_header,
    v2_error_object,
)
from aie_server.event_sources import EventSources
from aie_server.events import EventHub
from aie_server.gate import Gate, OpenGate
from aie_server.grpc import GrpcListener, InferenceService
from aie_server.http import Handler, Listener, RequestHead, Response, Route, Router, json_response
from aie_server.metrics import Metrics
from aie_server.metrics_catalog import ServerMetrics
from aie_server.prediction_metrics import PredictionMetrics
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.request_book import RequestBook
from aie_server.served import ModelTable, ServedModel
from aie_server.slow_requests import SlowRequestLog
from aie_server.tracing import SpanSink, Tracing

__all__ = ["Server"]


class Server:
    """Binds when made (so a port in use is known at once), answers after `start` or `serve_forever`.

    It owns its sockets and threads and nothing else: engines are closed by whoever made them, after the server.
    predictors: models that answer at once, for as long as the server runs.
    control: loads and unloads the models of a table while the server answers; without it they stay as they are.
    grpc_port: where predictors answer over gRPC, too; 0: any free port; None: nowhere.
    spans: takes the spans of each request; closed with the server.
    """

    def __init__(
        self,
        models: Sequence[ServedModel] | ModelTable = (),
        *,
        predictors: Sequence[ServedPredictor] = (),
        control: ModelControl | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
        gate: Gate | None = None,
        metrics: Metrics | None = None,
        api_keys: Sequence[str] = (),
        config: ServerConfig | None = None,
        grpc_port: int | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        self.config = config or ServerConfig()
        may_be_empty = bool(predictors)
        self.models = models if isinstance(models, ModelTable) else ModelTable(models, may_be_empty=may_be_empty)
        self.predictors = PredictorTable(predictors, self.models)
        self._control = control
        self._keys = ApiKeys(api_keys)
        self._drain_gate = DrainGate(gate or OpenGate())
        self._metrics = ServerMetrics(metrics or Metrics(self.config.metrics_prefix))
        self._metrics.watch(self.models)
        self._events = EventHub()
        self._requests = RequestBook(events=self._events)
        self._events.sources = EventSources(
            self._events, self.models, self.predictors, control, self._requests, self._keys
        )
        self._prediction_metrics = PredictionMetrics(self._metrics.registry)
        self._prediction_metrics.watch(self.predictors)
        if control is not None:
            self._metrics.watch_loads(control)
        self._router = self._routes()
        self._finished = threading.Event()
        self._grpc: GrpcListener | None = None
        if grpc_port is not None:
            self._grpc = GrpcListener(
                host, grpc_port, self._inference, keys=self._keys, limits=self.limits, finished=self.finished
            )
        self._slow: SlowRequestLog | None = None
        try:
            self._listener = Listener(host, port, self)
        except BaseException:
            if self._grpc is not None:
                self._grpc.close()
            raise
        if self.config.slow_request_s is not None:
            self._slow = SlowRequestLog(self.config.slow_request_s, self._requests, self.models)
        self._tracing = None if spans is None else Tracing(spans, self._requests, self.models)
        self._batch_log: BatchLog | None = None
        if self.config.log_every:
            self._batch_log = BatchLog(
                self.config.log_every, self.models, self.predictors, self._metrics, self._requests
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on; the port that the system chose if 0 was asked for."""
        host, port = self._listener.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def grpc_port(self) -> int | None:
        """The port that the system chose if 0 was asked for; None: there is none."""
        return None if self._grpc is None else self._grpc.port

    @property
    def metrics(self) -> Metrics:
        return self._metrics.registry

    @property
    def num_connections(self) -> int:
        return self._listener.num_connections

    def start(self) -> None:
        """Answer from a thread of its own; returns at once."""
        if self._batch_log is not None:
            self._batch_log.start()
        self._listener.start()
        if self._grpc is not None:
            self._grpc.start()

    def serve_forever(self) -> None:
        """Answer until `close` is called from elsewhere (a signal handler, another thread)."""
        self.start()
        self._finished.wait()

    @property
    def num_busy_connections(self) -> int:
        """Connections with a request in progress, from its first to its last byte, and gRPC calls."""
        return self._listener.num_busy_connections + (0 if self._grpc is None else self._grpc.num_busy)

    def begin_drain(self) -> None:
        """From now on new generations are refused with 503, `/health` says not ready, every connection ends with the
        request that it is at, and no batch waits for company."""
        self._drain_gate.close()
        self._events.close()
        for model in self.predictors:
            model.predictor.drain()
        self._listener.hang_up_idle()

    def drain(self, timeout_s: float) -> bool:
        """`begin_drain`, and wait for what is in progress. True if all of it ended."""
        deadline = time.monotonic() + timeout_s
        self.begin_drain()
        is_empty = self._drain_gate.wait_until_empty(timeout_s)
        is_idle = self._listener.wait_until_idle(deadline - time.monotonic())  # the last answers leave, too
        if self._grpc is not None:
            is_idle = self._grpc.wait_until_idle(deadline - time.monotonic()) and is_idle
        return is_idle and is_empty

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop at once: what is still in progress is cancelled. A second call does nothing."""
        self._drain_gate.close()
        self._events.close()
        if self._batch_log is not None:
            self._batch_log.close(timeout_s)
        if self._grpc is not None:
            self._grpc.close(timeout_s)
        self._listener.close(timeout_s)
        if self._slow is not None:
            self._slow.close(timeout_s)
        if self._tracing is not None:
            self._tracing.close(timeout_s)
        self._finished.set()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the HTTP layer asks (http.connection.Application)

    @property
    def limits(self) -> HttpLimits:
        return self.config.http

    @property
    def is_draining(self) -> bool:
        return self._drain_gate.is_closed

    def select(self, head: RequestHead, address: str) -> tuple[Route, str]:
        """The key is checked before the route is looked up, so that strangers do not learn which routes exist."""
        try:
            route: Route | None = self._router.find(head)
            failure: RouteError | None = None
        except RouteError as error:
            route, failure = None, error
        client_key = self._keys.client_key(head.headers, address, is_open=route is not None and route.is_open)
        if failure is not None:
            raise failure
        assert route is not None
        return route, client_key

    def error_response(self, error: BaseException, head: RequestHead | None = None) -> Response:
        headers: dict[str, str] = {}
        if (retry_after := retry_after_header(error)) is not None:
            headers["Retry-After"] = retry_after
        if isinstance(error, UnauthorizedError):
            headers["WWW-Authenticate"] = "Bearer"
        if isinstance(error, RouteError) and error.allow is not None:
            headers["Allow"] = error.allow
        in_v2 = head is not None and (head.path == "/v2" or head.path.startswith("/v2/"))
        body = v2_error_object(error) if in_v2 else error_object(error)
        return json_response(body, status=error.status if isinstance(error, AieError) else 500, headers=headers)

    def finished(self, record: AccessRecord) -> None:
        self._metrics.requests.labels(record.route, str(record.status)).inc()
        trace = self._requests.finish(record)
        if trace is not None and self._slow is not None:
            self._slow.note(trace)
        if self._tracing is not None:
            self._tracing.note(record, trace)
        log_access(record, trace)

    def _routes(self) -> Router:
        router = Router()
        context = GenerationContext(self._drain_gate, self.config, self._metrics, self._requests, self._keys.are_needed)
        health = HealthEndpoint(self.models, self.predictors, self._drain_gate, self.config, lambda: self.is_draining)
        predictions = PredictionContext(
            self._drain_gate, self.config, self._prediction_metrics, self.predictors, self._requests
        )
        self._inference = InferenceService(predictions, health.is_well, self._control)

        def add(method: str, path: str, handler: Handler, summary: str, *, is_open: bool = False) -> None:
            router.add(Route(method, path, handler, summary, is_open))

        add(
            "POST",
            "/v1/chat/completions",
            ChatEndpoint(self.models, context),
            "answer to a conversation; stream: true for events",
        )
        add("POST", "/v1/completions", CompletionsEndpoint(self.models, context), "continue a text, or several")
        add("GET", "/v1/models", ModelsEndpoint(self.models, self.predictors), "models served here")
        add("GET", "/v1/models/{model}", ModelEndpoint(self.models, self.predictors), "one of them")
        add("POST", "/tokenize", TokenizeEndpoint(self.models, self.config), "text or messages to token ids")
        add("POST", "/detokenize", DetokenizeEndpoint(self.models), "token ids to text")
        if self._control is not None:
            poll_s = self.config.disconnect_poll_s
            for method in ("GET", "POST"):
                add(
                    method,
                    "/v2/repository/index",
                    repository.index_endpoint(self._control, self.predictors),
                    "versions and states",
                )
            add(
                "POST",
                f"{repository.PREFIX}{{model}}/load",
                repository.load_endpoint(self._control, poll_s),
                "put a version to serve, in place of the old one",
            )
            add(
                "POST",
                f"{repository.PREFIX}{{model}}/unload",
                repository.unload_endpoint(self._control),
                "take a model away",
            )
        for route in predict_routes(predictions, health, has_repository=self._control is not None):
            router.add(route)
        add("GET", "/health", health, "200 when a request would be served", is_open=True)
        add("GET", "/metrics", metrics_endpoint(self.metrics), "figures for Prometheus", is_open=True)
        add(
            "GET",
            "/debug/memory",
            MemoryEndpoint(self.models, self.predictors, self._requests, self._keys),
            "what the engines hold, and who asked for it",
        )
        requests = DebugRequests(self._requests, self.models, self._keys)
        add("GET", "/debug/requests", requests.listing, "open requests and the last that ended: where their time goes")
        add("GET", "/debug/requests/{id}", requests.one, "one of them in full, by its X-Request-Id")
        add("GET", "/debug/events", EventsEndpoint(self._events, self._keys), "what happens, as it happens (events)")
        add("GET", "/version", version_endpoint, "version of aie", is_open=True)
        add("GET", "/", index_endpoint(router), "this list", is_open=True)
        return router
