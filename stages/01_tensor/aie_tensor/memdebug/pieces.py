"""Free memory, in the pieces in which it can be had.

A free block serves a request of its class. A segment that is wholly free is one piece whatever it was cut into, since
the pool can return it and reserve its bytes anew. What shares a segment with a live block stays in pieces.
"""

from aie_tensor.memory.state import PoolState

__all__ = ["external_fragmentation", "free_pieces"]


def free_pieces(pool: PoolState) -> list[int]:
    """Bytes of each piece."""
    pieces: list[int] = []
    for segment in pool.segments:
        free = [block.nbytes for block in segment.blocks if block.state == "free"]
        pieces += [segment.nbytes] if free and len(free) == len(segment.blocks) else free
    return pieces


def external_fragmentation(pieces: list[int]) -> float | None:
    """1 − largest / all: the share of the free memory that one request cannot have. None where nothing is free."""
    return 1 - max(pieces) / sum(pieces) if pieces else None
