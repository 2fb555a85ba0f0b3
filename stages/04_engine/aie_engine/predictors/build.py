"""A configuration into a model that is ready to compute batches."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np

from aie_engine.build import Report
from aie_engine.config import EngineConfig
from aie_engine.errors import ModelCheckError
from aie_engine.executors import NativeStatelessExecutor, make_stateless_executor
from aie_engine.executors.shared_weights import SharedMemory
from aie_engine.memory import EngineMemory
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.made_of import FileStamp, stamps_of
from aie_engine.predictors.protocol import PredictorInfo
from aie_engine.predictors.runner import BatchRunner
from aie_engine.predictors.signature import Signature, signature_of
from aie_engine.sizing import available_cores
from aie_loader import load_predictor
from aie_tensor import AieError

__all__ = ["PredictorParts", "build_predictor"]

_COMPUTED_TOKENS = 1024  # at a time: enough to keep matrix products busy, few enough for the activations to be small
_COMPUTED_BYTES = 1 << 20  # of inputs at a time, beyond which a batch is computed eight items after eight


@dataclass(frozen=True)
class PredictorParts:
    """What one worker computes with."""

    runners: tuple[BatchRunner, ...]  # one; to overlap, two that share an executor, each with buffers of its own
    info: PredictorInfo
    memory: EngineMemory
    made_of: list[FileStamp]
    close: Callable[[], None]  # gives memory and threads back


def build_predictor(
    config: PredictorConfig,
    report: Report,
    *,
    worker: str = "predict",
    num_threads: int | None = None,
    shared: SharedMemory | None = None,
) -> PredictorParts:
    """Load the model, build its executor and run it once. worker: this process, to a reader of memory snapshots.
    shared: memory for packed weights that other workers have, too.

    Raises the loader's errors, `NativeUnavailableError` and `UnsupportedOpError` where native kernels are demanded and
    cannot be had, `ModelCheckError` for a model that does not compute.
    """
    began = time.perf_counter()
    threads = num_threads or config.num_threads or available_cores()
    with ExitStack() as cleanup:
        predictor = load_predictor(config.model_path, head=config.head, input_shape=config.input_shape)
        cleanup.callback(predictor.close)
        made_of = stamps_of(predictor)
        name = config.model_name or predictor.name
        memory = EngineMemory(
            EngineConfig(config.model_path, memdebug=config.memdebug, memdebug_sample=config.memdebug_sample),
            model=name,
            worker=worker,
        )
        cleanup.callback(memory.close)
        pool = memory.pool
        cleanup.callback(pool.trim)
        cleanup.callback(pool.adopt(predictor.mapped_bytes, owner="mapped model file").release)
        signature = signature_of(predictor.graph)
        max_length = _max_length(config, signature, predictor.max_length)
        executor = make_stateless_executor(
            predictor.graph,
            kernels=config.kernels,
            report=report,
            num_threads=threads,
            max_tokens=min(config.max_batch_tokens, max(_COMPUTED_TOKENS, max_length or 1)),
            max_items=_items_at_a_time(config, signature),
            pool=pool,
            shared=shared,
        )
        cleanup.callback(executor.close)
        is_native = isinstance(executor, NativeStatelessExecutor)
        runners: list[BatchRunner] = []
        for _ in range(2 if config.overlap else 1):
            runners.append(
                BatchRunner(
                    signature,
                    executor,
                    pool,
                    max_batch_size=config.max_batch_size,
                    max_batch_tokens=config.max_batch_tokens,
                    one_by_one=not is_native,
                )
            )
            cleanup.callback(runners[-1].close)
        if config.warm_up:
            _warm_up(runners[0], config, signature)
        close = cleanup.pop_all().close
    info = PredictorInfo(
        name=name,
        architecture=predictor.architecture,
        inputs=signature.inputs,
        outputs=signature.outputs,
        output=predictor.output,
        labels=predictor.labels,
        problem=predictor.problem,
        max_length=max_length,
        reads_text=signature.kind == "texts",
        max_batch_size=config.max_batch_size,
        max_queue=config.max_queue,
        kernels="native" if is_native else "numpy",
        num_threads=threads,
        load_s=time.perf_counter() - began,
        weight_bytes=predictor.weight_bytes,
        queue_policy=config.queue_policy,
    )
    return PredictorParts(tuple(runners), info, memory, made_of, close)


def _max_length(config: PredictorConfig, signature: Signature, of_model: int | None) -> int | None:
    """Longest text in tokens; None where items are no texts."""
    if signature.kind != "texts":
        return None
    limits = (config.max_batch_tokens, signature.max_length, of_model)
    return min(limit for limit in limits if limit is not None)


def _items_at_a_time(config: PredictorConfig, signature: Signature) -> int:
    nbytes = sum(4 * prod(array.shape) for array in signature.inputs if -1 not in array.shape)
    whole = config.max_batch_size * nbytes <= _COMPUTED_BYTES
    return config.max_batch_size if whole else min(8, config.max_batch_size)


def _warm_up(runner: BatchRunner, config: PredictorConfig, signature: Signature) -> None:
    """A small batch, so that pages, caches and threads are there before the first request is."""
    item = {
        array.name: np.zeros([1 if size < 0 else size for size in array.shape], array.dtype)
        for array in signature.inputs
    }
    for result in runner.run([item, item]).items:
        if isinstance(result, AieError):
            raise ModelCheckError(f"{config.model_path} does not compute: {result}")
