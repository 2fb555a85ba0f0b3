"""Whom to take the blocks from when there are none left.

Whoever loses its blocks computes again what it had in them, so the cheapest victim is the one that had least; what it
shares with others stays with those and costs it nothing, but frees nothing either.

Only those behind the needy in rank can be victims. So the first in rank loses nothing to anybody, whatever the others
cost, and everybody gets to be first some day.
"""

from collections.abc import Iterable

from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.request import SequenceState

__all__ = ["choose_victim"]


def choose_victim(
    candidates: Iterable[SequenceState], allocator: BlockAllocator, block_size: int
) -> SequenceState | None:
    """The one that loses least, of equals the last; None if nobody would free a block."""
    victim, least = None, 0
    for state in candidates:
        num_shared = _num_shared(state.block_table, allocator)
        if num_shared == len(state.block_table):
            continue
        cost = max(0, state.num_computed - num_shared * block_size)
        if victim is None or cost <= least:
            victim, least = state, cost
    return victim


def _num_shared(block_table: list[int], allocator: BlockAllocator) -> int:
    """Blocks at the table's beginning that others hold as well. Whoever shares a block shares those before it, so the
    first that is not shared is found by halving.
    """
    low, high = 0, len(block_table)
    while low < high:
        middle = (low + high) // 2
        if allocator.is_shared(block_table[middle]):
            low = middle + 1
        else:
            high = middle
    return low
