"""New versions of models while the server answers: loaded beside the old one, checked, swapped in one step.

    find ─▶ does it fit? ─▶ load ─▶ check ─▶ swap ─▶ the old one is closed when its last request has ended
      └─────────┴────────────┴────────┴──▶ on any failure: the old one serves on, and the reason is kept

Requests hold leases on the version that they began with (stage 5), so nothing is ever taken from under one. Loads run
one after another, whatever model they are for: two that are measured against the same free memory would each find that
they fit. Closing has a thread of its own, since a step that runs has to be waited for.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aie_engine import AieError, available_memory_bytes, collect_closed_engines
from aie_reliability.errors import (
    BrokenVersionError,
    DrainingError,
    LoadCancelledError,
    LoadFailedError,
    ModelBusyError,
    ModelTooLargeError,
)
from aie_reliability.loading import Catalog, Load, Prepare
from aie_server import Holding, LoadFigures, LoadReport, ModelTable, ServedModel, VersionState

__all__ = ["ModelManager"]

_MAX_REASONS = 1000
_JOIN_S = 10.0
_MIB = 1 << 20

_log = logging.getLogger("aie.models")


@dataclass(slots=True)
class _Figures:
    num_loads: int = 0
    num_failures: int = 0
    seconds: float = 0.0


class ModelManager:
    """A `ModelControl` for the models of `table`: owns their engines and closes them, at the latest in `close`."""

    def __init__(
        self,
        table: ModelTable,
        catalog: Catalog,
        prepare: Prepare,
        *,
        available: Callable[[], int] = available_memory_bytes,
        after_close: Callable[[], None] = collect_closed_engines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._catalog = catalog
        self._prepare = prepare
        self._available = available
        self._after_close = after_close
        self._clock = clock
        self._lock = threading.Lock()  # for the books below
        self._turn = threading.Lock()  # held by the load that runs
        self._pending: dict[str, Load] = {}
        self._retired: list[ServedModel] = []
        self._reasons: dict[tuple[str, str], str] = {}  # of a version: why it does not serve
        self._figures: dict[str, _Figures] = {}
        self._is_ending = False
        self._to_load: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._to_close: queue.SimpleQueue[ServedModel | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._load_all, name="aie-models-load", daemon=True),
            threading.Thread(target=self._close_all, name="aie-models-close", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # What the server asks (ModelControl)

    def load(self, name: str, version: str | None = None) -> Load:
        load = self._begin(name, version)
        self._to_load.put(load)
        return load

    def load_here(self, name: str, version: str | None = None) -> LoadReport:
        """The same in the calling thread, for the start of a server: Ctrl-C interrupts it. Raises why it failed, which
        is then for the caller to say, and not in the log."""
        load = self._begin(name, version)
        self._run(load, logs=False)
        return load.result()

    def unload(self, name: str) -> None:
        with self._lock:
            if name in self._pending:
                raise _busy(name)
            holding = self._table.remove(name)
            self._explain(name, holding.model.version or "1", "unloaded")
        _log.info("%s is unloaded", name)
        self._retire(holding)

    def index(self) -> Sequence[VersionState]:
        complaint: AieError | None = None
        found: dict[str, list[str]] = {}
        try:
            found = {name: [version.version for version in versions] for name, versions in self._catalog.scan().items()}
        except AieError as error:  # a folder that is away, while what it held serves on
            complaint = error
        with self._lock:
            serving = {(model.name, model.version or "1") for model in self._table}
            loading = {(load.name, load.version) for load in self._pending.values()}
            leaving = {(model.name, model.version or "1") for model in self._retired}
            reasons = dict(self._reasons)
        for name, version in sorted(serving | loading | leaving):  # what is gone from the disk, but not from memory
            versions = found.setdefault(name, [])
            if version not in versions:
                versions.append(version)
        if complaint is not None and not found:
            raise complaint

        def state(key: tuple[str, str]) -> VersionState:
            reason = reasons.get(key, "") or str(complaint or "")
            if key in serving:
                return VersionState(*key, "READY", reason)
            if key in loading:
                return VersionState(*key, "LOADING")
            return VersionState(*key, "UNLOADING" if key in leaving else "UNAVAILABLE", reason)

        states = []
        for name, versions in found.items():
            states += [state((name, version)) for version in versions]
            if not versions:
                states.append(VersionState(name, "", "UNAVAILABLE", "it has no version yet"))
        return states

    def figures(self) -> Mapping[str, LoadFigures]:
        with self._lock:
            held = [model.name for model in (*self._table, *self._retired)] + list(self._pending)
            return {
                name: LoadFigures(figures.num_loads, figures.num_failures, figures.seconds, held.count(name))
                for name, figures in self._figures.items()
            }

    # The end

    def begin_drain(self) -> None:
        """No version is swapped any more; whoever waits for one is told."""
        with self._lock:
            self._is_ending = True
            pending = list(self._pending.values())
        for load in pending:
            load.fail(_cancelled())

    def close(self, timeout_s: float = _JOIN_S) -> None:
        """Close every engine. A load that cannot be interrupted closes what it made when it gets there."""
        self.begin_drain()
        self._to_load.put(None)
        with self._lock:
            models = [*self._table, *self._retired]
        for model in models:
            _close(model)
        self._to_close.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    # One load

    def _begin(self, name: str, version: str | None) -> Load:
        candidate = self._catalog.find(name, version)
        with self._lock:
            if self._is_ending:
                raise DrainingError("The server is shutting down and loads no models.", retry_after_s=1.0)
            if candidate.model in self._pending:
                raise _busy(name)
            load = self._pending[candidate.model] = Load(candidate)
            self._figures.setdefault(candidate.model, _Figures())
        return load

    def _load_all(self) -> None:
        while (load := self._to_load.get()) is not None:
            self._run(load)
            del load  # a thread that waits must not hold what went through it

    def _run(self, load: Load, *, logs: bool = True) -> None:
        """Whatever happens, the load ends, and the books say how."""
        began_s = self._clock()
        error: AieError
        try:
            with self._turn:
                self._swap_in(load, began_s)
            return
        except AieError as known:
            error = known
        except OSError as refused:
            error = LoadFailedError(f"{refused.filename or load.candidate.path}: {refused.strerror or refused}.")
        except Exception as unknown:
            _log.exception("loading %s failed", load.name)
            error = LoadFailedError(f"Loading {load.name} failed ({type(unknown).__name__}); the log says why.")
        except BaseException:  # Ctrl-C at the start
            self._settle(load, _cancelled(), began_s)
            raise
        if logs:
            _log.warning("%s: version %s is not put to serve: %s", load.name, load.version, error)
        self._settle(load, error, began_s)

    def _swap_in(self, load: Load, began_s: float) -> None:
        candidate = load.candidate
        self._check_not_ending()
        if candidate.problem is not None:
            raise BrokenVersionError(candidate.problem + ".")
        prepared = self._prepare(candidate)
        self._check_room(load, prepared.need_bytes)
        model = prepared.start()
        try:
            prepared.check(model)
            if self._catalog.find(candidate.model, candidate.version).stamp != candidate.stamp:
                raise BrokenVersionError(
                    f"The files of {candidate.path} changed while they were loaded. Write a version under a name that "
                    "ends with .tmp, and rename it when it is complete."
                )
            with self._lock:
                self._check_not_ending()
                before = self._table.put(model)
                took_s = self._clock() - began_s
                report = LoadReport(load.name, load.version, took_s, before.model.version if before else None)
                self._reasons.pop((load.name, load.version), None)
                self._figures[load.name].num_loads += 1
                self._figures[load.name].seconds += took_s
                self._pending.pop(load.name, None)
                if before is not None:
                    self._retired.append(before.model)
        except BaseException:
            _close(model)  # and the reason stays the one that was
            raise
        _log.info("%s: version %s serves now, loaded in %.2f s", load.name, load.version, took_s)
        if before is not None:
            before.retire(partial(self._to_close.put, before.model))
        load.succeed(report)

    def _settle(self, load: Load, error: AieError, began_s: float) -> None:
        took_s = self._clock() - began_s
        with self._lock:
            self._pending.pop(load.name, None)
            self._explain(load.name, load.version, str(error))
            self._figures[load.name].num_failures += 1
            self._figures[load.name].seconds += took_s
        load.fail(error)

    def _check_not_ending(self) -> None:
        if self._is_ending:
            raise _cancelled()

    def _check_room(self, load: Load, need_bytes: int) -> None:
        available = self._available()
        if need_bytes > available:
            raise ModelTooLargeError(
                f"Version {load.version} of {load.name} needs about {need_bytes // _MIB} MiB, beside what serves now, "
                f"and {available // _MIB} MiB are available. Unload a model first, or give the KV cache less."
            )

    def _explain(self, name: str, version: str, reason: str) -> None:
        self._reasons.pop((name, version), None)
        self._reasons[name, version] = reason
        while len(self._reasons) > _MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]

    # What is no longer served

    def _retire(self, holding: Holding) -> None:
        with self._lock:
            self._retired.append(holding.model)
        holding.retire(partial(self._to_close.put, holding.model))

    def _close_all(self) -> None:
        while (model := self._to_close.get()) is not None:
            _close(model)
            with self._lock:
                self._retired = [other for other in self._retired if other is not model]
            del model
            self._after_close()


def _close(model: ServedModel) -> None:
    try:
        model.engine.close()
    except Exception:  # whatever it is: the next one has to be closed, too
        _log.exception("version %s of %s could not be closed", model.version, model.name)


def _busy(name: str) -> ModelBusyError:
    return ModelBusyError(f"{name} is being loaded already; try again when that has ended.", retry_after_s=1.0)


def _cancelled() -> LoadCancelledError:
    return LoadCancelledError("The load was given up because the server is shutting down.", retry_after_s=1.0)
