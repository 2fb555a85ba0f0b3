"""Who holds an object: the ledger says which line asked for memory, this says why it is still there.

A chain begins at something that lives for its own sake (a module, a class, a local of a running function) and ends at
the object. An object that has no chain and is not freed is held by a cycle of references: see `cycles`.
"""

import gc
import sys
from dataclasses import dataclass

from aie_tensor.memdebug.cycles import Cycle, cycles
from aie_tensor.memdebug.naming import describe_path, name_of
from aie_tensor.memdebug.references import Walk

__all__ = ["Chain", "Cycle", "cycles", "holders"]

MAX_CHAINS = 8
MAX_BREADTH = 100


@dataclass(frozen=True, slots=True)
class Chain:
    """One reason why an object lives. Prints as `module app.CACHE['r-17'] → Tensor`."""

    root: str  # "module app", "main.py:12 in main, local 'engine'"
    text: str
    types: tuple[str, ...]  # of the objects on it, the held one last

    def __str__(self) -> str:
        return self.text


def holders(obj: object, max_depth: int = 20) -> list[Chain]:
    """Up to eight chains that hold `obj`, shortest first. Empty when only a cycle holds it, or only whoever asks.

    Reads the whole heap once per step of the longest chain: for a person who waits, not for a request. What
    `gc.freeze()` has put aside is not seen: call `gc.unfreeze()` first where that was done.
    """
    walk = Walk([obj], sys._getframe(1), max_depth, MAX_BREADTH)
    unseen = "something frozen" if gc.get_freeze_count() else "something outside Python's view"
    chains = []
    for number, root in (walk.roots or dict.fromkeys(walk.loose, unseen)).items():
        path = walk.path(number)
        chains.append(Chain(root, describe_path(path, root), tuple(name_of(thing) for thing in path)))
    return sorted(chains, key=lambda chain: (len(chain.types), chain.text))[:MAX_CHAINS]
