"""Graphs by hand, from weights alone, and from JSON files; the passes that fold and drop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_loader import DuplicateNodeError, Graph, GraphShapeError, MalformedHeaderError, MissingInputError, Node
from aie_loader.evaluation import EVALUATORS
from aie_loader.graph_builder import GraphBuilder, build_graph
from aie_loader.graph_file import graph_to_json, read_graph_file
from aie_loader.passes import drop_dead_nodes, fold_batch_norm, fold_constants
from aie_tensor import InvalidInputError, Matrix


def weights(**shapes: tuple[int, ...]) -> dict[str, Matrix]:
    random = np.random.default_rng(0)
    return {
        name.replace("__", "."): Matrix.from_array(random.standard_normal(shape).astype(np.float32))
        for name, shape in shapes.items()
    }


def run(graph: Graph, **inputs: np.ndarray) -> np.ndarray:
    values = dict(inputs)
    for node in graph.sorted():
        arguments = [
            graph.weights[name].dequantize() if name in graph.weights else values[name] for name in node.inputs
        ]
        values[node.name] = EVALUATORS[node.op](node.attrs, arguments, None)
    return values[graph.outputs[0]]


def mlp() -> dict[str, Matrix]:
    return weights(fc1__weight=(5, 8), fc1__bias=(5,), fc2__weight=(3, 5), fc2__bias=(3,))


def test_ten_lines_for_an_mlp() -> None:
    g = GraphBuilder(mlp())
    x = g.input("x", ("B", 8))
    h = g.op("relu", g.op("linear", x, "fc1.weight", "fc1.bias"))
    graph = g.build(g.op("linear", h, "fc2.weight", "fc2.bias", name="logits"))
    assert graph.shapes["logits"] == ("B", 3)
    a = {name: matrix.dequantize() for name, matrix in graph.weights.items()}
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    expected = np.maximum(x @ a["fc1.weight"].T + a["fc1.bias"], 0) @ a["fc2.weight"].T + a["fc2.bias"]
    np.testing.assert_allclose(run(graph, x=x), expected, rtol=1e-5)
    np.testing.assert_array_equal(run(build_graph(mlp(), (8,)), x=x), run(graph, x=x))


def test_a_stack_of_convolutions_from_its_weights() -> None:
    w = weights(l2__weight=(3, 2, 3, 3), l10__weight=(7, 3 * 4 * 4), l10__bias=(7,))  # l10 comes after l2
    graph = build_graph(w, (2, 6, 6), activation="tanh")
    assert [node.op for node in graph.sorted()] == ["conv2d", "tanh", "flatten", "linear"]
    assert graph.shapes[graph.outputs[0]] == ("B", 7)


@pytest.mark.parametrize(
    ("shapes", "input_shape", "error", "match"),
    [
        ({}, (8,), InvalidInputError, "no tensor whose name ends in 'weight'"),
        ({"a__weight": (3, 8), "running_mean": (3,)}, (8,), InvalidInputError, "running_mean belong to no layer"),
        ({"a__weight": (3, 8, 2)}, (8,), InvalidInputError, "has 3 axes"),
        ({"a__weight": (3, 9)}, (8,), GraphShapeError, "linear needs"),
        ({"a__weight": (3, 8), "b__weight": (2, 3, 1, 1)}, (8,), GraphShapeError, "b.weight is a convolution"),
    ],
)
def test_weights_that_are_no_stack_are_refused(shapes, input_shape, error, match) -> None:
    with pytest.raises(error, match=match):
        build_graph(weights(**shapes), input_shape)


def test_a_graph_file_and_back(tmp_path: Path) -> None:
    graph = build_graph(weights(c__weight=(3, 2, 3, 3), f__weight=(7, 48)), (2, 6, 6))
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph_to_json(graph)))
    again = read_graph_file(path, {**graph.weights, "unused": next(iter(graph.weights.values()))})
    assert (
        again.sorted() == graph.sorted() and again.shapes == graph.shapes and set(again.weights) == set(graph.weights)
    )


def document(**changes: object) -> dict[str, object]:
    node = {"name": "y", "op": "relu", "inputs": ["x"]}
    return {"aie_graph": 1, "inputs": {"x": ["B", 4]}, "nodes": [node], "outputs": ["y"], **changes}


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"aie_graph": 2}, MalformedHeaderError, "version 1"),
        ({"inputs": []}, MalformedHeaderError, "inputs must be"),
        ({"inputs": {"x": ["B", 0]}}, MalformedHeaderError, "shape of 'x'"),
        ({"inputs": {"x": ["B", True]}}, MalformedHeaderError, "shape of 'x'"),
        ({"nodes": {}}, MalformedHeaderError, "nodes must be"),
        ({"nodes": [3]}, MalformedHeaderError, "node 0 is not an object"),
        ({"nodes": [{"op": "relu", "inputs": ["x"]}]}, MalformedHeaderError, "needs a name"),
        ({"nodes": [{"name": "y", "op": "relu", "inputs": "x"}]}, MalformedHeaderError, "inputs of 'y'"),
        ({"nodes": [{"name": "y", "op": "relu", "inputs": ["x"], "a": {}}]}, MalformedHeaderError, "a of 'y'"),
        ({"nodes": [{"name": "y", "op": "eval", "inputs": ["x"]}]}, GraphShapeError, "unknown operator 'eval'"),
        ({"nodes": [{"name": "y", "op": "relu", "inputs": ["z"]}]}, MissingInputError, "'z'"),
        ({"outputs": []}, MalformedHeaderError, "outputs must be"),
        ({"outputs": ["z"]}, MissingInputError, "'z'"),
    ],
)
def test_a_broken_graph_file_says_what_is_wrong(tmp_path: Path, changes, error, match) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(error, match=match):
        read_graph_file(path, {})


def test_dead_nodes_go_with_their_weights() -> None:
    g = GraphBuilder(mlp())
    x = g.op("linear", g.input("x", ("B", 8)), "fc1.weight", name="kept")
    g.op("linear", x, "fc2.weight", name="dead")
    graph = drop_dead_nodes(g.build(x))
    assert [node.name for node in graph.nodes] == ["kept"] and list(graph.weights) == ["fc1.weight"]
    assert "dead" not in graph.shapes


def test_constants_fold_through_chains_but_not_into_outputs_or_large_ones() -> None:
    g = GraphBuilder(weights(w=(4, 8), other=(8, 4)))
    turned = g.op("transpose", "w", axes=(1, 0), name="turned")
    scaled = g.op("scale", turned, factor=2.0, name="scaled")
    both = g.op("add", scaled, "other", name="both")
    x = g.input("x", ("B", 4))
    graph = g.build(g.op("linear", x, both, name="y"))
    folded = fold_constants(graph)
    assert [node.name for node in folded.nodes] == ["y"] and list(folded.weights) == ["both"]
    x = np.ones((2, 4), dtype=np.float32)
    np.testing.assert_allclose(run(folded, x=x), run(graph, x=x), rtol=1e-6)
    assert fold_constants(graph, max_bytes=100) is graph
    output = Graph(("x",), [Node("turned", "relu", ("w",))], ("turned",), weights(w=(4,)), {"x": (1,), "turned": (4,)})
    assert fold_constants(output) is output


def test_batch_norm_folds_into_the_product_before_it() -> None:
    w = weights(k=(6, 3, 3, 3), kb=(6,), g=(6,), b=(6,), mean=(6,), fc=(6, 6))
    w["var"] = Matrix.from_array(np.random.default_rng(3).uniform(0.1, 2, 6).astype(np.float32))
    g = GraphBuilder(w)
    norm = ("g", "b", "mean", "var")
    x = g.op("conv2d", g.input("x", ("B", 3, 5, 5)), "k", "kb", padding=(1, 1))
    x = g.op("batch_norm", x, *norm, eps=1e-5)
    x = g.op("linear", g.op("global_avg_pool", g.op("relu", x)), "fc")
    graph = g.build(g.op("batch_norm", x, *norm, eps=1e-5, name="y"))
    folded = fold_batch_norm(graph)
    assert [node.op for node in folded.sorted()] == ["conv2d", "relu", "global_avg_pool", "linear"]
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x), run(graph, x=x), rtol=1e-4, atol=1e-5)


def test_batch_norm_stays_where_its_input_is_read_twice() -> None:
    g = GraphBuilder(weights(k=(3, 3), g=(3,), b=(3,), mean=(3,), var=(3,)))
    x = g.op("linear", g.input("x", ("B", 3)), "k")
    y = g.op("batch_norm", x, "g", "b", "mean", "var", eps=1e-5)
    graph = g.build(g.op("add", x, y))
    assert fold_batch_norm(graph) is graph


TEXT_INPUTS = {"token_ids": ["T"], "positions": ["T"], "x": ["B", 6], "y": ["B", 2, 3]}
ROPE = {"op": "rope", "inputs": ["p", "positions"], "num_heads": 1, "head_dim": 6, "interleaved": False,
        "inv_freq": [1.0, 0.1, 0.01]}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"op": "transpose", "inputs": ["y"], "axes": [0.0, 2.0, 1.0]}, "axes that name each"),
        ({"op": "reduce", "inputs": ["y"], "kind": "mean", "axes": [1, 1]}, "axes that are named once"),
        ({"op": "reduce", "inputs": ["y"], "kind": "mean", "axes": [1, -2]}, "axes that are named once"),
        ({"op": "scale", "inputs": ["x"], "factor": 10**400}, "a positive factor"),
        ({"op": "scale", "inputs": ["x"], "factor": "2"}, "a positive factor"),
        ({"op": "embedding", "inputs": ["token_ids", "x"]}, "must be a weight"),
        ({"op": "embedding", "inputs": ["token_ids", "table"], "scale": "x"}, "a positive scale"),
        ({"op": "rms_norm", "inputs": ["p", "norm"]}, "a positive eps"),
        ({"op": "rms_norm", "inputs": ["p", "norm"], "eps": 1e-5, "offset": [1, 1]}, "a finite offset"),
        ({**ROPE, "interleaved": None}, "true or false"),
        ({**ROPE, "inv_freq": [1.0, 10**400, 1.0]}, "finite numbers as inv_freq"),
        ({**ROPE, "attention_factor": "x"}, "a positive attention_factor"),
        ({"op": "attention", "inputs": ["p", "q", "q"], "num_heads": 3, "num_kv_heads": 2, "head_dim": 2}, "evenly"),
        ({"op": "max_pool2d", "inputs": ["z"], "kernel": [1, 1], "stride": [1, 1 << 40]}, "at least 1 as stride"),
        ({"op": "conv2d", "inputs": ["z", "kernel"], "padding": [1 << 31, 1 << 31]}, "more than 2\\^32 elements"),
    ],
)
def test_constants_that_an_operator_cannot_use_are_refused_before_it_runs(
    tmp_path: Path, node: dict[str, object], words: str
) -> None:
    stored = weights(table=(10, 6), norm=(6,), narrow=(4, 6), kernel=(2, 1, 1, 1))
    document = {
        "aie_graph": 1,
        "inputs": {**TEXT_INPUTS, "z": ["B", 1, 2, 2]},
        "nodes": [
            {"name": "p", "op": "embedding", "inputs": ["token_ids", "table"]},
            {"name": "q", "op": "linear", "inputs": ["p", "narrow"]},
            {"name": "tried", **node},
        ],
        "outputs": ["tried"],
    }
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document))
    with pytest.raises(GraphShapeError, match=words):
        read_graph_file(path, stored)


def test_names_that_two_things_bear_or_nothing_makes() -> None:
    g = GraphBuilder(weights(x=(3,)))
    g.input("x", ("B", 3))
    with pytest.raises(DuplicateNodeError, match="input 'x' and a weight"):
        g.build(g.op("add", "x", "x"))
    with pytest.raises(DuplicateNodeError, match="two inputs 'x'"):
        g.input("x", ("B", 4))
    with pytest.raises(DuplicateNodeError, match="'a' and another input"):
        Graph(("a", "a"), [], ("a",)).sorted()
    with pytest.raises(InvalidInputError, match="names of values"):
        g.op("relu", ["x"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="at least one output"):
        g.build()
    g = GraphBuilder(weights(x=(3,)))
    g.op("relu", "x")
    with pytest.raises(GraphShapeError, match="'x' is a weight"):
        g.build("x")


@pytest.mark.parametrize("shape", [("B", -6), ("B", 6.5), None, 6, (), ["B", 6], ("not a name",), (True,)])
def test_shapes_of_inputs_that_are_none(shape: Any) -> None:
    g = GraphBuilder({})
    g.input("x", shape)
    with pytest.raises(GraphShapeError, match="the shape of the input 'x'"):
        g.build(g.op("relu", "x"))


def test_layers_come_in_the_order_of_their_numbers_whatever_digits_they_have() -> None:
    names = ["a\u00b22.weight", "a2.weight", "a010.weight", "a" + "1" * 5000 + ".weight"]
    graph = build_graph({name: weights(w=(4, 4))["w"] for name in names[::-1]}, (4,))
    assert [node.inputs[1] for node in graph.sorted() if node.op == "linear"] == [
        names[1],
        names[2],
        names[3],
        names[0],
    ]
