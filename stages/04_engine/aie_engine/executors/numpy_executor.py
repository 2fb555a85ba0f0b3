"""The plain executor: walks the graph node by node, NumPy all the way.

It is slow and easy to read, and that is its use: the oracle that every fast kernel is tested against, and the fallback
where there is no compiler. It runs the graph as the loader builds it as well as the fused one. What most operators
compute is said in the loader's `evaluation.py`; here are those that need the step: its cache and its rows.

Axes: T tokens in the step (packed), S sequences, R rows whose logits are wanted, C hidden, F ffn, H query heads, G
key/value heads, D head size, V vocabulary, N/K output and reduction dims of a matmul.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from aie_engine.batch import Int32Array, StepBatch
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.mapped import drop_pages
from aie_engine.executors.protocol import Float32Array, KernelKind
from aie_engine.kv_cache import KVCache
from aie_engine.sampling import numpy_argmax
from aie_loader import EVALUATORS, Graph, Node, WeightConverter, rotate
from aie_tensor import Matrix, MemoryPool, ops
from aie_tensor.native import Constants

__all__ = ["NumpyExecutor"]

Attrs = Mapping[str, Any]


class NumpyExecutor:
    """Runs `graph` with keys and values in `kv`.

    keep_expanded: quantized weights are expanded to float32 on first use and kept: four to seven times the file's size,
    and the only way to be fast enough to talk to. False expands them anew in every step.
    converter: puts the weights into another precision before they are expanded: the same numbers as in that precision.
    pool: where the expanded weights lie. What a step computes is NumPy's own memory, gone before the next step.
    """

    kernels: KernelKind = "numpy"

    def __init__(
        self,
        graph: Graph,
        kv: KVCache,
        *,
        keep_expanded: bool = True,
        pool: MemoryPool | None = None,
        converter: WeightConverter | None = None,
    ) -> None:
        self._nodes = graph.sorted()
        self._weights = graph.weights
        self._outputs = graph.outputs
        self._kv = kv
        self._keep_expanded = keep_expanded
        self._converter = converter
        self._tables: dict[str, Matrix] = {}
        self._expanded: dict[str, Float32Array] = {}
        self._constants = Constants(pool)
        for node in self._nodes:
            if node.op not in _OF_A_STEP and node.op not in EVALUATORS:
                raise UnsupportedOpError(node.name, node.op, self.kernels)

    def run(self, batch: StepBatch) -> Float32Array:
        """Logits [R, V] of `batch.logit_rows`; stores the step's keys and values in the cache."""
        values: dict[str, Any] = {"token_ids": batch.token_ids, "positions": batch.positions}
        for node in self._nodes:
            inputs = [self._weight(node, name) if name in self._weights else values[name] for name in node.inputs]
            of_a_step = _OF_A_STEP.get(node.op)
            if of_a_step is not None:
                values[node.name] = of_a_step(self, node.attrs, inputs, batch)
            else:
                values[node.name] = EVALUATORS[node.op](node.attrs, inputs, batch.seq_starts)
        logits: Float32Array = values[self._outputs[-1]]
        return logits

    def argmax_rows(self, logits: Float32Array) -> Int32Array:
        """Index of each row's first largest, or first NaN where there is one: [R, V] → [R]."""
        return numpy_argmax(logits)

    def close(self) -> None:
        """Give the expanded weights back."""
        self._expanded.clear()
        self._constants.close()

    def _rope_attention(self, attrs: Attrs, inputs: list[Any], batch: StepBatch) -> Float32Array:
        qkv, positions = inputs  # [T, (H+2G)*D], [T]
        num_heads, num_kv_heads, head_dim = attrs["num_heads"], attrs["num_kv_heads"], attrs["head_dim"]
        q, k, v = np.split(qkv, [num_heads * head_dim, (num_heads + num_kv_heads) * head_dim], axis=1)
        q = rotate(q, positions, num_heads, attrs)
        k = rotate(k, positions, num_kv_heads, attrs)
        return self._attention(attrs, [q, k, v], batch)

    def _attention(self, attrs: Attrs, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """q [T, H*D], k and v [T, G*D] → [T, H*D]: each sequence stores its k and v, then looks at all it has."""
        layer, head_dim = attrs["layer"], attrs["head_dim"]
        special = {key: attrs.get(key) for key in ("window", "softcap", "alibi_slopes")}
        q, k, v = (x.reshape(len(x), -1, head_dim) for x in inputs)
        out: Float32Array = np.empty_like(q)
        for s, (begin, end) in enumerate(pairwise(batch.seq_starts)):
            own = slice(begin, end)
            table, positions = batch.block_tables[s], batch.positions[own]
            self._kv.store(layer, table, positions, k[own], v[own])
            keys, values = self._kv.gather(layer, table, int(batch.context_lens[s]))
            out[own] = ops.attention(q[own], keys, values, positions, attrs["scale"], **special)
        return out.reshape(len(out), -1)

    def _select_rows(self, attrs: Attrs, inputs: list[Any], batch: StepBatch) -> Float32Array:
        """x [T, C] → [R, C]: the rows whose logits are wanted."""
        rows: Float32Array = inputs[0][batch.logit_rows]
        return rows

    def _weight(self, node: Node, name: str) -> Matrix | Float32Array:
        if node.op == "embedding":  # only rows of its table are needed
            if name not in self._tables:
                self._tables[name] = self._converted(name)
            return self._tables[name]
        if name in self._expanded:
            return self._expanded[name]
        matrix = self._weights[name]
        array = self._converted(name).dequantize()
        if self._keep_expanded:
            array = self._expanded[name] = self._constants.store(array, "expanded weights")
            drop_pages(matrix)  # from now on the expanded copy is read
        return array

    def _converted(self, name: str) -> Matrix:
        matrix = self._weights[name]
        return matrix if self._converter is None else self._converter.convert(name, matrix)


OfAStep = Callable[[NumpyExecutor, Attrs, list[Any], StepBatch], Float32Array]

_OF_A_STEP: Mapping[str, OfAStep] = {
    "attention": NumpyExecutor._attention,
    "rope_attention": NumpyExecutor._rope_attention,
    "select_rows": NumpyExecutor._select_rows,
}
