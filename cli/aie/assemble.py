"""Settings become the configurations of the stages, and names become paths."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aie.console import note, pull_progress
from aie.log_format import make_formatter
from aie.service_log import ServiceLog, json_service_log
from aie.settings import ServeSettings, parse_bytes
from aie_engine import EngineConfig, EnvironmentLacksError, InvalidInputError, PredictorInfo, available_cores
from aie_loader import KNOWN_MODELS, pull, resolve
from aie_reliability import ReliabilityConfig
from aie_server import SpanSink, load_tracing

__all__ = [
    "DEFAULT_MODEL",
    "check_api_key",
    "engine_config",
    "find_model",
    "reliability_config",
    "set_up_logging",
    "span_sink",
]

DEFAULT_MODEL = "smollm2-135m"


def find_model(name: str | None) -> Path:
    """The path behind an alias, file or folder. The default model is pulled on first use; others are asked for."""
    if name is not None:
        return resolve(name)
    try:
        return resolve(DEFAULT_MODEL)
    except InvalidInputError:
        what = KNOWN_MODELS[DEFAULT_MODEL]
        note(f"The default model {DEFAULT_MODEL} is not here yet; pulling it once ({what.what}).")
        return pull(DEFAULT_MODEL, progress=pull_progress(DEFAULT_MODEL))


def engine_config(settings: ServeSettings, path: Path, name: str, *, share: int = 1) -> EngineConfig:
    """The engine's part of the settings. `share`: how many engines divide this machine's cores."""
    _refuse_what_is_not_there(settings)
    threads = settings.threads
    if threads is None and share > 1:
        threads = max(1, available_cores() // share)
    return EngineConfig(
        model_path=path,
        model_name=name,
        kernels=settings.kernels,  # type: ignore[arg-type]  # EngineConfig checks the value
        num_threads=threads,
        lenient=settings.lenient,
        precision=None if settings.quantize == "file" else settings.quantize,
        max_batch_size=settings.max_batch_size,
        max_batch_tokens=settings.max_batch_tokens,
        max_prefill_tokens=settings.max_prefill_tokens or None,
        max_queue=settings.max_queue,
        max_seq_len=settings.max_seq_len,
        kv_memory_bytes=parse_bytes(settings.kv_memory, param="kv_memory"),
        kv_dtype=settings.kv_dtype,  # type: ignore[arg-type]  # EngineConfig checks the value
        activations=settings.activations,  # type: ignore[arg-type]  # EngineConfig checks the value
        prefix_caching=settings.prefix_cache,
        speculate=settings.speculate,
        memdebug=settings.memdebug,
        memdebug_sample=settings.memdebug_sample,
        memory_log=_memory_log(settings, name if share > 1 else None),
        seed=settings.seed,
    )


def _memory_log(settings: ServeSettings, model: str | None) -> Path | None:
    """The file for the allocations of `model`, where several share the setting: `log.jsonl` → `log.model.jsonl`."""
    if settings.memory_log is None:
        return None
    if not settings.memdebug:
        raise InvalidInputError("--memory-log records nothing without --memdebug; give both.", param="memory_log")
    path = Path(settings.memory_log)
    return path if model is None else path.with_name(f"{path.stem}.{model.replace('/', '-')}{path.suffix}")


def reliability_config(settings: ServeSettings, predictors: Sequence[PredictorInfo] = ()) -> ReliabilityConfig:
    """The guards' part of the settings. What does not fit into a predictor that refuses is refused at the door, before
    it costs anything; where one makes its clients wait, or drops the oldest, that is for its own queue to do."""
    rooms = [info.max_queue + info.num_workers * info.max_batch_size for info in predictors]
    return ReliabilityConfig(
        max_in_flight=settings.max_batch_size + settings.max_queue,
        max_predictions=sum(rooms) if all(info.queue_policy == "reject" for info in predictors) else None,
        rate_limit_per_s=settings.rate_limit,
        deadline_s=settings.deadline_s,
        grace_s=settings.grace_s,
    )


def check_api_key(key: str | None) -> None:
    """A key that nobody can send, such as `--api-key "$UNSET"`, must not become a server without one."""
    if key is not None and (not key or key != key.strip() or not key.isprintable()):
        raise InvalidInputError(
            "--api-key is empty, or has blanks around it or characters that no header can carry. "
            "Leave it out to serve without a key.",
            param="api_key",
        )


def _refuse_what_is_not_there(settings: ServeSettings) -> None:
    if settings.device == "cuda":
        raise EnvironmentLacksError("There is no CUDA executor yet; run on the CPU with --device cpu.")
    if settings.device not in ("auto", "cpu"):
        raise InvalidInputError(f"device is {settings.device!r}; choose auto, cpu or cuda.", param="device")
    if settings.workers not in (0, 1):
        raise InvalidInputError(
            f"workers is {settings.workers}; a model has one worker process (1) or runs in the server's own (0).",
            param="workers",
        )


def span_sink(settings: ServeSettings, environ: Mapping[str, str] = os.environ) -> SpanSink | None:
    """Where spans go: to --otel-endpoint, or where OpenTelemetry's own variables say. What these want and is not there
    is a warning, since they are often set for all programs of a machine; what the flag wants is an error."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if settings.otel_endpoint is not None:
        return load_tracing(settings.otel_endpoint)
    if not (environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") not in ("", "otlp"):
        return None
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    try:
        if protocol == "grpc":
            raise EnvironmentLacksError("OTEL_EXPORTER_OTLP_PROTOCOL is grpc; spans are sent over HTTP only.")
        return load_tracing(None)
    except EnvironmentLacksError as error:
        logging.getLogger("aie.tracing").warning("There are no spans: %s", error)
        return None


def set_up_logging(level: str, log_format: str = "text") -> ServiceLog:
    """Lines on standard error, from a thread of their own: plain, or JSON objects. The caller closes it."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInputError(f"log_level is {level!r}; choose debug, info, warning or error.", param="log_level")
    log = json_service_log() if log_format == "json" else ServiceLog()
    log.setFormatter(make_formatter(log_format))
    logging.basicConfig(handlers=[log], level=number)
    return log
