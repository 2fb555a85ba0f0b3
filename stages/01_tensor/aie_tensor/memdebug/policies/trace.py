"""A log of events as plain requests: take so many bytes, give back what request number n took.

Left out is what no allocator decides: blocks of slabs lie inside memory that was taken already, and mapped files belong
to others. Streams are left out too: the order is the program's, as if each block were reusable at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aie_tensor.memdebug.recorded import FIRST_SLAB_ADDRESS, RecordedEvent
from aie_tensor.memory.events import EventKind

__all__ = ["Trace", "trace_of"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps (number, bytes): bytes > 0 takes them under that number, 0 gives them back."""

    steps: tuple[tuple[int, int], ...]
    num_requests: int  # requests for memory
    peak_step: int  # the step after which most bytes are asked for at once; −1 in an empty trace
    peak_requested_bytes: int
    peak_recorded_bytes: int  # the most that the allocator of the log had reserved, or handed out where it does not say


def trace_of(events: Iterable[RecordedEvent]) -> Trace:
    """The trace. An end without a beginning (a log that began later) is left out; a beginning without an end is held to
    the last; a second beginning at the same address ends the first, whose end was lost."""
    steps: list[tuple[int, int]] = []
    held: dict[int, tuple[int, int, int]] = {}  # address → (number, asked for, taken)
    segments: dict[int, int] = {}
    number = requested = taken = reserved = peak = peak_taken = peak_reserved = 0
    peak_step = -1
    for event in events:
        address = event.address
        if event.kind is EventKind.SEGMENT_RESERVE:
            reserved += event.block_bytes - segments.get(address, 0)
            segments[address] = event.block_bytes
            peak_reserved = max(peak_reserved, reserved)
        elif event.kind is EventKind.SEGMENT_RETURN:
            reserved -= segments.pop(address, 0)
        elif event.kind in (EventKind.ALLOCATE, EventKind.FREE) and 0 < address < FIRST_SLAB_ADDRESS:
            if address in held:
                ended, nbytes, block_bytes = held.pop(address)
                requested, taken = requested - nbytes, taken - block_bytes
                steps.append((ended, 0))
            if event.kind is EventKind.ALLOCATE:
                nbytes = max(event.nbytes, 1)  # of nothing, too, each has an address of its own
                held[address] = number, nbytes, event.block_bytes
                steps.append((number, nbytes))
                number += 1
                requested, taken = requested + nbytes, taken + event.block_bytes
                peak_taken = max(peak_taken, taken)
                if requested > peak:
                    peak, peak_step = requested, len(steps) - 1
    return Trace(tuple(steps), number, peak_step, peak, max(peak_reserved, peak_taken))
