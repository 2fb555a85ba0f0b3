"""What an operator of a step has to do at least: floating-point operations, and bytes that must come from memory.

Only weights and the KV cache count as bytes: they are larger than the caches and are read once per step, whatever the
batch. Activations stay in the caches, as they should; an operator that only touches them has no bytes here, and no
share of the roofline either. A fused multiply-add is two operations.

Axes: T tokens in the step, R rows whose logits are wanted, K inputs and N outputs of a product, H query heads, D head
size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from aie_loader import Graph, Node
from aie_tensor import Matrix

__all__ = ["Cost", "StepShape", "node_cost"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """How large a step is. sequences: of each (tokens in the step, tokens before them); kv_bytes: of one token in one
    layer, keys and values of all heads."""

    sequences: tuple[tuple[int, int], ...]
    num_rows: int  # whose logits are wanted
    num_items: int = 0  # of models that take no texts
    kv_bytes: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(new for new, _ in self.sequences)

    def rows(self, axis: int | str) -> int:
        """The length of a value's first axis."""
        if isinstance(axis, int):
            return 1
        return {"T": self.num_tokens, "R": self.num_rows, "S": len(self.sequences), "B": self.num_items}[axis]

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key that causal attention looks at, per head."""
        return sum(new * before + new * (new + 1) // 2 for new, before in self.sequences)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one operator in one step."""

    flops: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.nbytes + other.nbytes)

    def least_s(self, peak_flops: float, peak_read: float) -> float:
        """The time that the roofline allows: whichever takes longer, computing or fetching."""
        return max(self.flops / peak_flops, self.nbytes / peak_read)


def node_cost(node: Node, graph: Graph, step: StepShape, stored: Callable[[str, Matrix], float]) -> Cost:
    """stored: bytes of a weight in the form in which the kernels read it."""
    rows = step.rows(graph.shapes[node.name][0] if graph.shapes[node.name] else 1)
    attrs: Mapping[str, Any] = node.attrs
    matrices = [name for name in node.inputs if name in graph.weights and len(graph.weights[name].shape) >= 2]
    if node.op in ("linear", "linear_concat", "linear_add", "swiglu"):
        flops = sum(2.0 * rows * prod(graph.weights[name].shape) for name in matrices)
        return Cost(flops, sum(stored(name, graph.weights[name]) for name in matrices))
    if node.op in ("conv1d", "conv2d"):
        out = prod(size for size in graph.shapes[node.name][1:] if isinstance(size, int))
        kernels = graph.weights[matrices[0]]
        return Cost(2.0 * rows * out * prod(kernels.shape[1:]), stored(matrices[0], kernels))
    if node.op in ("attention", "rope_attention"):
        of_head = 4.0 * attrs["num_heads"] * attrs["head_dim"]  # scores, and the mix of values
        cached = sum(new + before for new, before in step.sequences)
        return Cost(of_head * step.num_scores, float(step.kv_bytes * cached))
    if node.op == "encoder_attention":
        return Cost(4.0 * attrs["num_heads"] * attrs["head_dim"] * sum(new * new for new, _ in step.sequences))
    if node.op == "embedding":
        table = graph.weights[matrices[0]]
        return Cost(0.0, rows * stored(matrices[0], table) / table.shape[0])
    return Cost()
