"""The last changes of one reference count, with the lines that made them.

A count that is wrong was made wrong by a line that ran long before anybody noticed. The stack of the allocation does
not show it; the last few `retain` and `release` calls usually do.
"""

from collections import deque
from dataclasses import dataclass

from aie_tensor.memory.events import EventKind
from aie_tensor.stacks import Frame, RawStack, resolve

__all__ = ["RefEvent", "RefHistory"]

NUM_KEPT = 8  # enough for the pair that does not match; a buffer lives with every recorded allocation


@dataclass(frozen=True, slots=True)
class RefEvent:
    """One change of a reference count. Prints as `retain to 2 at file:line in function`."""

    kind: EventKind  # RETAIN or RELEASE
    references: int  # after it
    stack: tuple[Frame, ...]  # innermost first

    def __str__(self) -> str:
        where = f" at {self.stack[0]}" if self.stack else ""
        return f"{self.kind.name.lower()} to {self.references}{where}"


class RefHistory:
    """The last eight changes. Adding one is a single atomic append; stacks become text in `events`."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: deque[tuple[EventKind, int, RawStack | None]] = deque(maxlen=NUM_KEPT)

    def add(self, kind: EventKind, references: int, stack: RawStack | None) -> None:
        """Note that `references` are left after a change of this kind."""
        self._changes.append((kind, references, stack))

    def events(self) -> tuple[RefEvent, ...]:
        """The changes kept, oldest first."""
        kept = self._changes.copy()
        return tuple(RefEvent(kind, references, resolve(stack or ())) for kind, references, stack in kept)
