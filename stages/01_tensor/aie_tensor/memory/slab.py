"""Who has which block of a slab: the KV cache's book.

The blocks of a KV cache lie strided across the layers of two large arrays, so a block has no address of its own, and
the scheduler hands them out without asking the pool. But they are what leaks when a request ends badly. So their
holders are written down here: in the ledger (one entry per block, with the request's name) and in the pool's state.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, SupportsIndex

from aie_tensor.errors import DoubleFreeError, InvalidInputError
from aie_tensor.memory.owner import Owner, checked_owner
from aie_tensor.memory.state import SlabState
from aie_tensor.stacks import RawStack, resolve

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["BlockSlab"]

_serials = itertools.count()


class BlockKey(NamedTuple):
    """A block's key in the ledger."""

    serial: int  # of the slab: keys of different slabs never meet
    block: int


class BlockSlab:
    """Made by `MemoryPool.slab`. Thread-safe."""

    def __init__(self, pool: "MemoryPool", num_blocks: int, block_bytes: int, owner: str | Owner) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.owner = Owner.of(checked_owner(owner))
        self._pool = pool
        self._serial = next(_serials)
        self._holders: dict[int, str | Owner] = {}
        self._vacated_at: dict[int, RawStack] = {}  # only while the ledger is on
        self._closed = False
        with pool.lock:
            pool.slabs[self] = None

    def occupy(self, owner: str | Owner, blocks: Sequence[int]) -> None:
        """`owner` has these blocks now. InvalidInputError, and nothing changes, when one does not exist or is taken."""
        ledger = self._pool.ledger
        owner = checked_owner(owner)
        with self._pool.lock:
            self._check_range(blocks)
            for block in blocks:
                if block in self._holders:
                    raise InvalidInputError(
                        f"block {block} of slab '{self.owner}' is taken by '{Owner.of(self._holders[block])}': "
                        "vacate it first",
                        param="blocks",
                    )
            try:
                for block in blocks:
                    self._holders[block] = owner
                    if ledger.enabled:
                        key = BlockKey(self._serial, block)
                        ledger.record(key, self.block_bytes, owner, address=self._number(block))
            except BaseException:  # a Ctrl-C
                self._forget(blocks)
                raise

    def vacate(self, blocks: Sequence[int]) -> None:
        """Nobody has these blocks any more. DoubleFreeError, and nothing changes, when nobody had one."""
        ledger = self._pool.ledger
        with self._pool.lock:
            self._check_range(blocks)
            for block in blocks:
                if block not in self._holders:
                    raise DoubleFreeError(
                        f"double free of block {block} of slab '{self.owner}'",
                        freed_at=resolve(self._vacated_at.get(block, ())),
                    )
            try:
                stack = ledger.capture()
                if stack is not None:
                    self._vacated_at.update(dict.fromkeys(blocks, stack))
            finally:  # whatever is raised here: the caller has given them up
                self._forget(blocks)

    def close(self) -> None:
        """The slab is gone; whatever was still occupied is forgotten. A second time does nothing."""
        with self._pool.lock:
            self._closed = True
            self._pool.slabs.pop(self, None)
            self._forget(list(self._holders))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInputError("a slab cannot be copied or pickled: state() says who has which block")

    def state(self) -> SlabState:
        """Who has which block, by block."""
        with self._pool.lock:
            used = tuple((block, str(Owner.of(holder))) for block, holder in sorted(self._holders.copy().items()))
        return SlabState(str(self.owner), self.num_blocks, self.block_bytes, used)

    def _forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._holders.pop(block, None)
            self._pool.ledger.forget(BlockKey(self._serial, block))

    def _number(self, block: int) -> int:
        """Stands for an address in records: unique among slabs, and far outside of what any process maps."""
        return (1 << 62) + (self._serial << 40) + block

    def _check_range(self, blocks: Sequence[int]) -> None:
        if self._closed:
            raise InvalidInputError(f"slab '{self.owner}' is closed: make a new one", param="blocks")
        if (
            not isinstance(blocks, Sequence)
            or not all(type(block) is int and 0 <= block < self.num_blocks for block in blocks)
            or len(set(blocks)) != len(blocks)
        ):
            raise InvalidInputError(
                f"blocks of slab '{self.owner}' are different numbers from 0 to {self.num_blocks - 1}, not {blocks!r}",
                param="blocks",
            )
