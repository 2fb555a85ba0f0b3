"""The executable graph: nodes that name the values they need, and Kahn's algorithm, which finds an order for them.

A node produces one value, called like the node. Its inputs name values: graph inputs, weights, or other nodes. There
are no edge objects and no pointers, so a graph can be printed, compared, rewritten by a pass and checked, and any list
of nodes in any order is a graph.

Why Kahn (1962, "Topological sorting of large networks") and not depth-first search: it needs no recursion, so a chain
of a million nodes is no problem; it costs O(V + E); and when nodes are left over it has proved that there is a cycle
among them, which is then one walk away.

Order: nodes that are ready at the same time come in the order in which they became ready, and at first in the order of
the list. So the same list always gives the same order.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aie_loader.errors import DuplicateNodeError, GraphCycleError, MissingInputError
from aie_tensor import Matrix

__all__ = ["Graph", "Node", "Shape"]

Shape = tuple[int | str, ...]
"""Dimensions of a value; "T" (tokens in the step) and "R" (rows whose logits are wanted) are known only at run time."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator applied to named values. `attrs` holds its constants (eps, num_heads, …)."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model as operators. The nodes may be in any order; `sorted()` gives one that can be executed."""

    inputs: tuple[str, ...]
    nodes: list[Node]
    outputs: tuple[str, ...]
    weights: Mapping[str, Matrix] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # of every value, filled by `shapes.infer_shapes`

    def sorted(self) -> list[Node]:
        """The nodes, each after everything that it needs. O(V + E), no recursion.

        DuplicateNodeError, MissingInputError, GraphCycleError (which names the cycle) when there is no such order.
        """
        return [node for node, _ in self.steps()]

    def steps(self) -> Iterator[tuple[Node, Mapping[str, int]]]:
        """Kahn's algorithm, one node at a time: the node taken, and how many inputs each node then still waits for.

        The second value is the algorithm's own ledger, and changes with the next step.
        """
        by_name = self._checked_names()
        waiting = {node.name: sum(map(by_name.__contains__, node.inputs)) for node in self.nodes}  # in-degrees
        consumers = self.consumers()
        ready = deque(node for node in self.nodes if not waiting[node.name])
        num_taken = 0
        while ready:
            node = ready.popleft()
            num_taken += 1
            for consumer in consumers.get(node.name, ()):
                waiting[consumer.name] -= 1
                if not waiting[consumer.name]:
                    ready.append(consumer)
            yield node, waiting
        if num_taken != len(self.nodes):
            raise GraphCycleError(_find_cycle(by_name, {name for name, count in waiting.items() if count}))

    def consumers(self) -> dict[str, list[Node]]:
        """value → the nodes that read it, once per reading: `mul(x, x)` is two edges, here and in the in-degree."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        return readers

    def _checked_names(self) -> dict[str, Node]:
        by_name: dict[str, Node] = {}
        given = {*self.inputs, *self.weights}
        if len(given) != len(self.inputs) + len(self.weights):
            seen = set(self.weights)
            twice = next(name for name in self.inputs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            other = "a weight" if twice in self.weights else "another input"
            raise DuplicateNodeError(f"the graph has an input {twice!r} and {other} of the same name")
        for node in self.nodes:
            if node.name in by_name or node.name in given:
                other = "a node" if node.name in by_name else "an input or a weight"
                raise DuplicateNodeError(f"the graph has a node {node.name!r} ({node.op}) and {other} of the same name")
            by_name[node.name] = node
        for node in self.nodes:
            for name in node.inputs:
                if name not in by_name and name not in given:
                    raise MissingInputError(f"node {node.name!r} ({node.op}) needs {name!r}, which nothing produces")
        for name in self.outputs:
            if name not in by_name and name not in given:
                raise MissingInputError(f"the graph's output {name!r} is produced by nothing")
        return by_name


def _find_cycle(by_name: Mapping[str, Node], stuck: set[str]) -> list[str]:
    """Every stuck node has a stuck input, so a walk backwards must come round; the part that comes round is a cycle."""
    position: dict[str, int] = {}
    walk: list[str] = []
    name = next(name for name in by_name if name in stuck)
    while name not in position:
        position[name] = len(walk)
        walk.append(name)
        name = next(source for source in by_name[name].inputs if source in stuck)
    return walk[position[name] :][::-1]
