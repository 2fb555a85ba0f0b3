"""What is measured of models that answer at once. Read from `PredictorClient.stats` at each scrape, but for the times
of a request, which only the server sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from aie_server.metrics import Counter, Histogram, Metrics
from aie_server.predictors import PredictorTable

__all__ = ["OUTCOMES", "PHASES", "PredictionMetrics", "PredictorMetrics"]

PHASES = ("pre", "queue", "compute", "post")
OUTCOMES = ("ok", "refused", "failed", "cancelled")
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class PredictorMetrics:
    """The children that one model's requests touch; looked up once, not per request."""

    phases: Mapping[str, Histogram]
    outcomes: Mapping[str, Counter]
    inputs: Counter
    tokens: Counter


class PredictionMetrics:
    """Declares everything in `registry`."""

    def __init__(self, registry: Metrics) -> None:
        by_model = ("model_name",)
        self._phases = registry.histogram(
            "prediction_phase_seconds",
            "Time of a request by phase; queue and compute are the longest among its inputs.",
            _SECONDS,
            ("model_name", "phase"),
        )
        self._requests = registry.counter(
            "prediction_requests_total", "Requests to predictors that ended, by outcome.", ("model_name", "outcome")
        )
        self._inputs = registry.counter("prediction_inputs_total", "Inputs that were computed.", by_model)
        self._tokens = registry.counter("prediction_tokens_total", "Tokens of the texts among them.", by_model)
        self._waiting = registry.gauge("prediction_inputs_waiting", "Inputs that wait for their batch.", by_model)
        self._running = registry.gauge("prediction_inputs_running", "Inputs in batches under way.", by_model)
        self._refused = registry.counter(
            "prediction_inputs_refused_total",
            "Inputs that the predictor did not take, such as by a full queue.",
            by_model,
        )
        self._dropped = registry.counter(
            "prediction_inputs_dropped_total",
            "Inputs that waited longest in a full queue and gave way to newer ones.",
            by_model,
        )
        self._batches = registry.counter(
            "prediction_batches_total", "Batches by why they were cut.", ("model_name", "reason")
        )
        self._rows = registry.counter(
            "prediction_batch_inputs_total", "Inputs over all batches; by all batches: the mean batch.", by_model
        )
        self._compute_s = registry.counter("prediction_compute_seconds_total", "Time in the executor.", by_model)
        self._used = registry.gauge(
            "prediction_batch_utilisation", "Mean part of the largest batch that was filled, 0 to 1.", by_model
        )
        self._padding = registry.gauge(
            "prediction_padding_share", "Mean part of a batch that padding would have been, 0 to 1.", by_model
        )
        self._workers = registry.gauge(
            "prediction_workers",
            "Workers by state; absent is one that is being started again, or was given up.",
            ("model_name", "state"),
        )
        self._restarts = registry.counter("prediction_worker_restarts_total", "Workers started again.", by_model)
        self._resent = registry.counter(
            "prediction_batches_resent_total", "Batches whose worker died, and that went to another.", by_model
        )
        self._registry = registry
        self._of_model: dict[str, PredictorMetrics] = {}

    def of_model(self, name: str) -> PredictorMetrics:
        """The same object for a name each time."""
        found = self._of_model.get(name)
        if found is None:
            found = self._of_model[name] = PredictorMetrics(
                {phase: self._phases.labels(name, phase) for phase in PHASES},
                {outcome: self._requests.labels(name, outcome) for outcome in OUTCOMES},
                self._inputs.labels(name),
                self._tokens.labels(name),
            )
        return found

    def watch(self, predictors: PredictorTable) -> None:
        """Read them all, at each scrape."""
        self._registry.on_scrape(lambda: self._collect(predictors))

    def _collect(self, predictors: PredictorTable) -> None:
        for model in predictors:
            stats, name = model.predictor.stats(), model.name
            self._waiting.labels(name).set(stats.num_waiting)
            self._running.labels(name).set(stats.num_running)
            self._refused.labels(name).set_total(stats.num_refused)
            self._dropped.labels(name).set_total(stats.num_dropped)
            for reason, count in stats.reasons.items():
                self._batches.labels(name, reason).set_total(count)
            self._rows.labels(name).set_total(stats.rows)
            self._compute_s.labels(name).set_total(stats.compute_s)
            self._used.labels(name).set(stats.utilisation)
            self._padding.labels(name).set(stats.padding_share)
            num_ready = sum(worker.is_ready for worker in stats.workers)
            self._workers.labels(name, "ready").set(num_ready)
            self._workers.labels(name, "absent").set(len(stats.workers) - num_ready)
            self._restarts.labels(name).set_total(sum(worker.restarts for worker in stats.workers))
            self._resent.labels(name).set_total(stats.resent_batches)
