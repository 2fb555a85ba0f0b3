"""Three projections of one input and the rotation become one matrix product and one attention operator.

    q = rope(linear(x, Wq))          qkv = linear_concat(x, Wq, Wk, Wv)      [T, (H + 2G)·D]
    k = rope(linear(x, Wk))    →     out = rope_attention(qkv, positions)    [T, H·D]
    v = linear(x, Wv)
    out = attention(q, k, v)

What it buys: `x` is read once instead of three times, threads meet once instead of three times, and rotated keys go
straight into the cache without a stop in memory.
"""

from collections.abc import Sequence

from aie_loader.graph import Graph, Node
from aie_loader.passes.matching import Matcher, rewrite

__all__ = ["fuse_qkv"]

_ROPE_ATTRS = ("head_dim", "rotary_dim", "interleaved", "inv_freq", "attention_factor")


def fuse_qkv(graph: Graph) -> Graph:
    """Fuse every attention whose q, k and v come from one input, q and k through the same rotation."""
    matcher = Matcher(graph)
    instead: dict[str, Sequence[Node]] = {}
    gone: set[str] = set()
    for attention in graph.nodes:
        if attention.op != "attention" or len(attention.inputs) != 3:
            continue
        ropes = [matcher.private(value, "rope") for value in attention.inputs[:2]]
        q_rope, k_rope = ropes
        if q_rope is None or k_rope is None or not _same_rotation(q_rope, k_rope):
            continue
        projections = [
            matcher.private(value, "linear") for value in (q_rope.inputs[0], k_rope.inputs[0], attention.inputs[2])
        ]
        linears = [linear for linear in projections if linear is not None]
        if len(linears) != 3 or not _side_by_side(linears):
            continue
        instead[attention.name] = _fused(attention, q_rope, linears)
        gone |= {q_rope.name, k_rope.name, *(linear.name for linear in linears)}
    return rewrite(graph, instead, gone)


def _same_rotation(q: Node, k: Node) -> bool:
    return q.inputs[1] == k.inputs[1] and all(q.attrs.get(key) == k.attrs.get(key) for key in _ROPE_ATTRS)


def _side_by_side(linears: Sequence[Node]) -> bool:
    """One common input, and biases on all of them or on none."""
    return len({linear.inputs[0] for linear in linears}) == 1 and len({len(linear.inputs) for linear in linears}) == 1


def _fused(attention: Node, rope: Node, linears: Sequence[Node]) -> list[Node]:
    weights = [linear.inputs[1] for linear in linears]
    biases = [name for linear in linears for name in linear.inputs[2:]]
    qkv = Node(
        f"{attention.name}.qkv",
        "linear_concat",
        (linears[0].inputs[0], *weights, *biases),
        {"num_weights": len(weights)},
    )
    rotation = {key: rope.attrs[key] for key in _ROPE_ATTRS if key in rope.attrs}
    return [qkv, Node(attention.name, "rope_attention", (qkv.name, rope.inputs[1]), {**attention.attrs, **rotation})]
