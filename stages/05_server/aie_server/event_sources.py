"""News that nobody brings: what engines, workers and models have done since they were last asked.

Predictors tell of each batch by themselves. An engine's steps happen in another process, hundreds in a second; its
counters are read twice a second, and its requests asked after only if one was preempted meanwhile. All of it goes on
only while somebody listens.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aie_engine import AieError, BatchFacts, EngineStats, WorkerStats
from aie_server.api.request_names import Names
from aie_server.auth import ApiKeys
from aie_server.batch_growth import largest_new
from aie_server.control import LoadFigures, ModelControl
from aie_server.events import EventHub
from aie_server.predictors import PredictorTable
from aie_server.request_book import RequestBook
from aie_server.served import ModelTable, ServedModel

__all__ = ["EventSources"]

_log = logging.getLogger("aie.server")

_EVERY_S = 0.5
_NUM_ENDED = 32  # requests that may have been preempted and have ended since


class EventSources:
    """`Sources` of a hub. `look` asks everybody once; `begin` and `end` have it done by a thread."""

    def __init__(
        self,
        hub: EventHub,
        models: ModelTable,
        predictors: PredictorTable,
        control: ModelControl | None,
        book: RequestBook,
        keys: ApiKeys,
        *,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._models = models
        self._predictors = predictors
        self._control = control
        self._book = book
        self._keys = keys
        self._every_s = every_s
        self._clock = clock
        self._stop = threading.Event()
        self._looking = threading.Lock()  # held by the thread that looks: one that ends may still be at it
        self._forget()

    def begin(self) -> None:
        for model in self._predictors:
            model.predictor.watch(partial(self._batch, model.name))
        self._stop = threading.Event()
        threading.Thread(target=self._run, args=(self._stop,), name="aie-events", daemon=True).start()

    def end(self) -> None:
        """The thread ends when it is done with what it is at."""
        self._stop.set()
        for model in self._predictors:
            model.predictor.watch(None)

    def look(self) -> None:
        """Tell what is new since the last time; the first time, nothing is."""
        with self._models.lease_all() as models:
            for model in models:
                self._look_at(model)
            versions = {model.name: model.version or "" for model in models}
        for served in self._predictors:
            self._look_at_workers(served.name, served.predictor.stats().workers)
        self._look_at_loads(versions)
        self._is_first = False

    def _forget(self) -> None:
        self._is_first = True
        self._began_s = self._clock()
        self._served: dict[str, weakref.ref[ServedModel]] = {}  # a version that has gone is not kept
        self._stats: dict[str, EngineStats] = {}
        self._is_alive: dict[tuple[str, int], bool] = {}
        self._restarts: dict[tuple[str, int], int] = {}
        self._told: set[tuple[str, int]] = set()  # preemptions: the engine's name of the request, and when
        self._loads: Mapping[str, LoadFigures] = {}
        self._versions: Mapping[str, str] = {}

    def _run(self, stop: threading.Event) -> None:
        with self._looking:
            self._forget()
        while not stop.is_set():
            with self._looking:
                try:
                    self.look()
                except AieError as error:
                    self._hub.tell("trouble", {"what": str(error)})
                except Exception:  # a fault of ours: those who listen are told, and go on listening
                    _log.exception("what is new could not be found out")
                    self._hub.tell("trouble", {"what": "what is new could not be found out; the server's log has more"})
            stop.wait(self._every_s)

    # Batches

    def _batch(self, model: str, facts: BatchFacts) -> None:
        """Called by who computes: short, and raises nothing."""
        if self._hub.is_heard:
            self._hub.tell(
                "batch",
                {
                    "model": model, "size": facts.size, "cut": facts.reason, "worker": facts.worker,
                    "waited_ms": _ms(facts.waited_s), "compute_ms": _ms(facts.compute_s),
                    "padding": round(facts.padding_share, 4),
                },
            )  # fmt: skip

    def _look_at(self, model: ServedModel) -> None:
        """One engine: its steps, who was preempted in them, and whether it is still the same worker."""
        is_alive, name = model.engine.is_alive, model.name
        seen = self._served.get(name)
        if seen is None or seen() is not model:  # a version that was put to serve: its worker is no news of its own
            self._served[name] = weakref.ref(model)
            self._stats.pop(name, None)
        self._tell_of_worker(name, 0, is_alive, "engine")
        if not is_alive:
            return
        now = model.engine.stats()
        before = self._stats.get(name)
        self._stats[name] = now
        if before is None:
            return
        if now.worker_pid != before.worker_pid or now.steps < before.steps:
            self._hub.tell("worker", {"model": name, "worker": "engine", "state": "new", "pid": now.worker_pid})
            return
        if now.steps > before.steps:
            self._hub.tell("steps", _steps(name, before, now))
        if now.num_preemptions > before.num_preemptions:
            self._tell_of_preemptions(model)

    def _tell_of_preemptions(self, model: ServedModel) -> None:
        requests = model.engine.explain(num_ended=_NUM_ENDED).requests
        traces = [trace for traces in self._book.snapshot() for trace in traces]
        owners = {choice.engine_id: trace for trace in traces for choice in trace.choices}
        seen: set[tuple[str, int]] = set()
        for report in requests:
            for event in report.events:
                key = (report.request_id, event.at_us)
                if event.what != "preempted" or report.added_s + event.at_us / 1e6 < self._began_s:
                    continue
                seen.add(key)
                owner = owners.get(report.request_id)
                if key in self._told:
                    continue
                client = owner.client_key if owner is not None else ""
                names = Names(traces, client if self._keys.are_needed else None)
                facts = {
                    "model": model.name, "request_id": names.of(report.request_id), "by": names.of(event.by),
                    "lost_tokens": event.tokens,
                }  # fmt: skip
                self._hub.tell("preempted", facts, client)
        self._told = seen

    # Workers and models

    def _look_at_workers(self, model: str, workers: Sequence[WorkerStats]) -> None:
        for worker in workers:
            index, restarts = worker.index, worker.restarts
            self._tell_of_worker(model, index, worker.is_ready, f"worker {index}")
            before = self._restarts.get((model, index), restarts)
            self._restarts[model, index] = restarts
            if restarts > before:
                facts = {"model": model, "worker": f"worker {index}", "state": "new", "restarts": restarts}
                self._hub.tell("worker", facts)

    def _tell_of_worker(self, model: str, index: int, is_alive: bool, what: str) -> None:
        was_alive = self._is_alive.get((model, index), True)
        self._is_alive[model, index] = is_alive
        if was_alive and not is_alive:
            self._hub.tell("worker", {"model": model, "worker": what, "state": "lost"})

    def _look_at_loads(self, versions: Mapping[str, str]) -> None:
        before, self._versions = self._versions, versions
        loads: Mapping[str, LoadFigures] = {} if self._control is None else self._control.figures()
        loads_before, self._loads = self._loads, loads
        if self._is_first or self._control is None:
            return
        nothing = LoadFigures(0, 0, 0.0, 0)
        for name, figures in loads.items():
            was = loads_before.get(name, nothing)
            if figures.num_loads > was.num_loads and name in versions:
                facts = {"model": name, "state": "serves", "version": versions[name]}
                self._hub.tell("reload", {**facts, "previous_version": before.get(name)})
            if figures.num_failures > was.num_failures:
                self._hub.tell("reload", {"model": name, "state": "failed", "why": self._why_failed(name)})
        for name in before.keys() - versions.keys():
            self._hub.tell("reload", {"model": name, "state": "unloaded", "version": before[name]})

    def _why_failed(self, name: str) -> str:
        assert self._control is not None
        reasons = [entry.reason for entry in self._control.index() if entry.name == name and entry.reason]
        return reasons[-1] if reasons else ""


def _steps(model: str, before: EngineStats, now: EngineStats) -> dict[str, object]:
    steps = now.steps - before.steps
    return {
        "model": model, "steps": steps,
        "mean_batch": round((now.batch_size_sum - before.batch_size_sum) / steps, 2),
        "max_batch": largest_new(before.batch_sizes, now.batch_sizes),
        "prompt_tokens": now.tokens_prefill - before.tokens_prefill,
        "generated_tokens": now.tokens_decode - before.tokens_decode,
        "running": now.num_running, "waiting": now.num_waiting, "kv_usage": round(now.kv_usage, 4),
    }  # fmt: skip


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
