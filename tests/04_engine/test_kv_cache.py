"""Packing a step and the paged cache: what is stored at a position is found there, whatever the blocks."""

from types import SimpleNamespace

import numpy as np
import pytest

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.kv_cache import KVCache, kv_bytes_per_token
from aie_tensor import MemoryPool

SHAPE = SimpleNamespace(num_layers=2, num_kv_heads=3, head_dim=4)


@pytest.fixture
def cache() -> KVCache:
    return KVCache(SHAPE, num_blocks=8, block_size=4, pool=MemoryPool())


def test_a_step_is_packed_without_padding() -> None:
    batch = StepBatch.pack([
        BatchChunk([11, 12, 13], start=4, block_table=[7, 2], samples=False),
        BatchChunk([21], start=9, block_table=[1, 0, 5], samples=True),
        BatchChunk([31, 32], start=0, block_table=[3], samples=True),
    ])  # fmt: skip
    assert batch.token_ids.tolist() == [11, 12, 13, 21, 31, 32]
    assert batch.positions.tolist() == [4, 5, 6, 9, 0, 1]
    assert batch.seq_starts.tolist() == [0, 3, 4, 6]
    assert batch.context_lens.tolist() == [7, 10, 2]
    assert batch.block_tables.tolist() == [[7, 2, 0], [1, 0, 5], [3, 0, 0]]
    assert batch.logit_rows.tolist() == [3, 5]
    assert (batch.num_tokens, batch.num_sequences, batch.num_rows) == (6, 3, 2)
    for name in StepBatch.__dataclass_fields__:
        array = getattr(batch, name)
        assert array.dtype == np.int32 and array.flags.c_contiguous, name


def test_a_packed_table_does_not_follow_the_schedulers_list() -> None:
    table = [4]
    batch = StepBatch.pack([BatchChunk([1], start=0, block_table=table, samples=False)])
    table[0] = 9
    assert batch.block_tables.tolist() == [[4]] and batch.num_rows == 0


def test_stored_tokens_are_gathered_in_order(cache: KVCache) -> None:
    generator = np.random.default_rng(0)
    k, v = generator.standard_normal((2, 10, 3, 4)).astype(np.float32)  # ten tokens over three blocks
    table = np.array([6, 1, 3], dtype=np.int32)
    for begin, end in [(0, 3), (3, 9), (9, 10)]:
        cache.store(1, table, np.arange(begin, end, dtype=np.int32), k[begin:end], v[begin:end])
    for length in (1, 4, 7, 10):
        keys, values = cache.gather(1, table, length)
        np.testing.assert_array_equal(keys, k[:length])
        np.testing.assert_array_equal(values, v[:length])
    assert not cache.k[:, 0].any(), "another layer was written"
    assert not cache.k[[0, 2, 4, 5, 7], 1].any(), "a block outside the table was written"


def test_sizes(cache: KVCache) -> None:
    assert cache.k.shape == cache.v.shape == (8, 2, 3, 4, 4)
    assert cache.nbytes == 8 * 4 * kv_bytes_per_token(SHAPE)
    assert [cache.blocks_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_closing_gives_the_memory_back_to_the_pool() -> None:
    pool = MemoryPool()
    cache = KVCache(SHAPE, num_blocks=8, block_size=4, pool=pool)
    assert pool.stats().live_bytes >= cache.nbytes
    cache.close()
    assert pool.stats().live_bytes == 0
