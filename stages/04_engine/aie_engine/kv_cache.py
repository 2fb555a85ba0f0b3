"""Storage of keys and values, cut into blocks.

Why blocks: a sequence's length is not known when it starts, so one contiguous slab per sequence would have to be as
long as the longest possible text, and most of it would never be used. Cut into blocks of A tokens, memory is handed out
as a text grows, and a text's waste is at most A − 1 tokens (Kwon et al. 2023, "Efficient Memory Management for Large
Language Model Serving with PagedAttention"). Who owns which block is the scheduler's business; this module only keeps
the numbers.

Invariant: token at position p of a sequence lives in block `block_table[p // A]`, at offset `p % A`, in every layer.
All layers of a block lie together, so that what a few sequences use is a few places, not a bit of everywhere.

Axes: P blocks, L layers, G key/value heads, A tokens per block, D head size, T tokens.
"""

import math
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.typing import DTypeLike

from aie_engine.batch import Int32Array
from aie_engine.block_book import BlockBook
from aie_tensor import MemoryPool, ops

__all__ = ["KVCache", "KVShape", "kv_bytes_per_token"]

Float32Array = npt.NDArray[np.float32]

_SCALE_BYTES = 4


class KVShape(Protocol):
    """What the cache needs to know of a model; `ModelConfig` has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def kv_bytes_per_token(config: KVShape, dtype: ops.KVDtype = "fp32") -> int:
    """Bytes of keys and values of one token over all layers; an int8 vector has its scale beside it."""
    vector = config.head_dim * np.dtype(ops.KV_DTYPES[dtype]).itemsize + (_SCALE_BYTES if dtype == "int8" else 0)
    return 2 * config.num_layers * config.num_kv_heads * vector


class KVCache:
    """Keys and values of every layer, as two arrays [P, L, G, A, D] from the memory pool.

    With int8, their scales are two more [P, L, G, A] of float32.

    The pool gives untouched zero pages, so the cache occupies physical memory only as far as it has ever been used.
    """

    def __init__(
        self, config: KVShape, num_blocks: int, block_size: int, pool: MemoryPool, dtype: ops.KVDtype = "fp32"
    ) -> None:
        assert num_blocks > 0 and block_size > 0, f"{num_blocks=} {block_size=}"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype: ops.KVDtype = dtype
        shape = (num_blocks, config.num_layers, config.num_kv_heads, block_size, config.head_dim)
        with ExitStack() as cleanup:  # what was taken so far, should the pool refuse the next

            def take(what: str, dtype: DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
                taken = pool.allocate_exact(math.prod(shape) * np.dtype(dtype).itemsize, owner=f"kv slab, {what}")
                cleanup.callback(taken.release)
                return taken.array(dtype, shape)

            self.k, self.v = (take(what, ops.KV_DTYPES[dtype], shape) for what in ("keys", "values"))
            self.k_scales: Float32Array | None = None
            self.v_scales: Float32Array | None = None
            if dtype == "int8":
                self.k_scales, self.v_scales = (
                    take(f"scales of {what}", np.float32, shape[:-1]) for what in ("keys", "values")
                )
            self.nbytes = num_blocks * block_size * kv_bytes_per_token(config, dtype)
            self.book = BlockBook(pool, num_blocks, self.nbytes // num_blocks)
            cleanup.callback(self.book.close)
            self._cleanup = cleanup.pop_all()

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def store(self, layer: int, table: Int32Array, positions: Int32Array, k: Float32Array, v: Float32Array) -> None:
        """Write k and v [T, G, D] of one sequence's tokens at `positions` [T]; `table` is its block table."""
        blocks, offsets = table[positions // self.block_size], positions % self.block_size
        for vectors, cache, all_scales in ((k, self.k, self.k_scales), (v, self.v, self.v_scales)):
            cache[blocks, layer, :, offsets], scales = ops.round_kv(vectors, self.dtype)
            if all_scales is not None:
                all_scales[blocks, layer, :, offsets] = scales

    def gather(self, layer: int, table: Int32Array, num_tokens: int) -> tuple[Float32Array, Float32Array]:
        """The first `num_tokens` keys and values of one sequence, contiguous: two arrays [num_tokens, G, D]."""
        blocks = table[: self.blocks_for(num_tokens)]

        def flat(cache: npt.NDArray[Any], all_scales: Float32Array | None) -> Float32Array:
            scales = None if all_scales is None else all_scales[blocks, layer]
            paged = ops.read_kv(cache[blocks, layer], scales).transpose(0, 2, 1, 3)  # [blocks, A, G, D]
            return paged.reshape(-1, *paged.shape[2:])[:num_tokens]

        return flat(self.k, self.k_scales), flat(self.v, self.v_scales)

    def close(self) -> None:
        """Give the memory back. The arrays must not be used afterwards."""
        self.k = self.v = np.empty((0, 0, 0, 0, 0), dtype=np.float32)
        self.k_scales = self.v_scales = None
        self._cleanup.close()
