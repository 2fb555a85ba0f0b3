"""Settings become a running service: where models are, what loading one takes, guards, server, in that order."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from aie.assemble import DEFAULT_MODEL, check_api_key, engine_config, find_model, reliability_config, span_sink
from aie.console import note
from aie.predictors import close_predictors, start_predictors
from aie.settings import ServeSettings
from aie.texts import TextModels
from aie_engine import (
    AieError,
    EngineConfig,
    InvalidInputError,
    ModelVersion,
    check_engine,
    memory_need,
    read_golden,
    start_engine,
)
from aie_loader import FixedModels, ModelRepository, is_predictor, served_name
from aie_reliability import (
    AdmissionGate,
    Catalog,
    CircuitBreaker,
    GuardedEngine,
    ModelManager,
    PreparedModel,
    RepositoryWatcher,
    SupervisedEngine,
)
from aie_server import ModelTable, ServedModel, ServedPredictor, Server, ServerConfig
from aie_server.grpc import load_grpc
from aie_server.http.listener import check_port

__all__ = ["Service", "build_service"]


@dataclass(slots=True)
class Service:
    """Everything that `aie serve` runs; `close` ends it from the outside in."""

    server: Server
    gate: AdmissionGate
    models: ModelManager
    watcher: RepositoryWatcher | None = None
    predictors: list[ServedPredictor] = field(default_factory=list)

    def begin_drain(self) -> None:
        """Nothing new from now on; what was begun goes on."""
        if self.watcher is not None:
            self.watcher.close()
        self.models.begin_drain()
        self.gate.begin_drain()
        self.server.begin_drain()

    def in_progress(self) -> int:
        """Requests that would be cut off by `close`. The gate forgets a request when its last token is known, the
        server when its last byte has left."""
        return max(self.gate.in_flight, self.server.num_busy_connections)

    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()
        self.server.close()
        try:
            self.models.close()
        finally:
            close_predictors(self.predictors)
            for worker in multiprocessing.active_children():
                worker.kill()  # one that still loads a model would be waited for at exit, however long that takes


def build_service(settings: ServeSettings, *, report: Callable[[str], None] = note) -> Service:
    """Loads every model and opens the port. Whatever was started is closed again when a later part fails."""
    check_api_key(settings.api_key)
    # What is wrong with the ports is known before minutes of loading, though only the server will take them.
    check_port(settings.host, settings.port)
    if settings.grpc_port is not None:
        load_grpc()
        check_port(settings.host, settings.grpc_port, flag="--grpc-port")
    catalog, predictor_paths = _catalog(settings)
    versions = [found[-1] for found in catalog.scan().values() if found]
    spans = span_sink(settings)  # whether the library is there is known early, too
    table = ModelTable(may_be_empty=True)
    share = max(1, len(versions) + len(predictor_paths))
    manager = ModelManager(table, catalog, _Preparation(settings, share, report))
    predictors: list[ServedPredictor] = []
    try:
        predictors = start_predictors(settings, predictor_paths, report, share=share)
        _load_at_start(settings, catalog, manager, table, report)
        infos = [model.predictor.info for model in predictors]
        gate = AdmissionGate(reliability_config(settings, infos), engines_ready=lambda: _engines_ready(table))
        server = Server(
            table,
            predictors=predictors,
            control=manager,
            host=settings.host,
            port=settings.port,
            grpc_port=settings.grpc_port,
            gate=gate,
            api_keys=(settings.api_key,) if settings.api_key else (),
            config=ServerConfig(
                metrics_prefix=settings.metrics_prefix,
                slow_request_s=settings.slow_request_s,
                log_every=settings.log_every,
            ),
            spans=spans,
        )
        service = Service(server, gate, manager, predictors=predictors)
        if settings.watch is not None:
            service.watcher = RepositoryWatcher(catalog, manager, versions)
            service.watcher.start()
        return service
    except BaseException:
        manager.close()
        close_predictors(predictors)
        if spans is not None:
            spans.close()
        raise


def _catalog(settings: ServeSettings) -> tuple[Catalog, dict[str, Path]]:
    """A repository where one was named, else the models of the command line: those that generate, and the paths of
    those that answer at once, which are neither loaded nor exchanged later. Raises `InvalidInputError`."""
    folders = [folder for folder in (settings.repository, settings.watch) if folder is not None]
    if not folders:
        names = settings.models or (None,)
        paths = [(DEFAULT_MODEL if name is None else served_name(name), find_model(name)) for name in names]
        if len(dict(paths)) != len(paths):
            raise InvalidInputError(
                f"Two models would be served under one name: {', '.join(name for name, _ in paths)}."
            )
        predictors = {name: path for name, path in paths if is_predictor(path)}
        return FixedModels({name: path for name, path in paths if name not in predictors}), predictors
    if settings.models:
        raise InvalidInputError("Give models, or a folder of models with --repository or --watch, not both.")
    if len({Path(folder).resolve() for folder in folders}) > 1:
        raise InvalidInputError("--repository and --watch name different folders; one server has one.", param="watch")
    return ModelRepository(folders[0]), {}


def _load_at_start(
    settings: ServeSettings,
    catalog: Catalog,
    manager: ModelManager,
    table: ModelTable,
    report: Callable[[str], None],
) -> None:
    """Models of the command line must load. Of a repository's, the newest version that does; with none at all, a server
    that watches waits for the first, and another has nothing to do."""
    failures: list[AieError] = []
    for name, versions in catalog.scan().items():
        for version in reversed(versions):
            try:
                manager.load_here(name, version.version)
                break
            except AieError as error:
                if isinstance(catalog, FixedModels):
                    raise
                report(f"{name}: version {version.version} is passed over: {error}")
                failures.append(error)
    if len(table) or settings.watch is not None or isinstance(catalog, FixedModels):
        return
    raise (
        failures[0]
        if failures
        else InvalidInputError(
            f"{settings.repository} holds no models. They lie there as MODEL/VERSION/… or MODEL.gguf.",
            param="repository",
        )
    )


class _Preparation:
    """Stage 6's `Prepare`: reads a version's headers and says what starting and checking it means.

    share: how many engines divide this machine's cores.
    """

    def __init__(self, settings: ServeSettings, share: int, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._share = share
        self._report = report
        self._texts = TextModels(settings.lenient)
        self._num_made: dict[str, int] = {}

    def __call__(self, version: ModelVersion) -> PreparedModel:
        if is_predictor(version.path):
            raise InvalidInputError(
                f"{version.path} does not generate text; a model of this kind cannot be exchanged while the server "
                "answers. Name it on the command line of `aie serve` instead of in a repository.",
            )
        config = self._config(version)
        text = self._texts.of(version)
        golden = read_golden(version.golden)

        def start() -> ServedModel:
            engine = _guarded_engine(config, self._settings, self._report)
            return ServedModel(version.model, engine, text, created=int(time.time()), version=version.version)

        def check(model: ServedModel) -> None:
            check_engine(model.engine, text, golden)
            _ = model.longest_token_bytes  # kept there; the first request would wait for it

        return PreparedModel(memory_need(config, text.config, version.nbytes).total, start, check)

    def _config(self, version: ModelVersion) -> EngineConfig:
        config = engine_config(self._settings, version.path, version.model, share=self._share)
        number = self._num_made[version.model] = self._num_made.get(version.model, 0) + 1
        if config.memory_log is not None and number > 1:  # the engine before still writes to its own
            log = config.memory_log
            config = replace(config, memory_log=log.with_name(f"{log.stem}.{number}{log.suffix}"))
        return config


def _guarded_engine(config: EngineConfig, settings: ServeSettings, report: Callable[[str], None]) -> GuardedEngine:
    """An engine of this version, restarted as this version if it dies, with a breaker of its own."""
    reliability = reliability_config(settings)
    supervised = SupervisedEngine(
        lambda: start_engine(config, settings.workers, report),
        backoff_s=reliability.restart_backoff_s,
        max_backoff_s=reliability.max_restart_backoff_s,
    )
    return GuardedEngine(supervised, CircuitBreaker(reliability.breaker_threshold, reliability.breaker_recovery_s))


def _engines_ready(table: ModelTable) -> tuple[bool, str]:
    with table.lease_all() as models:
        dead = [model.name for model in models if not _is_ready(model)]
    return (False, f"the engine of {', '.join(dead)} is not available") if dead else (True, "ready")


def _is_ready(model: ServedModel) -> bool:
    engine = model.engine
    return engine.is_alive and not (isinstance(engine, GuardedEngine) and not engine.takes_requests)
