"""The fast executor of graphs without memory: encoders, classifiers and image models as one native call.

As in `native_executor.py` every value has its place in an arena, and every node is an entry of a plan. The arena is
planned for `max_tokens` tokens or `max_items` items; larger inputs are cut at the borders of sequences or items, and
run one part after another. That changes nothing: a sequence's result has the same bits alone and in any company.

Axes: T tokens (packed), S sequences, B items.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.lowering import Lowering
from aie_engine.executors.lowering_dense import ALIASES
from aie_engine.executors.shared_weights import SharedMemory, SharedWeights
from aie_engine.executors.stateless_inputs import checked_inputs, checked_starts
from aie_loader import Graph, Lifetime, Node, lifetimes, plan_memory
from aie_tensor import InvalidInputError, MemoryPool
from aie_tensor.native import INDICES, Buffer, Constants, NativeLibrary, OpTime, PlanBuilder, StatelessArrays

__all__ = ["NativeStatelessExecutor"]

Starts = npt.NDArray[np.int32]


class NativeStatelessExecutor:
    """Runs `graph` on `num_threads` threads of its own; the interface of `StatelessExecutor`.

    max_tokens: the longest sequence, and the most tokens computed at a time; max_items: the most items at a time.
    shared: memory for packed weights that other processes have, too; whoever comes first fills it.
    `UnsupportedOpError` for a node without a kernel, or a constant that its kernel does not know.
    """

    def __init__(
        self,
        graph: Graph,
        lib: NativeLibrary,
        *,
        num_threads: int,
        max_tokens: int = 2048,
        max_items: int = 8,
        pool: MemoryPool | None = None,
        profile: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        self._graph, self._lib = graph, lib
        self._sizes = {"T": max_tokens, "S": max_tokens, "B": max_items}
        nodes = graph.sorted()
        # How many boxes stay is known only at the end, so that is computed after the plan.
        self._last = [node for node in nodes if node.op == "nms"]
        nodes = [node for node in nodes if node.op != "nms"]
        self._makers = {node.name: node for node in nodes}
        self._roots = _roots(nodes)
        self._planned = _planned_outputs(graph, self._last)
        self._table_sizes = {
            node.inputs[0]: graph.weights[node.inputs[1]].shape[0] for node in nodes if node.op == "embedding"
        }
        pool = MemoryPool() if pool is None else pool
        self.memory = plan_memory(self._lifetimes(nodes))
        with ExitStack() as cleanup:
            self._arena = pool.allocate_exact(max(self.memory.total_bytes, 64), owner="activations")
            cleanup.callback(self._arena.release)
            constants = Constants(pool)
            cleanup.callback(constants.close)
            builder = PlanBuilder(
                lib, num_threads=num_threads, max_tokens=max_tokens, max_items=max_items, max_context=max_tokens,
                constants=constants, profile=profile,
            )  # fmt: skip
            weights = None if shared is None else SharedWeights(shared, _capacity(graph))
            if weights is not None:
                cleanup.callback(weights.close)
            lowering = Lowering(graph, builder, self._buffer, shared=weights)
            lowering.append(nodes)
            if weights is not None:
                weights.finish()
                cleanup.callback(pool.adopt(weights.nbytes, owner="packed weights, shared").release)
            self.expanded = lowering.expanded
            self.origins, self.packed_bytes = lowering.origins, lowering.packed_bytes()
            constants.settle()
            self._plan = builder.build()
            cleanup.callback(self._plan.close)
            cleanup.callback(pool.adopt(self._plan.scratch_bytes, owner="scratch of kernel threads").release)
            self._cleanup = cleanup.pop_all()

    def run(self, inputs: Mapping[str, Any], seq_starts: npt.ArrayLike | None = None) -> dict[str, Any]:
        """The graph's outputs by name. seq_starts [S + 1]: where each packed sequence begins, and the end.

        Not to be called by two threads at once. InvalidInputError as `StatelessExecutor.run`, and for a sequence longer
        than `max_tokens`.
        """
        values = checked_inputs(self._graph, inputs)
        starts = checked_starts(self._graph, values, seq_starts)
        self._check_indices(values)
        parts: dict[str, list[Any]] = {name: [] for name in self._planned}
        for part, own_starts in self._parts(values, starts):
            self._run_part(part, own_starts, parts)
        known = {name: self._joined(name, found) for name, found in parts.items()} | values
        for node in self._last:
            boxes, scores = (np.ascontiguousarray(known[name], dtype=np.float32) for name in node.inputs)
            iou, most = (node.attrs.get(key) for key in ("iou", "max_output"))
            known[node.name] = self._lib.nms(boxes, scores, iou, most)  # type: ignore[arg-type]
        return {name: known[name] for name in self._graph.outputs}

    def profile(self) -> list[tuple[str, int, int]]:
        """[(operator, nanoseconds, calls)] since the start, when built with `profile`."""
        return self._plan.profile()

    def profile_nodes(self) -> list[tuple[str, OpTime]]:
        """[(node, its time)] of every operator in the order in which they run, when built with `profile`."""
        return list(zip(self.origins, self._plan.profile_ops(), strict=False))

    def close(self) -> None:
        """Join the threads and give all memory back."""
        self._cleanup.close()

    def _run_part(self, part: Mapping[str, Any], starts: Starts, found: Mapping[str, list[Any]]) -> None:
        num_items = 0
        indices: dict[str, npt.NDArray[np.int32]] = {}
        for name, array in part.items():
            if self._graph.shapes[name][0] == "T":
                indices[name] = np.ascontiguousarray(array, dtype=np.int32)
                continue
            if self._graph.shapes[name][:1] == ("B",):
                num_items = len(array)
            self._view(name, array.shape)[...] = array
        self._plan.run(StatelessArrays(starts, indices, num_items))
        bound = {"T": int(starts[-1]), "S": len(starts) - 1, "B": num_items}
        for name, arrays in found.items():
            shape = tuple(size if isinstance(size, int) else bound[size] for size in self._graph.shapes[name])
            arrays.append(self._result(name, shape))

    def _result(self, name: str, shape: tuple[int, ...]) -> Any:
        """A copy, since the next run writes over it; indices lie in the arena as the bits of int32."""
        view = self._view(name, shape)
        node = self._makers.get(name)
        if node is not None and node.op == "top_k" and node.attrs.get("want") == "indices":
            return view.view(np.int32).astype(np.int64)
        return view.copy()

    def _joined(self, name: str, found: list[Any]) -> Any:
        shape = self._graph.shapes[name]
        if not found:  # a batch of nothing
            return np.zeros((0, *shape[1:]), dtype=np.float32)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _check_indices(self, values: Mapping[str, Any]) -> None:
        for name, size in self._table_sizes.items():
            array = values[name]
            if array.size and (array.min() < 0 or array.max() >= size):
                raise InvalidInputError(
                    f"{name} must lie in 0…{size - 1}: {array.min()}…{array.max()} given", param=name
                )

    def _parts(self, values: Mapping[str, Any], starts: Starts | None) -> Iterator[tuple[dict[str, Any], Starts]]:
        """The inputs cut into what fits, each part with its own starts."""
        if starts is not None:
            for first, last in _groups(starts, self._sizes["T"]):
                begin, end = starts[first], starts[last]
                own = {name: values[name][begin:end] for name in values}
                yield own, np.ascontiguousarray(starts[first : last + 1] - begin)
            return
        nothing = np.zeros(1, dtype=np.int32)
        batched = [name for name in values if self._graph.shapes[name][:1] == ("B",)]
        if not batched:
            yield dict(values), nothing
            return
        most = self._sizes["B"]
        for begin in range(0, len(values[batched[0]]), most):
            yield {n: v[begin : begin + most] if n in batched else v for n, v in values.items()}, nothing

    def _lifetimes(self, nodes: list[Node]) -> list[Lifetime]:
        """Of what the nodes make and of the graph's own arrays; a value in another shape is the same memory."""
        own = [
            replace(node, inputs=tuple(self._root(name) for name in node.inputs))
            for node in nodes
            if node.name not in self._roots
        ]
        outputs = {self._root(name) for name in self._planned}
        values = lifetimes(own, [name for name in outputs if name not in self._graph.inputs], self._nbytes)
        for name in self._graph.inputs:
            if name not in INDICES:
                readers = [index for index, node in enumerate(own) if name in node.inputs]
                last = len(own) if name in outputs or not readers else max(readers)
                values.append(Lifetime(name, 0, last, self._nbytes(name)))
        return values

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)

    def _nbytes(self, name: str) -> int:
        shape = self._graph.shapes[name]
        unknown = [size for size in shape if isinstance(size, str) and size not in self._sizes]
        if unknown:
            raise UnsupportedOpError(name, f"value of shape {list(shape)}", "native")
        return max(4 * prod(size if isinstance(size, int) else self._sizes[size] for size in shape), 4)

    def _buffer(self, name: str) -> Buffer:
        width = prod(size for size in self._graph.shapes[name][1:] if isinstance(size, int))
        return Buffer(self._arena.address + self.memory.offsets[self._root(name)], width)

    def _view(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        begin = self.memory.offsets[self._root(name)]
        arena = self._arena.array(np.uint8, (self.memory.total_bytes,))
        view: npt.NDArray[np.float32] = arena[begin : begin + 4 * prod(shape)].view(np.float32)
        return view.reshape(shape)


def _capacity(graph: Graph) -> int:
    """Bytes that are enough for all weights in float32, and an index of them. Rows are padded to panels of 16; of a
    convolution each group's are, which may have one."""
    total = 1 << 20
    for weight in graph.weights.values():
        n, k = weight.shape[0] if weight.shape else 1, prod(weight.shape[1:])
        padded = n * 16 if len(weight.shape) > 2 else n + 15
        total += 4 * padded * k + 4096
    return total


def _roots(nodes: Sequence[Node]) -> dict[str, str]:
    """Of each value that is another one in another shape: whose memory it is."""
    roots: dict[str, str] = {}
    for node in nodes:
        if node.op in ALIASES:
            roots[node.name] = roots.get(node.inputs[0], node.inputs[0])
    return roots


def _planned_outputs(graph: Graph, last: Sequence[Node]) -> list[str]:
    """What the plan must leave behind: the graph's outputs, and what the nodes after the plan read."""
    names = {node.name for node in last}
    read = [name for node in last for name in node.inputs if name not in graph.inputs]
    return list(dict.fromkeys([*(name for name in graph.outputs if name not in names), *read]))


def _groups(starts: Starts, most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring sequences (first, last) that together have at most `most` tokens."""
    first = 0
    for s in range(1, len(starts)):
        length = int(starts[s] - starts[s - 1])
        if length > most:
            raise InvalidInputError(
                f"a sequence of {length} tokens is too long: at most {most} fit", param="seq_starts"
            )
        if starts[s] - starts[first] > most:
            yield first, s - 1
            first = s - 1
    if len(starts) > 1:
        yield first, len(starts) - 1
