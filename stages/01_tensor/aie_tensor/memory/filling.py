"""What the bytes of a block hold when it changes hands, for finding faults that are silent otherwise.

    none     whatever the last owner left (the default: it costs nothing)
    zero     zero at every hand-out: a missing initialisation gives the same result each time
    poison   0xFF at every release, so that reading freed or unwritten memory gives NaN, and intact at the next
             hand-out, or somebody wrote through an old pointer: `WriteAfterFreeError` with the old owner's stacks

Both fill a block that was used on a stream only after its event has passed, so such blocks wait as pending ones do.
"""

from typing import Literal

from aie_tensor.errors import InvalidInputError, WriteAfterFreeError
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.segments import Block, Segment
from aie_tensor.memory.upstream import Upstream
from aie_tensor.stacks import resolve

__all__ = ["Fill", "Filler"]

Fill = Literal["none", "zero", "poison"]
POISON = 0xFF  # in every byte: NaN as float16, bfloat16, float32 and float64, and −1 as an integer


class Filler:
    """Fills and checks for one pool."""

    def __init__(self, mode: Fill, upstream: Upstream) -> None:
        if mode not in ("none", "zero", "poison"):
            raise InvalidInputError(f"fill must be 'none', 'zero' or 'poison', not {mode!r}", param="fill")
        self.mode = mode
        self.active = mode != "none"
        self._upstream = upstream

    def on_reserve(self, segment: Segment) -> None:
        """Fresh memory, so that the blocks nobody had yet can be checked as the others are."""
        if self.mode == "poison":
            self._upstream.fill(segment.address, segment.nbytes, POISON)

    def on_free(self, block: Block) -> None:
        """No stream touches the block any more."""
        if self.mode == "poison":
            self._upstream.fill(block.address, block.nbytes, POISON)

    def on_reuse(self, block: Block) -> None:
        """The block is about to be handed out. WriteAfterFreeError; the block is clean again then, and still free."""
        if self.mode == "zero":
            self._upstream.fill(block.address, block.nbytes, 0)
        elif self.mode == "poison":
            self._check(block)

    def _check(self, block: Block) -> None:
        spoilt = self._upstream.find_others(block.address, block.nbytes, POISON)
        if spoilt is None:
            return
        count, first = spoilt
        self.on_free(block)
        raise WriteAfterFreeError(
            f"write after free: {count} of {block.nbytes} bytes changed after their release, the first at byte "
            f"{first} (last owner '{Owner.of(block.owner)}'); some pointer or array outlived its allocation",
            allocated_at=resolve(block.allocated_at or ()),
            freed_at=resolve(block.freed_at or ()),
        )
