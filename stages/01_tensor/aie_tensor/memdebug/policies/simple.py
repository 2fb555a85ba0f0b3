"""The two ends of the scale: keep nothing, and keep everything in exactly the sizes it had."""

from aie_tensor.memdebug.policies.policy import CountedMemory, Usage, aligned

__all__ = ["ExactCache", "System"]

_PAGE = 4096


class System:
    """The system each time, in pages. The least memory of all, and each request costs a call and its page faults,
    which a replay on numbers cannot show: its time is not given."""

    name = "system each time"
    timed = False

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.memory = CountedMemory(limit_bytes)
        self._sizes: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        pages = -(-nbytes // _PAGE) * _PAGE
        address = self.memory.reserve(pages)
        self._sizes[address] = pages
        return address

    def give_back(self, address: int) -> None:
        self.memory.give_back(self._sizes.pop(address))

    def usage(self) -> Usage:
        return Usage(self.memory.reserved_bytes, 0, 0)


class ExactCache:
    """A dictionary from size to free blocks of that size, as `NaivePool`. Nothing goes back until there is no more."""

    name = "exact-size cache"
    timed = True

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.memory = CountedMemory(limit_bytes)
        self._sizes: dict[int, int] = {}  # of what is handed out
        self._idle: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        size = aligned(nbytes)
        idle = self._idle.get(size)
        address = idle.pop() if idle else self._grow(size)
        self._sizes[address] = size
        return address

    def give_back(self, address: int) -> None:
        self._idle.setdefault(self._sizes.pop(address), []).append(address)

    def usage(self) -> Usage:
        live = sum(self._sizes.values())
        largest = max((size for size, idle in self._idle.items() if idle), default=0)
        return Usage(live, self.memory.reserved_bytes - live, largest)

    def _grow(self, size: int) -> int:
        if not self.memory.fits(size):
            self.memory.give_back(sum(idle_size * len(idle) for idle_size, idle in self._idle.items()))
            self._idle.clear()
        return self.memory.reserve(size)
