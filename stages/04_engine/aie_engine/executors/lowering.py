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
        self._operators: Mapping[str, Callable[[Node], None]] = {
            "embedding": self._embedding,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "linear_concat": self._linear,
            "linear_add": self._linear_add,
            "swiglu": self._swiglu,
            "rope_attention": self._rope_attention,
            "select_rows": lambda node: builder.select_rows(buffer(node.inputs[0]), buffer(node.name)),
            "silu": lambda node: builder.silu(buffer(node.inputs[0]), buffer(node.name), self._rows(node)),
            "mul": lambda node: self._elementwise(node, builder.mul),
            "add": lambda node: self._elementwise(node, builder.add),
        }

    def append(self, nodes: Sequence[Node]) -> None:
        """Append `nodes`, which are in executable order.

        Raises `UnsupportedOpError`, before any weight is packed, for a node without a kernel; rope and attention have
        one only in their fused form.
        """
        for node in nodes:
            if node.op not in self._operators:
                raise UnsupportedOpError(node.name, node.op, "native")
        for node in nodes:
            self._operators[node.op](node)

    def _embedding(self, node: Node) -> None:
        self._builder.embed(self._weights[node.inputs[1]], self._buffer(node.name))

    def _rms_norm(self, node: Node) -> None:
        x, weight = node.inputs
        out = self._buffer(node.name)
        self._builder.rms_norm(self._buffer(x), self._vector(weight), _attrs(node)["eps"], out, rows=self._rows(node))

    def _linear(self, node: Node, residual: str | None = None) -> None:
        """x [T,K], weights [N,K], biases [N] or none → [T, ΣN]."""
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

    def _elementwise(self, node: Node, append: Callable[[Buffer, Buffer, Buffer, Rows], None]) -> None:
        a, b = node.inputs
        append(self._buffer(a), self._buffer(b), self._buffer(node.name), self._rows(node))

    def _rows(self, node: Node) -> Rows:
        return "logits" if self._shapes[node.name][0] == "R" else "tokens"

    def _pack(self, name: str) -> PackedMatrix:
        if name not in self._packed:
            matrix = self._weights[name]
            self._packed[name] = PackedMatrix.pack(self._builder.lib, matrix)
            drop_pages(matrix)  # from now on the packed copy is read
        return self._packed[name]

    def _vector(self, name: str) -> Float32Array:
        return self._weights[name].dequantize()


def _attrs(node: Node) -> Mapping[str, Any]:
    # What each operator's attributes are is the loader's contract; shape inference has checked them.
    return node.attrs
