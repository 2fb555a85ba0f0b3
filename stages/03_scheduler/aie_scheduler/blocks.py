"""Who holds which KV block: a free list, and the holders of each block.

The KV cache is cut into blocks of `block_size` tokens (paged attention, Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). A sequence's blocks need not be neighbours, so
there is no fragmentation beyond the unused end of its last block, and any free block is as good as any other: a stack
is enough.

Requests that begin alike can share a block, so a block may have several holders and is free when the last one leaves.
A block whose content is worth keeping (`keep`; `prefix.py` says which) is free all the same, but waits in a second
list: it is handed out only when no other is left, longest unused first, and until then `share` takes it up again. A
request gives its blocks back from the last to the first, so tails go before heads, and a head without its tail is
still worth something.

Invariant: every block is free (nobody holds it, it is in exactly one of the two lists), or held by n ≥ 1 requests and
in no list. Cost: O(1) per block to allocate, share and free. The block freed last is handed out first: its memory is
still in the cache.

Observers (`on_allocate`, `on_free`) let the engine's ledger record who holds what; without them each call costs one
branch. A block is booked for one of its holders at a time; when that one leaves, it is booked for another.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from aie_scheduler.errors import BlockDoubleFreeError, OutOfBlocksError

__all__ = ["BlockAllocator", "BlockObserver"]

BlockObserver = Callable[[str, Sequence[int]], None]  # (owner, block ids)


class BlockAllocator:
    """Hands out block ids 0 … num_blocks - 1. `on_evict` is told of each kept block that is handed out anew."""

    def __init__(
        self, num_blocks: int, *, on_allocate: BlockObserver | None = None, on_free: BlockObserver | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.on_evict: Callable[[int], None] | None = None
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; block 0 goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and kept; the first goes first
        self._owners: list[str | None] = [None] * num_blocks  # of a block's holders, the one it is booked for
        self._others: dict[int, dict[str, None]] = {}  # of blocks with several holders, the rest
        self._kept = bytearray(num_blocks)
        self._on_allocate = on_allocate
        self._on_free = on_free

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Of those, the ones whose content is kept until they are needed."""
        return len(self._cached)

    def owner_of(self, block: int) -> str | None:
        """Who holds a block (of several, the one it is booked for), or None."""
        return self._owners[block]

    def is_shared(self, block: int) -> bool:
        """Whether several hold it."""
        return block in self._others

    def num_holders(self, block: int) -> int:
        """How many hold a block."""
        return 0 if self._owners[block] is None else 1 + len(self._others.get(block, ()))

    def allocate(self, num_blocks: int, owner: str) -> list[int]:
        """`num_blocks` block ids, now held by `owner`. Raises `OutOfBlocksError`, taking none, if too few are free."""
        if num_blocks > self.num_free:
            raise OutOfBlocksError(
                f"{owner!r} asked for {num_blocks} KV blocks, but only {self.num_free} of {self.num_blocks} are free"
            )
        free = self._free
        blocks = [free.pop() if free else self._evict() for _ in range(num_blocks)]
        for block in blocks:
            self._owners[block] = owner
        if self._on_allocate is not None:
            self._on_allocate(owner, blocks)
        return blocks

    def share(self, blocks: Sequence[int], owner: str) -> None:
        """`owner` holds these blocks too: others do already, or nobody does and they are kept."""
        taken: list[int] = []
        for block in blocks:
            if self._owners[block] is None:
                del self._cached[block]
                self._owners[block] = owner
                taken.append(block)
            else:
                self._others.setdefault(block, {})[owner] = None
        if taken and self._on_allocate is not None:
            self._on_allocate(owner, taken)

    def free(self, blocks: Sequence[int], owner: str) -> None:
        """`owner` holds these blocks no longer. Raises `BlockDoubleFreeError`, changing nothing, if it held one not."""
        self._check_held(blocks, owner)
        owners, others = self._owners, self._others
        freed: list[int] = []
        inherited: dict[str, list[int]] = {}
        for block in reversed(blocks):
            rest = others.get(block)
            if rest is None:
                owners[block] = None
                freed.append(block)
                if self._kept[block]:
                    self._cached[block] = None
                else:
                    self._free.append(block)
                continue
            if owners[block] == owner:
                heir, _ = rest.popitem()
                owners[block] = heir
                inherited.setdefault(heir, []).append(block)
            else:
                del rest[owner]
            if not rest:
                del others[block]
        self._tell(owner, freed, inherited)

    def keep(self, block: int) -> None:
        """The content of a block that somebody holds is worth keeping after that."""
        assert self._owners[block] is not None, f"block {block} is free"
        self._kept[block] = 1

    def discard(self, block: int) -> None:
        """The content of a kept block is worth nothing any more."""
        self._kept[block] = 0
        if self._owners[block] is None:
            del self._cached[block]
            self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._kept[block] = 0
        if self.on_evict is not None:
            self.on_evict(block)
        return block

    def _tell(self, owner: str, freed: list[int], inherited: dict[str, list[int]]) -> None:
        if self._on_free is not None:
            for blocks in (freed, *inherited.values()):
                if blocks:
                    self._on_free(owner, blocks)
        if self._on_allocate is not None:
            for heir, blocks in inherited.items():
                self._on_allocate(heir, blocks)

    def _check_held(self, blocks: Sequence[int], owner: str) -> None:
        if len(set(blocks)) != len(blocks):
            raise BlockDoubleFreeError(f"the same KV block is freed twice in one call: {list(blocks)}")
        for block in blocks:
            if not 0 <= block < self.num_blocks or self._owners[block] is None:
                raise BlockDoubleFreeError(
                    f"KV block {block} is freed, but nobody holds it (blocks are 0 to {self.num_blocks - 1})"
                )
            if self._owners[block] != owner and owner not in self._others.get(block, ()):
                raise BlockDoubleFreeError(
                    f"KV block {block} is freed by {owner!r}, who does not hold it; {self._owners[block]!r} does"
                )
