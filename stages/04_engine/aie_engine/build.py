"""A configuration into a core that is ready to run: the one place where all the parts of the engine meet."""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from aie_engine.assembler import BatchAssembler
from aie_engine.config import EngineConfig
from aie_engine.constraints import ConstraintMaker, MaskAhead
from aie_engine.core import EngineCore
from aie_engine.errors import ModelCheckError, UnsupportedOpError
from aie_engine.executors import Executor, NumpyExecutor
from aie_engine.kv_cache import KVCache
from aie_engine.memory import EngineMemory
from aie_engine.params import SamplingParams
from aie_engine.protocol import EngineInfo
from aie_engine.requests import GenerateRequest
from aie_engine.sizing import Sizes, available_cores, choose_rows, choose_sizes
from aie_engine.speculation import Speculator
from aie_engine.text import load_text_model
from aie_loader import Model, WeightConverter, find_leniency, find_precision, fuse, load_model
from aie_scheduler import BlockAllocator, ContinuousBatcher, SchedulerConfig
from aie_tensor import MemoryPool, NativeUnavailableError, native

__all__ = ["EngineParts", "Report", "build_engine"]

Report = Callable[[str], None]  # takes a line for a person to read

_ON_NUMPY = "Running on NumPy, many times slower than native kernels."


@dataclass(frozen=True)
class EngineParts:
    """What an engine runs on."""

    core: EngineCore
    info: EngineInfo
    memory: EngineMemory
    close: Callable[[], None]  # gives memory and threads back


def build_engine(config: EngineConfig, report: Report, *, worker: str = "engine") -> EngineParts:
    """Load the model, allocate the KV cache, build the executor and run it once. worker: this process, to a reader of
    memory snapshots.

    Raises the loader's errors, `InvalidInputError` for sizes that do not go together, and `NativeUnavailableError` when
    native kernels are demanded where no compiler is, `UnsupportedOpError` when they lack an operator.
    """
    began = time.perf_counter()
    with ExitStack() as cleanup:  # what was built so far, should the next thing fail
        model = load_model(config.model_path, lenient=find_leniency(config.lenient))
        cleanup.callback(model.close)
        name = config.model_name or model.name
        memory = EngineMemory(config, model=name, worker=worker)
        cleanup.callback(memory.close)
        pool = memory.pool
        cleanup.callback(pool.trim)  # so that a closed engine holds nothing, not even blocks to be reused
        cleanup.callback(pool.adopt(model.mapped_bytes, owner="mapped model file").release)
        sizes = choose_sizes(config, model.config)
        num_threads = config.num_threads or available_cores()
        kv = KVCache(model.config, sizes.num_blocks, config.block_size, pool, config.kv_dtype)
        cleanup.callback(kv.close)
        converter = _make_converter(config, model, report)
        max_rows = choose_rows(config, model.config.vocab_size)
        executor = _make_executor(config, model, converter, kv, pool, sizes, max_rows, num_threads, report)
        cleanup.callback(executor.close)
        assembler = _make_assembler(config, sizes, pool)
        cleanup.callback(assembler.close)
        masks = MaskAhead(lambda: _make_constraints(config, model))
        cleanup.callback(masks.close)
        scheduler = _make_scheduler(config, sizes, kv)
        core = EngineCore(
            scheduler,
            executor,
            assembler,
            eos_token_ids=model.config.eos_token_ids,
            block_size=config.block_size if config.prefix_caching else None,
            speculator=_make_speculator(config, scheduler, max_rows),
            masks=masks,
            max_rows=max_rows,
            pool=pool,
            seed=config.seed,
        )
        if config.warm_up:
            _warm_up(core, config, sizes, model.config.vocab_size)
        close = cleanup.pop_all().close
    # What lives now lives as long as the engine: no garbage collection during a step needs to walk over it.
    gc.collect()
    gc.freeze()
    info = EngineInfo(
        model_name=name,
        max_seq_len=sizes.max_seq_len,
        vocab_size=model.config.vocab_size,
        max_batch_size=config.max_batch_size,
        num_kv_blocks=sizes.num_blocks,
        block_size=config.block_size,
        kernels=executor.kernels,
        num_threads=num_threads,
        eos_token_ids=model.config.eos_token_ids,
        max_queue=config.max_queue,
        load_s=time.perf_counter() - began,
        weight_bytes=model.weight_bytes if converter is None else converter.nbytes,
    )
    return EngineParts(core, info, memory, close)


def _make_assembler(config: EngineConfig, sizes: Sizes, pool: MemoryPool) -> BatchAssembler:
    return BatchAssembler(
        max_batch_size=config.max_batch_size,
        max_batch_tokens=config.max_batch_tokens,
        max_seq_len=sizes.max_seq_len,
        block_size=config.block_size,
        pool=pool,
    )


def _make_constraints(config: EngineConfig, model: Model) -> ConstraintMaker:
    """For the first request that wants one: reading a tokenizer takes a while."""
    tokenizer = load_text_model(config.model_path, lenient=config.lenient).tokenizer
    return ConstraintMaker(tokenizer, vocab_size=model.config.vocab_size, eos_token_ids=model.config.eos_token_ids)


def _make_speculator(config: EngineConfig, scheduler: ContinuousBatcher, max_rows: int) -> Speculator | None:
    # Half of the spare rows: the others are for the scores of prompts in the same step.
    max_drafts = (max_rows - config.max_batch_size) // 2
    if not config.speculate or max_drafts < 1:
        return None
    return Speculator(scheduler, most=config.speculate, max_drafts=max_drafts)


def _make_converter(config: EngineConfig, model: Model, report: Report) -> WeightConverter | None:
    if config.precision is None:
        return None
    converter = WeightConverter(model.graph, find_precision(config.precision), note=report)
    report(
        f"Weights in {config.precision}: {converter.nbytes / 1e6:.0f} MB; as the file has them they take "
        f"{model.weight_bytes / 1e6:.0f} MB."
    )
    return converter


def _make_executor(
    config: EngineConfig,
    model: Model,
    converter: WeightConverter | None,
    kv: KVCache,
    pool: MemoryPool,
    sizes: Sizes,
    max_rows: int,
    num_threads: int,
    report: Report,
) -> Executor:
    library = _native_library(config, report)
    graph = fuse(model.graph)
    if library is None:
        return NumpyExecutor(graph, kv, pool=pool, converter=converter)
    from aie_engine.executors.native_executor import NativeExecutor

    try:
        executor = NativeExecutor(
            graph,
            kv,
            library,
            num_threads=num_threads,
            max_tokens=config.max_batch_tokens,
            max_rows=max_rows,
            max_context=sizes.max_seq_len,
            pool=pool,
            converter=converter,
            activations=config.activations,
        )
    except UnsupportedOpError as error:
        if config.kernels == "native" or config.activations != "fp32":
            raise
        report(f"{_ON_NUMPY} {error}")
        return NumpyExecutor(graph, kv, pool=pool, converter=converter)
    if executor.expanded:
        sizes_by_type = ", ".join(f"{kind.value} {nbytes / 1e6:.0f} MB" for kind, nbytes in executor.expanded.items())
        report(f"Weights of a type without a native kernel were expanded to float32, exactly: {sizes_by_type}.")
    return executor


def _native_library(config: EngineConfig, report: Report) -> native.NativeLibrary | None:
    if config.kernels == "numpy":
        return None
    try:
        return native.load(report=report)
    except NativeUnavailableError as error:
        if config.kernels == "native" or config.activations != "fp32":
            raise
        report(f"{_ON_NUMPY} {error}")
        return None


def _make_scheduler(config: EngineConfig, sizes: Sizes, kv: KVCache) -> ContinuousBatcher:
    return ContinuousBatcher(
        SchedulerConfig(
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
            max_prefill_tokens=config.max_prefill_tokens,
            # The client side counts open requests and refuses; a burst may all wait before the first step.
            max_queue=config.max_queue + config.max_batch_size,
            block_size=config.block_size,
            num_blocks=sizes.num_blocks,
            max_seq_len=sizes.max_seq_len,
            prefix_caching=config.prefix_caching,
        ),
        allocator=BlockAllocator(sizes.num_blocks, on_allocate=kv.book.on_allocate, on_free=kv.book.on_free),
    )


def _warm_up(core: EngineCore, config: EngineConfig, sizes: Sizes, vocab_size: int) -> None:
    """A prompt and a few tokens, so that pages, caches and threads are there before the first request is.

    Raises `ModelCheckError` for weights that compute to no numbers.
    """
    num_prompt = max(1, min(32, sizes.max_seq_len - 2))
    sampling = SamplingParams(temperature=0.0, max_tokens=min(2, sizes.max_seq_len - num_prompt), ignore_eos=True)
    for index in range(min(4, config.max_batch_size)):
        token = index % vocab_size  # different prompts: equal ones would share one computation
        core.add(GenerateRequest(f"warm-up {index}", (token,) * num_prompt, sampling))
    while core.has_work:
        for event in core.step():
            if event.error is not None:
                raise ModelCheckError(f"{config.model_path} does not compute: {event.error.message}")
    core.reset_counters()
