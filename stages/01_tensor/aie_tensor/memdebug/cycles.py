"""Reference cycles that hold memory.

Python frees an object when the last reference goes. In a circle that never happens: the garbage collector has to find
it, and the collector is called by the number of objects, not by the bytes behind them. So a small circle that holds a
large tensor keeps it for long, and forever where the collector is off.
"""

import gc
import re
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aie_tensor.memdebug.naming import describe_path, is_means, name_of
from aie_tensor.memdebug.references import Walk

__all__ = ["Cycle", "cycles"]

MAX_TARGETS = 256
MAX_BREADTH = 1024
_SUBSCRIPT = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Cycle:
    """One circle of references, or several of the same make."""

    text: str  # once around: "Call.on_done → function f closure variable 'call' → Call"
    members: tuple[str, ...]  # each object named once, without lists, dictionaries and cells
    holds: str  # from a member to what it keeps: "Call.hidden → Tensor"
    reachable: bool  # somebody outside still refers to it; otherwise only the garbage collector frees it
    count: int = 1

    def __str__(self) -> str:
        several = f" ({self.count} like it)" if self.count > 1 else ""
        return f"{self.text}; holds {self.holds}{several}"


def cycles(kinds: Sequence[type], max_depth: int = 10) -> list[Cycle]:
    """The cycles that hold instances of `kinds`, those that nobody else refers to first, the most frequent first.

    Looks at 256 instances at most, spread over all, and `max_depth` references up from each. See `holders` for what it
    costs and what it cannot see.
    """
    wanted = tuple(kinds)
    held: list[object] = [thing for thing in gc.get_objects() if issubclass(type(thing), wanted)]
    step = -(-len(held) // MAX_TARGETS) or 1
    held[:] = held[::step]
    walk = Walk(held, sys._getframe(1), max_depth, MAX_BREADTH, past_locals=True)
    links = walk.links()
    reachable = _reachable(walk, links)
    groups: dict[tuple[str, str, bool], Cycle] = {}
    seen: set[int] = set()
    for number in range(len(walk.objects)):  # nearest to the held objects first
        around = [] if number in seen else _shortest_cycle(number, links)
        if not around:
            continue
        seen.update(around)
        found = _described(walk, around, number in reachable)
        make = (_SUBSCRIPT.sub("[…]", found.text), _SUBSCRIPT.sub("[…]", found.holds), found.reachable)
        groups[make] = replace(groups[make], count=groups[make].count + 1) if make in groups else found
    return sorted(groups.values(), key=lambda cycle: (cycle.reachable, -cycle.count, cycle.text))


def _described(walk: Walk, around: list[int], reachable: bool) -> Cycle:
    # Begin at a member that has a name, the nearest to what is held.
    named = [number for number in around if not is_means(walk.objects[number])]
    turn = around.index(min(named)) if named else 0
    around = around[turn:] + around[:turn]
    ring = [walk.objects[number] for number in (*around, around[0])]
    members = tuple(name_of(walk.objects[number]) for number in around if number in named)
    # From a member with a name here too: the nearest may be the dictionary of its attributes.
    return Cycle(describe_path(ring), members, describe_path(walk.path(min(named or around))), reachable)


def _shortest_cycle(start: int, links: list[list[int]]) -> list[int]:
    """The objects once around, from `start`; empty if no way leads back."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        number = queue.popleft()
        for following in links[number]:
            if following == start:
                around = [number]
                while around[-1] != start:
                    around.append(came_from[around[-1]])
                return around[::-1]
            if following not in came_from:
                came_from[following] = number
                queue.append(following)
    return []


def _reachable(walk: Walk, links: list[list[int]]) -> set[int]:
    """What somebody alive for his own sake leads to."""
    reached: set[int] = set()
    queue = [*walk.roots, *(walk.toward[number] for number in walk.roots)]
    while queue:
        number = queue.pop()
        if number not in reached:
            reached.add(number)
            queue += links[number]
    return reached
