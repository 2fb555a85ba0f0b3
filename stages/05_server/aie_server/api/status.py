"""What operators ask: GET /health, /metrics, /version, and / for people."""

import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from aie_server.config import ServerConfig
from aie_server.gate import Gate
from aie_server.http.messages import Request, Response, json_response
from aie_server.http.router import Router
from aie_server.metrics import CONTENT_TYPE, Metrics
from aie_server.predictors import PredictorTable
from aie_server.served import ModelTable, ServedModel

__all__ = ["HealthEndpoint", "aie_version", "index_endpoint", "metrics_endpoint", "version_endpoint"]


class HealthEndpoint:
    """200 only when a request would be served; else 503 with the reason."""

    def __init__(
        self,
        models: ModelTable,
        predictors: PredictorTable,
        gate: Gate,
        config: ServerConfig,
        is_draining: Callable[[], bool],
    ) -> None:
        self._models = models
        self._predictors = predictors
        self._gate = gate
        self._config = config
        self._is_draining = is_draining

    def __call__(self, _: Request) -> Response:
        reason = self._why_not()
        if reason is None:
            return json_response({"status": "ok"})
        return json_response({"status": "unavailable", "reason": reason}, status=503, headers={"Retry-After": "1"})

    def is_well(self) -> bool:
        """Whether the answer would be 200."""
        return self._why_not() is None

    def _why_not(self) -> str | None:
        if self._is_draining():
            return "the server is draining"
        is_ready, reason = self._gate.ready()
        if not is_ready:
            return reason or "the gate is closed"
        for model in self._predictors:
            if (ill := model.why_ill(self._config.max_batch_age_s)) is not None:
                return ill
        with self._models.lease_all() as models:
            if not models and not len(self._predictors):
                return "no model is loaded"
            return next(filter(None, map(self._why_ill, models)), None)

    def _why_ill(self, model: ServedModel) -> str | None:
        if not model.engine.is_alive:
            return f"the engine of {model.name} is not running"
        stats = model.engine.stats()
        if stats.num_running and stats.last_step_age_s > self._config.max_step_age_s:
            return f"the engine of {model.name} has not finished a step for {stats.last_step_age_s:.0f} s"
        return None


def metrics_endpoint(registry: Metrics) -> Callable[[Request], Response]:
    """Everything in `registry`, in Prometheus' text format."""
    return lambda _: Response(registry.render().encode(), content_type=CONTENT_TYPE)


def version_endpoint(_: Request) -> Response:
    """Versions of aie and Python."""
    return json_response({"version": aie_version(), "python": platform.python_version()})


def index_endpoint(router: Router) -> Callable[[Request], Response]:
    """A list of routes, as text, for whoever opens the address in a browser."""

    def handler(_: Request) -> Response:
        lines = [f"{route.method:<5} {route.path:<22} {route.summary}" for route in router]
        return Response(
            ("aie: an OpenAI-compatible inference server\n\n" + "\n".join(lines) + "\n").encode(),
            content_type="text/plain; charset=utf-8",
        )

    return handler


@cache
def aie_version() -> str:
    """Of the installed package."""
    try:
        return version("aie")
    except PackageNotFoundError:
        return "0 (not installed)"
