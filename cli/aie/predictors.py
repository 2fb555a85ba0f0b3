"""Settings become the predictors of a service: encoders, classifiers and image models beside those that generate."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aie.settings import ServeSettings
from aie_engine import (
    EnvironmentLacksError,
    InvalidInputError,
    LocalPredictor,
    PredictorClient,
    PredictorConfig,
    WorkerPredictor,
    available_cores,
)
from aie_engine.processing import Steps, load_pipeline, read_steps
from aie_server import ServedPredictor

__all__ = ["close_predictors", "describe", "predictor_config", "start_predictors"]

_SHARED = ("max_batch_size", "max_batch_tokens", "max_queue")  # with other defaults than those for generation
_OWN = {  # generation has none: setting → field
    "max_wait_ms": "max_wait_ms", "batcher": "policy", "queue_policy": "queue_policy", "waiting": "waiting",
}  # fmt: skip


def predictor_config(settings: ServeSettings, path: Path, name: str, *, share: int = 1) -> PredictorConfig:
    """The predictor's part of the settings. `share`: how many models divide this machine's cores.

    What the settings leave open is the model's own `processing.toml` to say, and then `PredictorConfig`: a batch that
    pays off here is not one that pays off for generation. Raises `InvalidInputError` and `EnvironmentLacksError` for
    what predictors do not have.
    """
    if settings.device == "cuda":
        raise EnvironmentLacksError(f"{name} has no CUDA executor yet; run on the CPU with --device cpu.")
    if settings.device not in ("auto", "cpu"):
        raise InvalidInputError(f"device is {settings.device!r}; choose auto, cpu or cuda.", param="device")
    if settings.quantize != "file":
        raise InvalidInputError(f"{name} does not generate text; --quantize is not there for it.", param="quantize")
    if settings.kv_dtype != "fp32":
        raise InvalidInputError(f"{name} does not generate text; --kv-dtype is not there for it.", param="kv_dtype")
    if settings.activations != "fp32":
        raise InvalidInputError(
            f"{name} does not generate text; --activations is not there for it.", param="activations"
        )
    if settings.lenient:
        raise InvalidInputError(f"{name} does not generate text; --lenient is not there for it.", param="lenient")
    if settings.workers < 0:
        raise InvalidInputError(f"workers is {settings.workers}; it must be 0 or more.", param="workers")
    own = read_steps(path if path.is_dir() else path.parent, Steps()).batching.given()
    given = own | {field: getattr(settings, field) for field in _SHARED if field in settings.origins}
    given |= {field: value for name, field in _OWN.items() if (value := getattr(settings, name)) is not None}
    return PredictorConfig(
        model_path=path,
        model_name=name,
        kernels=settings.kernels,  # type: ignore[arg-type]  # PredictorConfig checks the value
        num_threads=settings.threads or max(1, available_cores() // share),
        share_weights=settings.share_weights,
        memdebug=settings.memdebug,
        memdebug_sample=settings.memdebug_sample,
        **given,
    )


def start_predictors(
    settings: ServeSettings, paths: Mapping[str, Path], report: Callable[[str], None], *, share: int
) -> list[ServedPredictor]:
    """One for each name and path, ready. If one does not start, those before it are closed again."""
    started: list[ServedPredictor] = []
    try:
        for name, path in paths.items():
            config = predictor_config(settings, path, name, share=share)
            with _closed_on_error(_start(config, settings.workers, report)) as predictor:
                pipeline = load_pipeline(path, max_tokens=predictor.info.max_length)
                started.append(ServedPredictor(name, predictor, pipeline))
    except BaseException:
        close_predictors(started)
        raise
    return started


def close_predictors(predictors: list[ServedPredictor]) -> None:
    """All of them, whatever happens to one."""
    with ExitStack() as closing:
        for model in predictors:
            closing.callback(model.predictor.close)


def describe(model: ServedPredictor) -> str:
    """One line for whoever started the server."""
    info = model.predictor.info
    reads = f"texts of up to {info.max_length} tokens" if info.reads_text else f"one {model.pipeline.reads} at a time"
    workers = f"{info.num_workers} workers of " if info.num_workers > 1 else ""
    return (
        f"{model.name}: {info.kernels} kernels, {workers}{info.num_threads} threads, {reads}, batches of up to "
        f"{info.max_batch_size}"
    )


def _start(config: PredictorConfig, num_workers: int, report: Callable[[str], None]) -> PredictorClient:
    return WorkerPredictor(config, num_workers, report) if num_workers else LocalPredictor(config, report)


@contextmanager
def _closed_on_error(predictor: PredictorClient) -> Iterator[PredictorClient]:
    try:
        yield predictor
    except BaseException:
        predictor.close()
        raise
