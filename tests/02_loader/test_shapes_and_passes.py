"""Shapes are inferred and checked; every fusion leaves the result unchanged and takes only what it may."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aie_loader import Graph, GraphShapeError, Node, fuse, fuse_qkv, fuse_residual, fuse_swiglu, infer_shapes
from aie_tensor import Matrix, ops

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 8, 2, 1, 4
ROPE = {"head_dim": HEAD_DIM, "theta": 100.0, "interleaved": True, "inv_freq": (1.0, 0.1)}
ATTENTION = {"layer": 0, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "scale": 0.5}


def weights(**shapes: tuple[int, ...]) -> dict[str, Matrix]:
    random = np.random.default_rng(0)
    return {name: Matrix.from_array(random.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


def layer(*, bias: bool = False) -> Graph:
    """One transformer layer; `h` is its only activation besides the residual stream `x`."""
    w = weights(
        table=(5, WIDTH), norm=(WIDTH,), q=(8, WIDTH), k=(4, WIDTH), v=(4, WIDTH), o=(WIDTH, 8),
        gate=(6, WIDTH), up=(6, WIDTH), down=(WIDTH, 6), bq=(8,), bk=(4,), bv=(4,), bo=(WIDTH,),
    )  # fmt: skip
    b = (lambda name: (name,)) if bias else (lambda name: ())
    nodes = [
        Node("x", "embedding", ("token_ids", "table")),
        Node("h", "rms_norm", ("x", "norm"), {"eps": 1e-5}),
        Node("q_", "linear", ("h", "q", *b("bq"))),
        Node("k_", "linear", ("h", "k", *b("bk"))),
        Node("v_", "linear", ("h", "v", *b("bv"))),
        Node("q_rope", "rope", ("q_", "positions"), {"num_heads": HEADS, **ROPE}),
        Node("k_rope", "rope", ("k_", "positions"), {"num_heads": KV_HEADS, **ROPE}),
        Node("attn", "attention", ("q_rope", "k_rope", "v_"), ATTENTION),
        Node("o_", "linear", ("attn", "o", *b("bo"))),
        Node("x2", "add", ("x", "o_")),
        Node("h2", "rms_norm", ("x2", "norm"), {"eps": 1e-5}),
        Node("gate_", "linear", ("h2", "gate")),
        Node("up_", "linear", ("h2", "up")),
        Node("act", "silu", ("gate_",)),
        Node("gated", "mul", ("up_", "act")),
        Node("down_", "linear", ("gated", "down")),
        Node("x3", "add", ("down_", "x2")),
        Node("logits", "select_rows", ("x3",)),
    ]
    return infer_shapes(Graph(("token_ids", "positions"), nodes, ("logits",), w))


def run(graph: Graph) -> np.ndarray[Any, Any]:
    """A few lines of interpreter: one sequence, no cache."""
    ids, positions = np.array([0, 3, 1]), np.arange(3)
    values: dict[str, Any] = {"token_ids": ids, "positions": positions}
    values |= {name: matrix.dequantize() for name, matrix in graph.weights.items()}

    def rope(x: Any, heads: int, attrs: Any) -> Any:
        inv_freq = np.array(attrs["inv_freq"], np.float32)
        return ops.rope(x.reshape(len(x), heads, HEAD_DIM), positions, inv_freq, attrs["interleaved"]).reshape(x.shape)

    def attend(q: Any, k: Any, v: Any, attrs: Any) -> Any:
        q, k, v = (value.reshape(len(value), -1, HEAD_DIM) for value in (q, k, v))
        return ops.attention(q, k, v, positions, attrs["scale"]).reshape(len(q), -1)

    def fused_attention(x: Any, _: Any, *, attrs: Any) -> Any:
        q, k, v = np.split(x, [8, 12], axis=1)
        return attend(rope(q, HEADS, attrs), rope(k, KV_HEADS, attrs), v, attrs)

    def concat(x: Any, *rest: Any, attrs: Any) -> Any:
        count = attrs["num_weights"]
        biases = rest[count:] or [None] * count
        return np.concatenate([ops.linear(x, w, b) for w, b in zip(rest[:count], biases, strict=True)], axis=1)

    operators: dict[str, Any] = {
        "embedding": lambda i, table, attrs: table[i],
        "rms_norm": lambda x, w, attrs: ops.rms_norm(x, w, attrs["eps"]),
        "linear": lambda x, w, b=None, *, attrs: ops.linear(x, w, b),
        "linear_concat": concat,
        "linear_add": lambda x, w, *rest, attrs: ops.linear(x, w, rest[0] if len(rest) > 1 else None) + rest[-1],
        "rope": lambda x, _, attrs: rope(x, attrs["num_heads"], attrs),
        "attention": attend,
        "rope_attention": fused_attention,
        "silu": lambda x, attrs: ops.silu(x),
        "swiglu": lambda x, gate, up, attrs: ops.silu(ops.linear(x, gate)) * ops.linear(x, up),
        "mul": lambda a, b, attrs: a * b,
        "add": lambda a, b, attrs: a + b,
        "select_rows": lambda x, attrs: x[-1:],
    }
    for node in graph.sorted():
        values[node.name] = operators[node.op](*(values[name] for name in node.inputs), attrs=node.attrs)
    return values[graph.outputs[0]]


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.sorted()]


def without(graph: Graph, name: str, *instead: Node) -> Graph:
    nodes = [other for node in graph.nodes for other in (instead if node.name == name else (node,))]
    return infer_shapes(replace(graph, nodes=nodes))


# Fusion


@pytest.mark.parametrize("bias", [False, True])
def test_fused_graph_computes_the_same_with_fewer_operators(bias: bool) -> None:
    graph = layer(bias=bias)
    fused = fuse(graph)
    assert ops_of(fused) == [
        "embedding", "rms_norm", "linear_concat", "rope_attention", "linear_add", "rms_norm", "swiglu", "linear_add",
        "select_rows",
    ]  # fmt: skip
    np.testing.assert_allclose(run(fused), run(graph), rtol=1e-5, atol=1e-6)
    assert fused.shapes["attn.qkv"] == ("T", 16) and fused.shapes["logits"] == ("R", WIDTH)
    assert len(graph.nodes) == 18  # a pass returns a new graph


@pytest.mark.parametrize("one_pass", [fuse_qkv, fuse_swiglu, fuse_residual])
def test_each_pass_alone_keeps_the_result(one_pass: Any) -> None:
    graph = layer()
    np.testing.assert_allclose(run(one_pass(graph)), run(graph), rtol=1e-5, atol=1e-6)
    assert ops_of(one_pass(one_pass(graph))) == ops_of(one_pass(graph))


def test_order_of_the_list_does_not_matter() -> None:
    graph = layer()
    backwards = replace(graph, nodes=graph.nodes[::-1])
    np.testing.assert_allclose(run(fuse(backwards)), run(graph), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", ["q_", "k_rope", "v_"])
def test_qkv_is_left_alone_when_another_node_reads_a_part(value: str) -> None:
    graph = layer()
    graph = infer_shapes(replace(graph, nodes=[*graph.nodes, Node("spy", "silu", (value,))]))
    assert "linear_concat" not in ops_of(fuse_qkv(graph))


def test_qkv_is_left_alone_when_rotations_or_inputs_or_biases_differ() -> None:
    graph = layer()
    other = {"num_heads": KV_HEADS, **ROPE, "interleaved": False}
    for changed in (
        Node("k_rope", "rope", ("k_", "positions"), other),
        Node("v_", "linear", ("x", "v")),
        Node("v_", "linear", ("h", "v", "bv")),
    ):
        assert "rope_attention" not in ops_of(fuse_qkv(without(graph, changed.name, changed)))


def test_swiglu_is_left_alone_when_inputs_differ_or_the_gate_is_read_elsewhere() -> None:
    graph = layer()
    assert "swiglu" not in ops_of(fuse_swiglu(without(graph, "up_", Node("up_", "linear", ("x2", "up")))))
    spied = infer_shapes(replace(graph, nodes=[*graph.nodes, Node("spy", "silu", ("gate_",))]))
    assert "swiglu" not in ops_of(fuse_swiglu(spied))


def test_residual_is_left_alone_when_the_projection_has_another_reader_or_is_an_output() -> None:
    graph = layer()
    spied = infer_shapes(replace(graph, nodes=[*graph.nodes, Node("spy", "silu", ("o_",))]))
    assert ops_of(fuse_residual(spied)).count("linear_add") == 1
    shown = replace(graph, outputs=("logits", "o_"))
    assert ops_of(fuse_residual(shown)).count("linear_add") == 1
    doubled = without(graph, "x2", Node("x2", "add", ("o_", "o_")))
    assert ops_of(fuse_residual(doubled)).count("linear_add") == 1
    both = without(graph, "x2", Node("x2", "add", ("o_", "o2")), Node("o2", "linear", ("attn", "o")))
    np.testing.assert_allclose(run(fuse_residual(both)), run(both), rtol=1e-5, atol=1e-6)


# Shapes


def test_shapes_of_every_value() -> None:
    shapes = layer().shapes
    assert shapes["token_ids"] == ("T",) and shapes["x"] == ("T", 8) and shapes["k_rope"] == ("T", 4)
    assert shapes["gated"] == ("T", 6) and shapes["logits"] == ("R", 8)


@pytest.mark.parametrize(
    "node",
    [
        Node("bad", "linear", ("x", "down")),
        Node("bad", "linear", ("x",)),
        Node("bad", "linear", ()),
        Node("bad", "linear_add", ()),
        Node("bad", "linear", ("x", "q", "bk")),
        Node("bad", "embedding", ("token_ids", "norm")),
        Node("bad", "rms_norm", ("gated", "norm"), {"eps": 1e-5}),
        Node("bad", "rope", ("k_", "positions"), {"num_heads": HEADS, **ROPE}),
        Node("bad", "rope", ("k_", "positions"), {**ROPE}),
        Node("bad", "rope", ("k_",), {"num_heads": KV_HEADS, **ROPE}),
        Node("bad", "attention", ("k_", "q_", "v_"), ATTENTION),
        Node("bad", "attention", ("q_", "k_"), ATTENTION),
        Node("bad", "rope_attention", ("q_", "positions"), {**ATTENTION, **ROPE}),
        Node("bad", "linear_concat", ("x", "q", "k"), {"num_weights": 3}),
        Node("bad", "linear_add", ("x", "q", "k_")),
        Node("bad", "linear_add", ("x", "q")),
        Node("bad", "swiglu", ("x", "gate", "q")),
        Node("bad", "mul", ("q_", "k_")),
        Node("bad", "add", ("q_",)),
        Node("bad", "silu", ("q_", "q_")),
        Node("bad", "select_rows", ("positions",)),
        Node("bad", "select_rows", ()),
        Node("bad", "softplus", ("x",)),
    ],
    ids=lambda node: f"{node.op}{node.inputs}",
)
def test_a_node_that_does_not_fit_is_named(node: Node) -> None:
    graph = layer()
    with pytest.raises(GraphShapeError, match="'bad'"):
        infer_shapes(replace(graph, nodes=[*graph.nodes, node]))
