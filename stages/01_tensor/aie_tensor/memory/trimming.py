"""Which cached memory goes back to the upstream, and when without being asked.

Only whole segments can go back, and only when no stream may still touch any of their blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aie_tensor.errors import InvalidInputError
from aie_tensor.memory.segments import Segment

__all__ = ["TrimPolicy", "largest_idle", "long_idle"]


@dataclass(frozen=True, slots=True)
class TrimPolicy:
    """Limits to a pool's cache. The default keeps everything until `trim` is called or memory runs out."""

    max_cached_bytes: int | None = None  # when a release leaves more than this cached, whole segments go back
    max_idle_allocations: int | None = None  # a segment of which no block was taken for this many allocations goes back

    def __post_init__(self) -> None:
        for name in ("max_cached_bytes", "max_idle_allocations"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidInputError(f"{name} must be a whole number, at least 0, not {value!r}", param=name)

    @property
    def active(self) -> bool:
        """True where a release or an allocation may trim by itself."""
        return self.max_cached_bytes is not None or self.max_idle_allocations is not None


def largest_idle(segments: Iterable[Segment], excess_bytes: int) -> list[Segment]:
    """Idle segments of at least `excess_bytes` together, or all there are. The largest first: one call frees most, and
    what stays cached is what is asked for most often."""
    chosen: list[Segment] = []
    for segment in sorted((s for s in list(segments) if s.idle()), key=lambda s: -s.nbytes):
        if excess_bytes <= 0:
            break
        chosen.append(segment)
        excess_bytes -= segment.nbytes
    return chosen


def long_idle(segments: Iterable[Segment], since: int) -> list[Segment]:
    """Idle segments of which no block was freed after allocation number `since`."""
    return [s for s in list(segments) if s.idle() and all(block.idle_since <= since for block in s.blocks)]
