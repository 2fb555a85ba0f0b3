"""Which events lead to a snapshot: the trace played backwards, as the viewer plays it, without those that contradict.

A trace is seldom whole. The ring forgets, the ledger samples, the log began later than the pool. Played backwards from
the snapshot, each event must fit what is there: an allocation ends a block that exists, its release brings one back
into a segment that exists. An event that does not fit is left out, so that the rest is consistent by construction.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence

from aie_tensor.memdebug.recorded import RecordedEvent
from aie_tensor.memory.events import EventKind

__all__ = ["Actions", "Rewound", "rewound"]

Actions = list[tuple[str, RecordedEvent]]


class Rewound:
    """Segments and the blocks in them, going back in time."""

    def __init__(self, segments: dict[int, int], blocks: dict[int, bool]) -> None:
        self.sizes = segments  # address → bytes
        self.pending: dict[int, bool] = {}  # address of a block that is held or pending → is it pending
        self._starts = sorted(segments)
        self._inside = dict.fromkeys(segments, 0)  # address of a segment → blocks in it
        for address, pending in blocks.items():
            if (start := self._segment_of(address)) >= 0:
                self.pending[address] = pending
                self._inside[start] += 1

    def fits(self, action: str, address: int) -> bool:
        """Undo `action`, if it can have been the last one."""
        if action == "free_requested":
            fits = self.pending.get(address, False)
            if fits:
                self.pending[address] = False
            return fits
        start = self._segment_of(address)
        if start < 0 or (address in self.pending) != (action == "alloc") or self.pending.get(address):
            return False
        if action == "alloc":
            del self.pending[address]
            self._inside[start] -= 1
        else:
            self.pending[address] = True
            self._inside[start] += 1
        return True

    def fits_segment(self, action: str, address: int, nbytes: int) -> bool:
        """As `fits`, for a whole segment: it can have been reserved only where no older block is in it."""
        if action == "segment_alloc":
            if self.sizes.get(address) != nbytes or self._inside[address]:
                return False
            del self.sizes[address], self._inside[address]
            self._starts.remove(address)
            return True
        if self._segment_of(address) >= 0 or not nbytes or self._overlaps(address, nbytes):
            return False
        self.sizes[address] = nbytes
        self._inside[address] = 0
        insort(self._starts, address)
        return True

    def _segment_of(self, address: int) -> int:
        """The address of the segment that `address` lies in, or −1."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._starts[place] + self.sizes[self._starts[place]]:
            return -1
        return self._starts[place]

    def _overlaps(self, address: int, nbytes: int) -> bool:
        place = bisect_right(self._starts, address)
        return place < len(self._starts) and self._starts[place] < address + nbytes


def rewound(events: Sequence[RecordedEvent], end: Rewound) -> Actions:
    """The actions of `events` that lead to `end`, oldest first."""
    kept: Actions = []
    for action, event in reversed(_actions(events, end)):
        if action.startswith("segment"):
            fits = end.fits_segment(action, event.address, event.block_bytes)
        else:
            fits = end.fits(action, event.address)
        if fits:
            kept.append((action, event))
    return kept[::-1]


def _actions(events: Sequence[RecordedEvent], end: Rewound) -> Actions:
    """In the viewer's words. A block that is given back is reusable at once, unless a later event says when."""
    waiting = {address for address, pending in end.pending.items() if pending}
    actions: Actions = []
    for event in reversed(events):
        if event.kind is EventKind.REUSABLE:
            waiting.add(event.address)
            actions.append(("free_completed", event))
        elif event.kind is EventKind.FREE:
            if event.address not in waiting:
                actions.append(("free_completed", event))
            waiting.discard(event.address)
            actions.append(("free_requested", event))
        elif event.kind is EventKind.ALLOCATE:
            waiting.discard(event.address)
            actions.append(("alloc", event))
        elif event.kind is EventKind.SEGMENT_RESERVE:
            actions.append(("segment_alloc", event))
        elif event.kind is EventKind.SEGMENT_RETURN:
            actions.append(("segment_free", event))
    return actions[::-1]
