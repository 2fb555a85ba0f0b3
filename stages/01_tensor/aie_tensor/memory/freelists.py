"""Free blocks, per stream and size class.

A block that was used on a stream may be handed out again on the *same* stream at once: whatever its next owner queues
comes after the old work. Another stream must not have it before the event behind its last use has passed. So the free
lists are per stream, and taking from another's list (`steal`) asks the event first.

Each list is a dictionary with the newest block last: taking the newest (whose bytes are still in the CPU's caches),
finding the oldest (whose event is most likely done) and removing a given one (its segment goes back) are each O(1).
Every change is one dictionary operation. A garbage collection may run somebody's `release` between two of them, and
finds the lists in order.
"""

from aie_tensor.memory.segments import Block
from aie_tensor.memory.streams import Stream

__all__ = ["FreeLists"]


class FreeLists:
    """Used under the pool's lock."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self.host = self._new_lists()  # the lists of stream None, without a look-up
        self._lists: dict[Stream | None, list[dict[Block, None]]] = {None: self.host}

    def of(self, stream: Stream | None) -> list[dict[Block, None]]:
        """The lists of `stream` by class, and one more that stays empty, so that "the next class up" always exists."""
        lists = self._lists.get(stream)
        if lists is None:
            lists = self._lists[stream] = self._new_lists()
        return lists

    def add(self, block: Block) -> None:
        """`block` may be taken from now on."""
        assert block.size_class is not None, "exact blocks are never cached"
        block.use = "free"
        self.of(block.stream)[block.size_class][block] = None

    def steal(self, size_class: int, thief: Stream | None) -> Block | None:
        """A block of `size_class` from another stream's list whose event has passed, the oldest of each list asked."""
        for stream, lists in list(self._lists.items()):
            if stream is thief or not lists[size_class]:
                continue
            oldest = next(iter(lists[size_class]))
            if oldest.idle() and self.remove(oldest):
                return oldest
        return None

    def steal_larger(self, size_class: int, thief: Stream | None) -> Block | None:
        """A block of any larger class and any stream, the smallest there is: better half empty than out of memory."""
        own = self.of(thief)
        for larger in range(size_class + 1, self._num_classes):
            if own[larger]:
                return own[larger].popitem()[0]
            if stolen := self.steal(larger, thief):
                return stolen
        return None

    def remove(self, block: Block) -> bool:
        """Take out this block; False when somebody was faster."""
        assert block.size_class is not None, "exact blocks are never cached"
        lists = self._lists.get(block.stream)
        return lists is not None and lists[block.size_class].pop(block, block) is None

    def has(self, block: Block) -> bool:
        """True where it is listed."""
        lists = self._lists.get(block.stream)
        return block.size_class is not None and lists is not None and block in lists[block.size_class]

    def blocks(self) -> list[Block]:
        """All of them, in no order."""
        return [block for lists in list(self._lists.values()) for blocks in lists for block in list(blocks)]

    def _new_lists(self) -> list[dict[Block, None]]:
        return [{} for _ in range(self._num_classes + 1)]
