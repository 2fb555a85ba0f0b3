"""Which activations may share memory: liveness, then packing.

Between two operators most results are dead. A value lives from the node that makes it to the last node that reads it;
two values whose lives do not touch may lie at the same address. For a transformer the whole arena then is a few
buffers, however many layers there are.

Packing intervals into the smallest arena is NP-hard; placing the largest first, each at the lowest address where it
meets no neighbour in time, comes within a few per cent (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep
Neural Net Inference", greedy by size for offset calculation). It costs O(n²) once, at load.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_dtypes
from aie_tensor import InvalidInputError

__all__ = ["Lifetime", "MemoryPlan", "bound_nbytes", "lifetimes", "plan_memory"]

_ALIGNMENT = 64  # bytes: a cache line, and two AVX2 registers


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value and the nodes, by index in execution order, between which it must be kept; both ends included."""

    name: str
    first: int
    last: int
    nbytes: int

    def meets(self, other: "Lifetime") -> bool:
        """Whether both live at one moment. A node's input and output do: it reads the one while it writes the other."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where each value lies in an arena of `total_bytes`."""

    offsets: Mapping[str, int]
    total_bytes: int


def lifetimes(nodes: Sequence[Node], outputs: Iterable[str], nbytes: Callable[[str], int]) -> list[Lifetime]:
    """Lifetimes of what `nodes` make, in the order given. Graph inputs and weights have their own memory.

    outputs: values that are read after the last node. nbytes: size of a value by its name.
    """
    first = {node.name: index for index, node in enumerate(nodes)}
    last = dict(first)
    for index, node in enumerate(nodes):
        last.update((name, index) for name in node.inputs if name in first)
    last.update((name, len(nodes)) for name in outputs)
    return [Lifetime(name, first[name], last[name], nbytes(name)) for name in first]


def plan_memory(values: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets, each a multiple of 64 bytes, such that no two values that meet in time overlap in space."""
    offsets: dict[str, int] = {}
    placed: list[Lifetime] = []
    total = 0
    for value in sorted(values, key=lambda value: (-value.nbytes, value.first)):
        taken = sorted((offsets[other.name], other.nbytes) for other in placed if value.meets(other))
        offsets[value.name] = _lowest_gap(taken, value.nbytes)
        placed.append(value)
        total = max(total, offsets[value.name] + value.nbytes)
    return MemoryPlan(offsets, total)


def _lowest_gap(taken: Iterable[tuple[int, int]], nbytes: int) -> int:
    """Lowest aligned offset where `nbytes` fit between the (offset, size) pairs, which come in order of offset."""
    end = 0
    for offset, size in taken:
        if end + nbytes <= offset:
            break
        end = max(end, -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT)
    return end


def bound_nbytes(graph: Graph, **sizes: int) -> Callable[[str], int]:
    """Bytes of a value in float32 (indices count 8 an element) once the open axes have a length: `T=512, R=32`.

    For `lifetimes`. InvalidInputError, when asked for a value with an axis that `sizes` leaves open.
    """
    types = infer_dtypes(graph)

    def nbytes(name: str) -> int:
        shape = graph.shapes[name]
        missing = [size for size in shape if isinstance(size, str) and size not in sizes]
        if missing:
            raise InvalidInputError(
                f"the size of {name!r} {list(shape)} depends on {', '.join(missing)}: give a number"
            )
        return types[name].block_bytes * prod(sizes[size] if isinstance(size, str) else size for size in shape)

    return nbytes
