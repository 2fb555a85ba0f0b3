"""The plain executor: walks the graph, one method per operator, NumPy all the way.

It is slow and easy to read, and that is its use: the oracle that every fast kernel is tested against, the fallback
where there is no compiler, and the place to learn what an operator does. It runs the graph as the loader builds it as
well as the fused one.

Axes: T tokens in the step (packed), S sequences, R rows whose logits are wanted, C hidden, F ffn, H query heads, G
key/value heads, D head size, V vocabulary, N/K output and reduction dims of a matmul.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aie_engine.batch import Int32Array, StepBatch
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.mapped import drop_pages
from aie_engine.executors.protocol import Float32Array, KernelKind
from aie_engine.kv_cache import KVCache
from aie_engine.sampling import numpy_argmax
from aie_loader import Graph, Node
from aie_tensor import Matrix, MemoryPool, ops
from aie_tensor.native import Constants

__all__ = ["NumpyExecutor"]

Attrs = Mapping[str, Any]


class NumpyExecutor:
    """Runs `graph` with keys and values in `kv`.

    keep_expanded: quantized weights are expanded to float32 on first use and kept: four to seven times the file's size,
    and the only way to be fast enough to talk to. False expands them anew in every step.
    pool: where the expanded weights lie. What a step computes is NumPy's own memory, gone before the next step.
    """

    kernels: KernelKind = "numpy"

    def __init__(
        self, graph: Graph, kv: KVCache, *, keep_expanded: bool = True, pool: MemoryPool | None = None
    ) -> None:
        self._nodes = graph.sorted()
        self._weights = graph.weights
        self._outputs = graph.outputs
        self._kv = kv
        self._keep_expanded = keep_expanded
        self._expanded: dict[str, Float32Array] = {}
        self._constants = Constants(pool)
        for node in self._nodes:
            if node.op not in _OPERATORS:
                raise UnsupportedOpError(node.name, node.op, self.kernels)

    def run(self, batch: StepBatch) -> Float32Array:
        """Logits [R, V] of `batch.logit_rows`; stores the step's keys and values in the cache."""
        values: dict[str, Any] = {"token_ids": batch.token_ids, "positions": batch.positions}
        for node in self._nodes:
            inputs = [self._weights[name] if name in self._weights else values[name] for name in node.inputs]
            values[node.name] = _OPERATORS[node.op](self, node, inputs, batch)
        logits: Float32Array = values[self._outputs[-1]]
        return logits

    def argmax_rows(self, logits: Float32Array) -> Int32Array:
        """Index of each row's first largest, or first NaN where there is one: [R, V] → [R]."""
        return numpy_argmax(logits)

    def close(self) -> None:
        """Give the expanded weights back."""
        self._expanded.clear()
        self._constants.close()

    # Operators. `inputs` are the node's inputs in order: arrays, and weights as `Matrix`.

    def _embedding(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        token_ids, table = inputs  # [T], [V, C]
        return ops.embedding(token_ids, table)

    def _rms_norm(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        x, _ = inputs  # [T, C], [C]
        return ops.rms_norm(x, self._expand(node.inputs[1]), _attrs(node)["eps"])

    def _linear(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """x [T, K] through one or more weights [N, K], results side by side: [T, ΣN]. 1-D inputs are biases."""
        return self._project(inputs[0], node.inputs[1:])

    def _linear_add(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """x [T, K], W [N, K], residual [T, N] → x·Wᵀ + residual [T, N]."""
        projected = self._project(inputs[0], node.inputs[1:-1])
        projected += inputs[-1]
        return projected

    def _swiglu(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """silu(x·gate) · (x·up): x [T, C], both weights [F, C] → [T, F]."""
        x, (gate, up) = inputs[0], node.inputs[1:]
        activated = ops.silu(self._project(x, [gate]))
        activated *= self._project(x, [up])
        return activated

    def _rope(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        x, positions = inputs  # [T, H*D], [T]
        attrs = _attrs(node)
        return _rotate(x, positions, attrs["num_heads"], attrs)

    def _rope_attention(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        qkv, positions = inputs  # [T, (H+2G)*D], [T]
        attrs = _attrs(node)
        num_heads, num_kv_heads, head_dim = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_dim"]
        q, k, v = np.split(qkv, [num_heads * head_dim, (num_heads + num_kv_heads) * head_dim], axis=1)
        q = _rotate(q, positions, num_heads, attrs)
        k = _rotate(k, positions, num_kv_heads, attrs)
        return self._attention(node, [q, k, v], batch)

    def _attention(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """q [T, H*D], k and v [T, G*D] → [T, H*D]: each sequence stores its k and v, then looks at all it has."""
        attrs = _attrs(node)
        layer, head_dim = attrs["layer"], attrs["head_dim"]
        q, k, v = (x.reshape(len(x), -1, head_dim) for x in inputs)
        out: Float32Array = np.empty_like(q)
        for s, (begin, end) in enumerate(zip(batch.seq_starts[:-1], batch.seq_starts[1:], strict=True)):
            own = slice(begin, end)
            table, positions = batch.block_tables[s], batch.positions[own]
            self._kv.store(layer, table, positions, k[own], v[own])
            keys, values = self._kv.gather(layer, table, int(batch.context_lens[s]))
            out[own] = ops.attention(q[own], keys, values, positions, attrs["scale"])
        return out.reshape(len(out), -1)

    def _silu(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        return ops.silu(inputs[0])

    def _mul(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        product: Float32Array = inputs[0] * inputs[1]
        return product

    def _add(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        total: Float32Array = inputs[0] + inputs[1]
        return total

    def _select_rows(self, node: Node, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """x [T, C] → [R, C]: the rows whose logits are wanted."""
        rows: Float32Array = inputs[0][batch.logit_rows]
        return rows

    # Weights.

    def _project(self, x: Float32Array, names: Sequence[str]) -> Float32Array:
        weights = [name for name in names if len(self._weights[name].shape) == 2]
        biases = [name for name in names if len(self._weights[name].shape) == 1]
        parts = [
            ops.linear(x, self._expand(weight), self._expand(biases[i]) if biases else None)
            for i, weight in enumerate(weights)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _expand(self, name: str) -> Float32Array:
        if name in self._expanded:
            return self._expanded[name]
        matrix: Matrix = self._weights[name]
        array = matrix.dequantize()
        if self._keep_expanded:
            array = self._expanded[name] = self._constants.store(array, "expanded weights")
            drop_pages(matrix)  # from now on the expanded copy is read
        return array


def _attrs(node: Node) -> Attrs:
    # What each operator's attributes are is the loader's contract; shape inference has checked them.
    return node.attrs


def _rotate(x: Float32Array, positions: Int32Array, num_heads: int, attrs: Attrs) -> Float32Array:
    heads = x.reshape(len(x), num_heads, attrs["head_dim"])
    inv_freq = np.asarray(attrs["inv_freq"], dtype=np.float32)
    return ops.rope(heads, positions, inv_freq, attrs["interleaved"]).reshape(x.shape)


Operator = Callable[[NumpyExecutor, Node, list[Any], StepBatch], Float32Array]

_OPERATORS: Mapping[str, Operator] = {
    "embedding": NumpyExecutor._embedding,
    "rms_norm": NumpyExecutor._rms_norm,
    "linear": NumpyExecutor._linear,
    "linear_concat": NumpyExecutor._linear,
    "linear_add": NumpyExecutor._linear_add,
    "rope": NumpyExecutor._rope,
    "attention": NumpyExecutor._attention,
    "rope_attention": NumpyExecutor._rope_attention,
    "silu": NumpyExecutor._silu,
    "swiglu": NumpyExecutor._swiglu,
    "mul": NumpyExecutor._mul,
    "add": NumpyExecutor._add,
    "select_rows": NumpyExecutor._select_rows,
}
