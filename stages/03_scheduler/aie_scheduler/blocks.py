"""Who holds which KV block: a free list and an owner per block.

The KV cache is cut into blocks of `block_size` tokens (paged attention, Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). A sequence's blocks need not be neighbours, so
there is no fragmentation beyond the unused end of its last block, and any free block is as good as any other: a stack
is enough.

Invariant: every block is either on the free stack and owned by nobody, or off the stack and owned by exactly one
request. Cost: O(1) per block to allocate and to free. The block freed last is handed out first: its memory is still
in the cache.

Observers (`on_allocate`, `on_free`) let the engine's ledger record who holds what; without them each call costs one
branch.
"""

from collections.abc import Callable, Sequence

from aie_scheduler.errors import BlockDoubleFreeError, OutOfBlocksError

__all__ = ["BlockAllocator", "BlockObserver"]

BlockObserver = Callable[[str, Sequence[int]], None]  # (owner, block ids)


class BlockAllocator:
    """Hands out block ids 0 … num_blocks - 1."""

    def __init__(
        self, num_blocks: int, *, on_allocate: BlockObserver | None = None, on_free: BlockObserver | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; block 0 goes first
        self._owners: list[str | None] = [None] * num_blocks
        self._on_allocate = on_allocate
        self._on_free = on_free

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def owner_of(self, block: int) -> str | None:
        """Who holds a block, or None."""
        return self._owners[block]

    def allocate(self, num_blocks: int, owner: str) -> list[int]:
        """`num_blocks` block ids, now held by `owner`. Raises `OutOfBlocksError`, taking none, if too few are free."""
        if num_blocks > len(self._free):
            raise OutOfBlocksError(
                f"{owner!r} asked for {num_blocks} KV blocks, but only {len(self._free)} of {self.num_blocks} are free"
            )
        blocks = [self._free.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._owners[block] = owner
        if self._on_allocate is not None:
            self._on_allocate(owner, blocks)
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give back blocks of one owner. Raises `BlockDoubleFreeError`, changing nothing, if one is not held."""
        if not blocks:
            return
        owner = self._check_held(blocks)
        for block in blocks:
            self._owners[block] = None
        self._free.extend(reversed(blocks))
        if self._on_free is not None:
            self._on_free(owner, blocks)

    def _check_held(self, blocks: Sequence[int]) -> str:
        """The owner of all these blocks."""
        if len(set(blocks)) != len(blocks):
            raise BlockDoubleFreeError(f"the same KV block is freed twice in one call: {list(blocks)}")
        for block in blocks:
            if not 0 <= block < self.num_blocks or self._owners[block] is None:
                raise BlockDoubleFreeError(
                    f"KV block {block} is freed, but nobody holds it (blocks are 0 to {self.num_blocks - 1})"
                )
        owners = {self._owners[block] for block in blocks}
        assert len(owners) == 1, f"blocks of several owners freed in one call: {owners}"
        return str(owners.pop())
