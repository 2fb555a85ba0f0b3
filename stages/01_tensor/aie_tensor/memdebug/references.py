"""Who refers to whom, seen from the held end: a walk up through the garbage collector's lists.

Python knows what an object refers to, not who refers to it. `gc.get_referrers` finds out by looking through the whole
heap, so the walk asks once per level for all objects of the level, and goes no further than it is told. It ends at what
is alive for its own sake: modules, classes, and the locals of functions that are running.

Two things it cannot see: what `gc.freeze()` has put aside, and what only C code holds.

It meets every kind of object, and some run code, or fail, at the mildest question: `isinstance` asks for `__class__`, a
subclass of `dict` may have its own `get`. So types are told by `is_a`, and containers read with the methods of their
base class.
"""

import gc
import inspect
import sys
import threading
from collections.abc import Iterable
from types import AsyncGeneratorType, CellType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import TypeGuard, TypeVar

from aie_tensor.stacks import Frame

__all__ = ["Walk", "is_a", "locals_of", "module_name_of", "place_of"]

T = TypeVar("T")


class Walk:
    """The objects that lead to `targets`, nearest first: `objects[i]` refers to `objects[toward[i]]`.

    `roots` says of some of them why they live. The walk does not go past those, nor further than `max_depth` steps, nor
    to more than `max_breadth` objects per step. Locals of frames from `caller` outwards are no reason for a target
    itself: whoever asks holds it. With `past_locals` all locals are reasons, and the walk goes on past them.
    """

    def __init__(
        self, targets: list[object], caller: FrameType, max_depth: int, max_breadth: int, *, past_locals: bool = False
    ) -> None:
        # All that the walk meets is in this one list, which it takes over, and otherwise known by number: each further
        # container would be found as a holder itself.
        self.objects = targets
        self.num_targets = len(targets)
        self.toward = list(range(self.num_targets))
        self.roots: dict[int, str] = {}
        self.loose: list[int] = []  # those that nobody refers to whom Python can see
        self.number_of = {id(target): number for number, target in enumerate(targets)}
        self._past_locals = past_locals
        self._ends: set[int] = set()
        self._mine, self._others = _running_locals(caller)
        self._note_roots(range(self.num_targets))
        level = list(range(self.num_targets))
        for _ in range(max_depth):
            level = self._climb([number for number in level if number not in self._ends], max_breadth)

    def path(self, number: int) -> list[object]:
        """From `objects[number]` down to the target that it leads to."""
        found = [self.objects[number]]
        while self.toward[number] != number:
            number = self.toward[number]
            found.append(self.objects[number])
        return found

    def links(self) -> list[list[int]]:
        """For each object, the numbers of those that it refers to, among the objects of the walk."""
        return [
            [] if number in self._ends else sorted(self._referents(holder))
            for number, holder in enumerate(self.objects)
        ]

    def _climb(self, level: list[int], max_breadth: int) -> list[int]:
        """Add those who refer to the objects of `level`; the numbers of the new ones."""
        if not level:
            return []
        wanted = set(level)
        held: set[int] = set()
        first_new = len(self.objects)
        asked = tuple([self.objects[number] for number in level])
        found = gc.get_referrers(*asked)
        ours = {id(asked), id(found), id(self.objects)}
        for holder in found:
            if id(holder) in ours:
                continue
            leads_to = self._referents(holder) & wanted
            held |= leads_to
            known = id(holder) in self.number_of
            # A running coroutine is a running function: its locals are known already.
            if leads_to and not known and not _is_running(holder) and len(self.objects) - first_new < max_breadth:
                self.number_of[id(holder)] = len(self.objects)
                self.objects.append(holder)
                self.toward.append(min(leads_to))
        found.clear()  # or it would be found itself, a level up
        for number in wanted - held:
            # A running function holds itself and its cells invisibly; of what they hold, its locals speak.
            if number >= self.num_targets and type(self.objects[number]) not in (CellType, FunctionType):
                self.loose.append(number)
        new = range(first_new, len(self.objects))
        self._note_roots(new)
        return list(new)

    def _referents(self, holder: object) -> set[int]:
        """Numbers of the known objects that `holder` refers to."""
        numbers = self.number_of
        return {numbers[id(held)] for held in gc.get_referents(holder) if id(held) in numbers}

    def _note_roots(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            thing = self.objects[number]
            lasting = _lasting(thing)
            root = lasting or self._local(number, thing)
            if root is not None:
                self.roots[number] = root
            if lasting or (root and not self._past_locals):
                self._ends.add(number)

    def _local(self, number: int, thing: object) -> str | None:
        """The local of a running function that holds `thing`, if it counts."""
        other = self._others.get(id(thing))
        if other is not None or (number < self.num_targets and not self._past_locals):
            return other
        return self._mine.get(id(thing))


def _lasting(thing: object) -> str | None:
    """What lives for its own sake, in words; None for other things."""
    if is_a(thing, ModuleType):
        return f"module {module_name_of(vars(thing)) or 'without a name'}"
    if is_a(thing, type):
        return f"class {thing.__module__}.{thing.__qualname__}"
    if type(thing) is dict and (name := module_name_of(thing)) is not None:
        return f"module {name}"
    return None


def _is_running(thing: object) -> bool:
    """True for a generator or coroutine that some thread is inside of."""
    return (
        (type(thing) is GeneratorType and thing.gi_running)
        or (type(thing) is CoroutineType and thing.cr_running)
        or (type(thing) is AsyncGeneratorType and thing.ag_running)
    )


def is_a(thing: object, kind: type[T]) -> TypeGuard[T]:
    """As `isinstance`, without asking the object."""
    return issubclass(type(thing), kind)


def module_name_of(names: dict[str, object]) -> str | None:
    """The module whose globals `names` are; None if it is another kind of dictionary."""
    if type(names) is not dict:
        return None
    name = names.get("__name__")
    return name if isinstance(name, str) and ("__spec__" in names or "__builtins__" in names) else None


def place_of(frame: FrameType) -> str:
    """A frame as `file:line in function`."""
    return str(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))


def locals_of(frame: FrameType) -> dict[str, object]:
    """A copy of a frame's locals; empty for a module's, which are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    seen = frame.f_locals
    copied = dict(seen)
    # Up to Python 3.12 the frame keeps this dictionary until it ends, and everything in it alive. It is emptied again
    # unless the function itself has it from `locals()`: then more than the frame, `seen` and the argument count it.
    if type(seen) is dict and sys.getrefcount(seen) <= 3:
        seen.clear()
    return copied


def _running_locals(caller: FrameType) -> tuple[dict[int, str], dict[int, str]]:
    """What running functions hold in locals: the object's id → text, for this thread from `caller` outwards, and for
    all others."""
    mine: dict[int, str] = {}
    others: dict[int, str] = {}
    this_thread = threading.get_ident()
    # Not this function's own frame: a local that holds it would make a cycle.
    innermost: dict[int, FrameType] = {**sys._current_frames(), this_thread: caller}
    for thread in list(innermost):
        frame: FrameType | None = innermost.pop(thread)
        texts = mine if thread == this_thread else others
        while frame is not None:
            for name, value in locals_of(frame).items():
                texts.setdefault(id(value), f"{place_of(frame)}, local {name!r}")
            frame = frame.f_back
    return mine, others
