"""From the fused graph to a plan: one method per operator, each appends one entry.

Weights are packed once, on first use, into the layout that the kernels like, and stay in the format of their file. A
table of embeddings is read where it is, row by row, so that a tied output head costs one packed copy and not two.

Axes: T tokens in the step, R rows whose logits are wanted, C hidden, F ffn, H query heads, G key/value heads, D head
size, V vocabulary, N/K output and reduction dims of a matmul.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.mapped import drop_pages
from aie_engine.executors.protocol import Float32Array
from aie_loader import Graph, Node
from aie_tensor.native import Buffer, PackedMatrix, PlanBuilder

__all__ = ["Lowering"]

Rows = Literal["tokens", "logits"]


class Lowering:
    """Appends the nodes of `graph` to `builder`. `buffer` says where a value lives, by its name."""

    def __init__(self, graph: Graph, builder: PlanBuilder, buffer: Callable[[str], Buffer]) -> None:
        self._weights = graph.weights
        self._shapes = graph.shapes
        self._builder = builder
        self._buffer = buffer
        self._packed: dict[str, PackedMatrix] = {}

    def append(self, nodes: Sequence[Node]) -> None:
        """Append `nodes`, which are in executable order.

        Raises `UnsupportedOpError`, before any weight is packed, for a node without a kernel; rope and attention have
        one only in their fused form.
        """
        for node in nodes:
            _check(node)
        for node in nodes:
            _OPERATORS[node.op](self, node)

    def _embedding(self, node: Node) -> None:
        self._builder.embed(self._weights[node.inputs[1]], self._buffer(node.name))

    def _rms_norm(self, node: Node) -> None:
        x, weight = node.inputs
        out = self._buffer(node.name)
        self._builder.rms_norm(self._buffer(x), self._vector(weight), _attrs(node)["eps"], out, rows=self._rows(node))

    def _linear(self, node: Node, residual: str | None = None) -> None:
        """x [T, K], weights [N, K], biases [N] or none → [T, ΣN]."""
        parameters = [name for name in node.inputs[1:] if name in self._weights]
        biases = [self._vector(name) for name in parameters if len(self._weights[name].shape) == 1]
        self._builder.linear(
            self._buffer(node.inputs[0]),
            [self._pack(name) for name in parameters if len(self._weights[name].shape) == 2],
            self._buffer(node.name),
            add=None if residual is None else self._buffer(residual),
            biases=biases or None,
            rows=self._rows(node),
        )

    def _linear_add(self, node: Node) -> None:
        self._linear(node, residual=node.inputs[-1])

    def _swiglu(self, node: Node) -> None:
        x, gate, up = node.inputs
        out = self._buffer(node.name)
        self._builder.swiglu(self._buffer(x), self._pack(gate), self._pack(up), out, rows=self._rows(node))

    def _rope_attention(self, node: Node) -> None:
        attrs = _attrs(node)
        self._builder.rope_attention(
            self._buffer(node.inputs[0]),
            self._buffer(node.name),
            layer=attrs["layer"],
            num_heads=attrs["num_heads"],
            num_kv_heads=attrs["num_kv_heads"],
            head_dim=attrs["head_dim"],
            scale=attrs["scale"],
            inv_freq=np.asarray(attrs["inv_freq"], dtype=np.float32),
            interleaved=attrs["interleaved"],
        )

    def _select_rows(self, node: Node) -> None:
        self._builder.select_rows(self._buffer(node.inputs[0]), self._buffer(node.name))

    def _silu(self, node: Node) -> None:
        self._builder.silu(self._buffer(node.inputs[0]), self._buffer(node.name), self._rows(node))

    def _mul(self, node: Node) -> None:
        a, b = node.inputs
        self._builder.mul(self._buffer(a), self._buffer(b), self._buffer(node.name), self._rows(node))

    def _add(self, node: Node) -> None:
        a, b = node.inputs
        self._builder.add(self._buffer(a), self._buffer(b), self._buffer(node.name), self._rows(node))

    def _rows(self, node: Node) -> Rows:
        return "logits" if self._shapes[node.name][0] == "R" else "tokens"

    def _pack(self, name: str) -> PackedMatrix:
        if name not in self._packed:
            matrix = self._weights[name]
            allocate = self._builder.constants.allocate
            self._packed[name] = PackedMatrix.pack(
                self._builder.lib, matrix, allocate=lambda nbytes: allocate(nbytes, "packed weights")
            )
            drop_pages(matrix)  # from now on the packed copy is read
        return self._packed[name]

    def _vector(self, name: str) -> Float32Array:
        return self._weights[name].dequantize()


def _check(node: Node) -> None:
    """UnsupportedOpError for an operator without a kernel, or with a constant that the kernel would ignore."""
    if node.op not in _OPERATORS:
        raise UnsupportedOpError(node.name, node.op, "native")
    for key in node.attrs:
        if key not in _CONSTANTS.get(node.op, ()):
            raise UnsupportedOpError(node.name, f"{node.op} with {key}", "native")


def _attrs(node: Node) -> Mapping[str, Any]:
    # What each operator's attributes are is the loader's contract; shape inference has checked them.
    return node.attrs


_OPERATORS: Mapping[str, Callable[[Lowering, Node], None]] = {
    "embedding": Lowering._embedding,
    "rms_norm": Lowering._rms_norm,
    "linear": Lowering._linear,
    "linear_concat": Lowering._linear,
    "linear_add": Lowering._linear_add,
    "swiglu": Lowering._swiglu,
    "rope_attention": Lowering._rope_attention,
    "select_rows": Lowering._select_rows,
    "silu": Lowering._silu,
    "mul": Lowering._mul,
    "add": Lowering._add,
}

_CONSTANTS: Mapping[str, frozenset[str]] = {
    "rms_norm": frozenset({"eps"}),
    "linear_concat": frozenset({"num_weights"}),
    "rope_attention": frozenset({"layer", "num_heads", "num_kv_heads", "head_dim", "scale", "inv_freq", "interleaved"}),
}
"""What the kernels take into account. A constant that is not here is refused, never ignored."""
