"""Storage of keys and values, cut into blocks.

Why blocks: a sequence's length is not known when it starts, so one contiguous slab per sequence would have to be as
long as the longest possible text, and most of it would never be used. Cut into blocks of A tokens, memory is handed out
as a text grows, and a text's waste is at most A − 1 tokens (Kwon et al. 2023, "Efficient Memory Management for Large
Language Model Serving with PagedAttention"). Who owns which block is the scheduler's business; this module only keeps
the numbers.

Invariant: token at position p of a sequence lives in block `block_table[p // A]`, at offset `p % A`, in every layer.

Axes: L layers, P blocks, G key/value heads, A tokens per block, D head size, T tokens.
"""

from contextlib import ExitStack
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aie_engine.batch import Int32Array
from aie_engine.block_book import BlockBook
from aie_tensor import MemoryPool

__all__ = ["KVCache", "KVShape", "kv_bytes_per_token"]

Float32Array = npt.NDArray[np.float32]


class KVShape(Protocol):
    """What the cache needs to know of a model; `ModelConfig` has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def kv_bytes_per_token(config: KVShape) -> int:
    """Bytes of keys and values of one token over all layers, in float32."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4


class KVCache:
    """Keys and values of every layer, as two arrays [L, P, G, A, D] of float32 from the memory pool.

    The pool gives untouched zero pages, so the cache occupies physical memory only as far as it has ever been used.
    """

    def __init__(self, config: KVShape, num_blocks: int, block_size: int, pool: MemoryPool) -> None:
        assert num_blocks > 0 and block_size > 0, f"{num_blocks=} {block_size=}"
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim)
        nbytes = int(np.prod(shape)) * 4
        with ExitStack() as cleanup:  # what was taken so far, should the pool refuse the next
            self._keys = pool.allocate_exact(nbytes, owner="kv slab, keys")
            cleanup.callback(self._keys.release)
            self._values = pool.allocate_exact(nbytes, owner="kv slab, values")
            cleanup.callback(self._values.release)
            self.book = BlockBook(pool, num_blocks, 2 * nbytes // num_blocks)
            cleanup.callback(self.book.close)
            self._cleanup = cleanup.pop_all()
        self.k: Float32Array = self._keys.array(np.float32, shape)
        self.v: Float32Array = self._values.array(np.float32, shape)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def store(self, layer: int, table: Int32Array, positions: Int32Array, k: Float32Array, v: Float32Array) -> None:
        """Write k and v [T, G, D] of one sequence's tokens at `positions` [T]; `table` is its block table."""
        blocks, offsets = table[positions // self.block_size], positions % self.block_size
        self.k[layer, blocks, :, offsets] = k
        self.v[layer, blocks, :, offsets] = v

    def gather(self, layer: int, table: Int32Array, num_tokens: int) -> tuple[Float32Array, Float32Array]:
        """The first `num_tokens` keys and values of one sequence, contiguous: two arrays [num_tokens, G, D]."""
        blocks = table[: self.blocks_for(num_tokens)]

        def flat(cache: Float32Array) -> Float32Array:
            paged: Float32Array = cache[layer, blocks].transpose(0, 2, 1, 3)  # [blocks, A, G, D]
            return paged.reshape(-1, *paged.shape[2:])[:num_tokens]

        return flat(self.k), flat(self.v)

    def close(self) -> None:
        """Give the memory back. The arrays must not be used afterwards."""
        self.k = self.v = np.empty((0, 0, 0, 0, 0), dtype=np.float32)
        self._cleanup.close()
