"""The binary buddy system (Knowlton, 1965): blocks are halves of halves, and a half merges only with its other half.

Where the other half lies is one exclusive-or of the offset, so that splitting and merging take no search: O(log n).
Every size is a power of two, so it rounds as the plainest pool does, and loses to holes besides.
"""

from aie_tensor.memdebug.policies.policy import CountedMemory, Usage

__all__ = ["Buddy"]


class Buddy:
    """Chunks of `chunk_bytes` (a power of two), or of the request's power of two where that is more; blocks of at least
    `min_block`. Chunks that are wholly free go back when there is no more memory."""

    name = "buddy"
    timed = True

    def __init__(self, limit_bytes: int | None = None, *, chunk_bytes: int = 16 << 20, min_block: int = 1024) -> None:
        self.memory = CountedMemory(limit_bytes)
        self._chunk_bytes = chunk_bytes
        self._min_block = min_block
        self._chunks: dict[int, int] = {}  # address → bytes
        self._idle: dict[int, dict[int, int]] = {}  # bytes → (address → its chunk), the latest last
        self._live: dict[int, tuple[int, int]] = {}  # address → (bytes, its chunk)

    def take(self, nbytes: int) -> int:
        size = max(1 << (nbytes - 1).bit_length(), self._min_block)
        have = min((idle_size for idle_size, idle in self._idle.items() if idle and idle_size >= size), default=0)
        if have:
            address, chunk = self._idle[have].popitem()
        else:
            address, have = self._grow(size)
            chunk = address
        while have > size:  # keep the lower half, put the upper one in its list
            have //= 2
            self._idle.setdefault(have, {})[address + have] = chunk
        self._live[address] = size, chunk
        return address

    def give_back(self, address: int) -> None:
        size, chunk = self._live.pop(address)
        while size < self._chunks[chunk]:
            other = chunk + ((address - chunk) ^ size)
            if other not in self._idle.get(size, ()):
                break
            del self._idle[size][other]
            address = min(address, other)
            size *= 2
        self._idle.setdefault(size, {})[address] = chunk

    def usage(self) -> Usage:
        live = sum(size for size, _ in self._live.values())
        largest = max((size for size, idle in self._idle.items() if idle), default=0)
        return Usage(live, self.memory.reserved_bytes - live, largest)

    def _grow(self, size: int) -> tuple[int, int]:
        """A new chunk: its address and its bytes."""
        nbytes = max(size, self._chunk_bytes)
        if not self.memory.fits(nbytes):
            self._trim()
            nbytes = nbytes if self.memory.fits(nbytes) else size
        address = self.memory.reserve(nbytes)
        self._chunks[address] = nbytes
        return address, nbytes

    def _trim(self) -> None:
        for size, idle in self._idle.items():
            for address in [each for each, chunk in idle.items() if each == chunk and self._chunks[chunk] == size]:
                del idle[address], self._chunks[address]
                self.memory.give_back(size)
