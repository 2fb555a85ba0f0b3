"""Held bytes as collapsed stacks, the input of flame graphs (flamegraph.pl, speedscope, inferno).

One line per stack: frames from the outermost to the innermost, joined by semicolons, a space, a number. The innermost
frame is followed by what the memory is for, so that the tips of the flames say "kv" and not the name of an allocator.
"""

from collections import Counter
from pathlib import PurePath

from aie_tensor.memdebug.exports.frames import parse_frame
from aie_tensor.memdebug.snapshot import HeldGroup, MemorySnapshot

__all__ = ["collapsed_stacks"]


def collapsed_stacks(snapshot: MemorySnapshot) -> str:
    """The text, by stack in order; empty when the ledger knows of nothing. Bytes as asked for."""
    held: Counter[str] = Counter()
    for group in snapshot.groups:
        held[_stack(group)] += group.nbytes
    return "".join(f"{stack} {nbytes}\n" for stack, nbytes in sorted(held.items()) if nbytes)


def _stack(group: HeldGroup) -> str:
    owner = " ".join(part for part in (group.what or "unnamed", group.model) if part)
    return ";".join([*(_frame(text) for text in reversed(group.stack)), _one_word(f"[{owner}]")])


def _frame(text: str) -> str:
    frame = parse_frame(text)
    return _one_word(f"{frame.function} ({PurePath(frame.file).name}:{frame.line})" if frame.file else frame.function)


def _one_word(text: str) -> str:
    """Without what the format gives a meaning to: the separator and line ends."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.replace(";", ","))
