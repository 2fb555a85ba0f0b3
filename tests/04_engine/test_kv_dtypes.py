"""The cache in fewer bytes: the same text from either executor, the same bits in any company, and what it holds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from aie_engine import EngineConfig, GenerateRequest, InvalidInputError, LocalEngine, SamplingParams, memory_need
from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.evaluation import Tally, TextRunner, builtin_texts, compare_logits
from aie_engine.executors import NativeExecutor
from aie_engine.kv_cache import KVCache
from aie_engine.sizing import choose_sizes
from aie_loader import Model, fuse, load_model
from aie_tensor import MemoryPool, native
from aie_tensor.ops import KVDtype

DTYPES = get_args(KVDtype)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    loaded = load_model(tiny_model)
    yield loaded
    loaded.close()


def answers(path: Path, kernels: str, dtype: KVDtype) -> list[tuple[int, ...]]:
    """Greedy texts of a few prompts at once, long enough for several blocks and spans."""
    config = EngineConfig(path, kernels=kernels, kv_dtype=dtype, num_threads=2, block_size=16)  # type: ignore[arg-type]
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    engine = LocalEngine(config)
    try:
        prompts = [tuple((7 * i + 11 * j) % 300 for j in range(length)) for i, length in enumerate((3, 40, 17))]
        streams = [engine.submit(GenerateRequest(f"r{i}", ids, sampling)) for i, ids in enumerate(prompts)]
        return [tuple(token for event in stream for token in event.token_ids) for stream in streams]
    finally:
        engine.close()


@pytest.mark.native
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_executors_say_the_same(tiny_model: Path, dtype: KVDtype) -> None:
    assert answers(tiny_model, "numpy", dtype) == answers(tiny_model, "native", dtype)


@pytest.fixture
def executor(model: Model) -> Iterator[Callable[[KVDtype], NativeExecutor]]:
    made: list[tuple[NativeExecutor, KVCache]] = []

    def make(dtype: KVDtype) -> NativeExecutor:
        pool = MemoryPool()
        kv = KVCache(model.config, 40, 16, pool, dtype)
        limits = {"num_threads": 2, "max_tokens": 128, "max_rows": 8, "max_context": 256}
        made.append((NativeExecutor(fuse(model.graph), kv, native.load(), pool=pool, **limits), kv))
        return made[-1][0]

    yield make
    for executor, kv in made:
        executor.close()
        kv.close()


@pytest.mark.native
@pytest.mark.parametrize("dtype", DTYPES)
def test_company_and_chunks_change_no_bit(executor: Callable[[KVDtype], NativeExecutor], dtype: KVDtype) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 300, 100)]
    tables = ([5, 3, 9, 1, 0, 2, 20], [11, 30, 21, 8, 7, 6, 4])

    def run(native_executor: NativeExecutor, *chunks: tuple[int, int, int]) -> np.ndarray:
        return native_executor.run(
            StepBatch.pack([BatchChunk(ids[a:b], a, tables[s], samples=True) for s, a, b in chunks])
        ).copy()

    alone = run(executor(dtype), (0, 0, 100))[0]
    company = executor(dtype)
    run(company, (0, 0, 33), (1, 0, 60))
    run(company, (1, 60, 61), (0, 33, 34))
    run(company, (0, 34, 99), (1, 61, 62))
    np.testing.assert_array_equal(run(company, (1, 62, 63), (0, 99, 100))[1], alone)


def test_smaller_numbers_hold_more_tokens(model: Model, tiny_model: Path) -> None:
    head_dim, bytes_of = model.config.head_dim, {}
    for dtype in DTYPES:
        config = EngineConfig(tiny_model, kv_dtype=dtype, kv_memory_bytes=1 << 20)
        sizes = choose_sizes(config, model.config)
        bytes_of[dtype] = sizes.block_bytes
        assert memory_need(config, model.config, 0).kv_cache == sizes.num_blocks * sizes.block_bytes
        pool = MemoryPool()
        cache = KVCache(model.config, 3, config.block_size, pool, dtype)
        assert cache.nbytes == 3 * sizes.block_bytes
        cache.close()
        assert pool.stats().live_bytes == 0
    assert bytes_of["fp16"] * 2 == bytes_of["fp32"]
    assert bytes_of["int8"] * 4 * head_dim == bytes_of["fp32"] * (head_dim + 4)


def test_a_kind_that_does_not_exist_is_refused(tiny_model: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"kv_dtype must be fp32, fp16, int8, not 'int4'"):
        EngineConfig(tiny_model, kv_dtype="int4")  # type: ignore[arg-type]


def test_fewer_bits_are_farther_from_fp32(model: Model) -> None:
    ids = model.tokenizer.encode(builtin_texts()["sea"])[:100]
    tallies = {}
    for dtype in DTYPES:
        own, other = (TextRunner(model, None, max_len=128, kernels="numpy", kv_dtype=d) for d in ("fp32", dtype))
        tally = tallies[dtype] = Tally()
        for theirs, ours, target in zip(own.logits(ids[:-1]), other.logits(ids[:-1]), own.pieces(ids[1:]), strict=True):
            tally.add(compare_logits(theirs, ours, np.asarray(target)))
        own.close()
        other.close()
    assert tallies["fp32"].mean_kl == 0 < tallies["fp16"].mean_kl < tallies["int8"].mean_kl < 0.1
