"""Who holds which KV block, in the memory pool's books.

The scheduler hands out blocks as numbers and knows nothing of memory; the pool holds the slab and knows nothing of
requests. The two functions here are what the scheduler's allocator calls, so that a snapshot shows every block with the
request that holds it and, with the ledger on, the line of the scheduler that asked for it. A block that several
requests share is written down for one of them; when that one leaves, the allocator calls `on_free` for it and
`on_allocate` for another. Blocks that only the prefix cache remembers belong to nobody.
"""

import inspect
from collections.abc import Sequence

from aie_scheduler import BlockAllocator
from aie_tensor import MemoryPool, Owner, skip_frames_of

__all__ = ["BlockBook"]

skip_frames_of(__file__)
skip_frames_of(inspect.getfile(BlockAllocator))


class BlockBook:
    """num_blocks: blocks of the KV cache; block_bytes: keys and values of one, over all layers."""

    def __init__(self, pool: MemoryPool, num_blocks: int, block_bytes: int) -> None:
        self._slab = pool.slab(num_blocks, block_bytes, owner="kv")

    def on_allocate(self, request_id: str, blocks: Sequence[int]) -> None:
        """`blocks` belong to a request now."""
        self._slab.occupy(Owner("kv", request_id=request_id), blocks)

    def on_free(self, request_id: str, blocks: Sequence[int]) -> None:
        """`blocks` belong to nobody."""
        self._slab.vacate(blocks)

    def close(self) -> None:
        """Take the slab out of the books."""
        self._slab.close()
