"""Best fit with splitting and merging: the tightest hole serves, the rest of it stays a hole.

The classic of device memory (CuPy's pool and PyTorch's allocator are of this kind). There is next to no rounding; what
it loses, it loses to holes: pieces that are free, and each too small for the request at hand. A freed block merges with
free neighbours at once, but never across two chunks of the system.

Invariant: within a chunk, blocks follow each other without gaps, and no two neighbours are both free.
Cost: O(log n) to find a hole, O(n) in theory to keep the list of holes sorted, with a very small constant.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from aie_tensor.memdebug.policies.policy import CountedMemory, Usage, aligned

__all__ = ["BestFit"]


@dataclass(slots=True)
class _Piece:
    """A run of bytes of a chunk, free or handed out, linked to its neighbours."""

    address: int
    nbytes: int
    free: bool
    before: "_Piece | None" = None
    after: "_Piece | None" = None


class BestFit:
    """Chunks of `chunk_bytes`, or of the request's size where that is more. Chunks that are wholly free go back when
    there is no more memory, and only then."""

    name = "best fit, merging"
    timed = True

    def __init__(self, limit_bytes: int | None = None, *, chunk_bytes: int = 8 << 20) -> None:
        self.memory = CountedMemory(limit_bytes)
        self._chunk_bytes = chunk_bytes
        self._holes: list[tuple[int, int]] = []  # (bytes, address), ascending
        self._free: dict[int, _Piece] = {}  # by address
        self._live: dict[int, _Piece] = {}

    def take(self, nbytes: int) -> int:
        size = aligned(nbytes)
        found = bisect_left(self._holes, (size, 0))
        if found < len(self._holes):
            piece = self._free[self._holes[found][1]]
            self._remove(piece)
        else:
            piece = self._grow(size)
        if piece.nbytes > size:
            self._add(self._split(piece, size))
        piece.free = False
        self._live[piece.address] = piece
        return piece.address

    def give_back(self, address: int) -> None:
        piece = self._live.pop(address)
        piece.free = True
        if piece.after is not None and piece.after.free:
            self._remove(piece.after)
            self._absorb(piece, piece.after)
        if piece.before is not None and piece.before.free:
            self._remove(piece.before)
            piece = self._absorb(piece.before, piece)
        self._add(piece)

    def usage(self) -> Usage:
        live = sum(piece.nbytes for piece in self._live.values())
        return Usage(live, self.memory.reserved_bytes - live, self._holes[-1][0] if self._holes else 0)

    def _grow(self, size: int) -> _Piece:
        """A new chunk. When there is none of the usual size, one that just suffices, then the same after a trim."""
        for nbytes in (max(size, self._chunk_bytes), size):
            if self.memory.fits(nbytes):
                break
        else:
            self._trim()
            nbytes = size
        return _Piece(self.memory.reserve(nbytes), nbytes, True)

    def _trim(self) -> None:
        for piece in [piece for piece in self._free.values() if piece.before is None and piece.after is None]:
            self._remove(piece)
            self.memory.give_back(piece.nbytes)

    def _add(self, piece: _Piece) -> None:
        self._free[piece.address] = piece
        insort(self._holes, (piece.nbytes, piece.address))

    def _remove(self, piece: _Piece) -> None:
        del self._free[piece.address]
        del self._holes[bisect_left(self._holes, (piece.nbytes, piece.address))]

    def _split(self, piece: _Piece, size: int) -> _Piece:
        """Cut `piece` to `size`; the rest."""
        rest = _Piece(piece.address + size, piece.nbytes - size, True, piece, piece.after)
        if piece.after is not None:
            piece.after.before = rest
        piece.after, piece.nbytes = rest, size
        return rest

    def _absorb(self, piece: _Piece, after: _Piece) -> _Piece:
        """Make `piece` and its neighbour one."""
        piece.nbytes += after.nbytes
        piece.after = after.after
        if after.after is not None:
            after.after.before = piece
        return piece
