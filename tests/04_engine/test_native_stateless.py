"""The fast executor of graphs without a cache against the plain one; company, cuts and threads change no bit."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors import NativeStatelessExecutor, StatelessExecutor, make_stateless_executor
from aie_loader import Graph, Node, infer_shapes
from aie_tensor import InvalidInputError, Matrix, MemoryPool, NativeUnavailableError, native

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def library():
    try:
        return native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(library):
    """Runs a graph natively once."""

    def once(graph, inputs, starts=None, **options):
        executor = NativeStatelessExecutor(graph, library, **{"num_threads": 2, **options})
        try:
            return executor.run(inputs, starts)
        finally:
            executor.close()

    return once


def weights(**shapes):
    random = np.random.default_rng(0)
    return {
        name: Matrix.from_array(random.standard_normal(shape, dtype=np.float32) / 2) for name, shape in shapes.items()
    }


def encoder(pooling="mean", heads=4, kv_heads=4, head_dim=20):
    """One layer, pooled."""
    width, kv = heads * head_dim, kv_heads * head_dim
    w = weights(
        table=(50, width), places=(700, width), types=(2, width), g=(width,), b=(width,), q=(width, width),
        k=(kv, width), v=(kv, width), o=(width, width), bo=(width,),
    )  # fmt: skip
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    nodes = [
        Node("words", "embedding", ("token_ids", "table")),
        Node("where", "embedding", ("positions", "places")),
        Node("which", "embedding", ("token_types", "types")),
        Node("sum", "add", ("words", "where")),
        Node("x", "add", ("sum", "which")),
        Node("h", "layer_norm", ("x", "g", "b"), {"eps": 1e-12}),
        Node("hq", "linear", ("h", "q")),
        Node("hk", "linear", ("h", "k")),
        Node("hv", "linear", ("h", "v")),
        Node("mixed", "encoder_attention", ("hq", "hk", "hv"), sizes),
        Node("out", "linear", ("mixed", "o", "bo")),
        Node("y", "gelu", ("out",)),
        Node("pooled", "pool_tokens", ("y",), {"kind": pooling}),
        Node("unit", "l2_normalize", ("pooled",)),
    ]
    return infer_shapes(Graph(("token_ids", "positions", "token_types"), nodes, ("y", "unit"), w))


def texts(lengths):
    """Inputs of packed texts, and where they begin."""
    random = np.random.default_rng(len(lengths))
    total = sum(lengths)
    inputs = {
        "token_ids": random.integers(0, 50, total),
        "positions": np.concatenate([np.arange(n) for n in lengths]),
        "token_types": random.integers(0, 2, total),
    }
    return inputs, np.cumsum([0, *lengths])


def close(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        assert found[name].shape == expected[name].shape and found[name].dtype == expected[name].dtype, name
        bound = 1e-5 * max(1.0, float(np.abs(expected[name]).max(initial=0)))
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=bound, err_msg=name)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
@pytest.mark.parametrize("heads", [(4, 4, 20), (6, 2, 16), (2, 2, 64)])
def test_encoders_match_numpy(run, pooling, heads):
    graph = encoder(pooling, *heads)
    inputs, starts = texts([3, 1, 40, 17, 300])
    close(run(graph, inputs, starts), StatelessExecutor(graph).run(inputs, starts))


def test_a_sequences_bits_do_not_depend_on_company_cuts_or_threads(run):
    graph, lengths = encoder(), [5, 1, 600, 33, 64, 2]
    inputs, starts = texts(lengths)
    together = run(graph, inputs, starts, num_threads=3)
    cut = run(graph, inputs, starts, max_tokens=600, num_threads=1)  # as many parts as it takes
    for name in together:
        np.testing.assert_array_equal(cut[name], together[name])
    for s, (begin, end) in enumerate(pairwise(starts)):
        alone = run(graph, {name: array[begin:end] for name, array in inputs.items()})
        np.testing.assert_array_equal(alone["y"], together["y"][begin:end])
        np.testing.assert_array_equal(alone["unit"][0], together["unit"][s])


def test_an_executor_may_run_again_and_gives_everything_back(library):
    graph, pool = encoder(), MemoryPool()
    executor = NativeStatelessExecutor(graph, library, num_threads=2, pool=pool, profile=True)
    inputs, starts = texts([9, 30])
    first, second = executor.run(inputs, starts), executor.run(inputs, starts)
    executor.run(*texts([2]))
    np.testing.assert_array_equal(first["unit"], second["unit"])  # a copy: later runs did not write over it
    assert {name for name, _, _ in executor.profile()} >= {"linear", "encoder_attention", "layer_norm"}
    executor.close()
    executor.close()
    assert pool.stats().live_bytes == 0


@pytest.mark.parametrize(
    ("change", "starts", "match"),
    [
        ({"token_ids": np.array([50, 1, 1])}, None, "token_ids must lie in 0…49"),
        ({"token_types": np.array([0, -1, 1])}, None, "token_types"),
        ({"positions": np.array([0.5, 1, 1])}, None, "indices"),
        ({}, [0, 0, 3], "seq_starts"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(run, change, starts, match):
    inputs, _ = texts([3])
    with pytest.raises(InvalidInputError, match=match):
        run(encoder(), inputs | change, starts)


def test_too_long_a_sequence_is_refused_with_the_limit(run):
    inputs, starts = texts([3, 33])
    with pytest.raises(InvalidInputError, match="33 tokens is too long: at most 32"):
        run(encoder(), inputs, starts, max_tokens=32)


def dense(nodes, shape, outputs, w=None):
    return infer_shapes(Graph(("x",), nodes, outputs, w or {}), {"x": shape})


CONVS = [
    ("conv2d", (3, 9, 11), (5, 3, 3, 3), {}),
    ("conv2d", (3, 9, 11), (40, 3, 3, 3), {"padding": (1, 1), "stride": (2, 1)}),
    ("conv2d", (6, 12, 9), (10, 3, 2, 3), {"groups": 2, "dilation": (2, 3), "padding": (3, 2)}),
    ("conv2d", (8, 7, 7), (8, 1, 3, 3), {"groups": 8, "padding": (1, 1)}),
    ("conv2d", (64, 5, 5), (33, 64, 1, 1), {"stride": (2, 2)}),
    ("conv2d", (40, 4, 3), (70, 40, 3, 3), {"padding": (1, 1)}),  # longer sums than one chunk
    ("conv2d", (8, 13, 11), (6, 4, 1, 1), {"groups": 2}),
    ("conv2d", (8, 3, 3), (6, 8, 1, 1), {"padding": (1, 1)}),
    ("conv1d", (4, 30), (6, 4, 5), {"stride": 2, "padding": 2, "dilation": 2}),
    ("conv1d", (4, 30), (6, 2, 5), {"groups": 2}),
]


@pytest.mark.parametrize(("op", "shape", "kernels", "attrs"), CONVS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolutions_match_numpy_and_depend_on_nothing_else(run, op, shape, kernels, attrs, with_bias):
    w = weights(k=kernels, b=kernels[:1])
    names = ("x", "k", "b") if with_bias else ("x", "k")
    graph = dense([Node("y", op, names, attrs)], ("B", *shape), ("y",), w)
    x = np.random.default_rng(1).standard_normal((5, *shape), dtype=np.float32)
    found = run(graph, {"x": x}, max_items=3)
    close(found, StatelessExecutor(graph).run({"x": x}))
    alone = run(graph, {"x": x[4:]}, num_threads=1)
    np.testing.assert_array_equal(alone["y"][0], found["y"][4])


IMAGE = ("B", 6, 9, 8)
OPERATORS = [
    Node("y", "max_pool2d", ("x",), {"kernel": (3, 2)}),
    Node("y", "max_pool2d", ("x",), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": True}),
    Node("y", "max_pool2d", ("x",), {"kernel": (2, 2), "stride": (1, 2), "dilation": (2, 3)}),
    Node("y", "avg_pool2d", ("x",), {"kernel": (3, 3), "stride": (2, 3), "padding": (1, 1)}),
    Node(
        "y", "avg_pool2d", ("x",), {"kernel": (2, 3), "padding": (1, 1), "ceil_mode": True, "count_include_pad": False}
    ),
    Node("y", "avg_pool2d", ("x",), {"kernel": (2, 3), "stride": (2, 2), "ceil_mode": True}),
    Node("y", "global_avg_pool", ("x",)),
    Node("y", "batch_norm", ("x", "w", "b", "m", "v"), {"eps": 1e-5}),
    Node("y", "group_norm", ("x", "w", "b"), {"groups": 3, "eps": 1e-5}),
    Node("y", "layer_norm", ("x", "last", "last"), {"eps": 1e-5}),
    Node("y", "l2_normalize", ("x",)),
    Node("y", "gelu_tanh", ("x",)),
    Node("y", "transpose", ("x",), {"axes": (0, 2, 3, 1)}),
    Node("y", "transpose", ("x",), {"axes": (0, 1, 3, 2)}),
    Node("y", "slice", ("x",), {"axis": 2, "begin": 3, "end": 7}),
    Node("y", "slice", ("x",), {"axis": -1, "end": 5}),
    Node("y", "reshape", ("x",), {"shape": (3, -1, 4)}),
    Node("y", "flatten", ("x",)),
    Node("y", "flatten", ("x",), {"start_axis": 2}),
    Node("y", "reduce", ("x",), {"kind": "mean", "axes": (2, 3)}),
    Node("y", "reduce", ("x",), {"kind": "sum", "axes": (1,), "keep": True}),
    Node("y", "reduce", ("x",), {"kind": "max", "axes": (1, 3)}),
    Node("y", "reduce", ("x",), {"kind": "max", "axes": (1, 2, 3)}),
    Node("y", "softmax", ("x",)),
    Node("y", "softmax", ("x",), {"axis": 1}),
    Node("y", "log_softmax", ("x",), {"axis": 2}),
    Node("y", "top_k", ("x",), {"k": 3, "want": "values"}),
    Node("y", "top_k", ("x",), {"k": 8, "want": "indices"}),
]


@pytest.mark.parametrize("node", OPERATORS, ids=lambda node: f"{node.op}-{len(node.attrs)}")
@pytest.mark.parametrize("batched", [True, False])
def test_dense_operators_match_numpy(run, node, batched):
    w = weights(w=(6,), b=(6,), m=(6,), v=(6,), last=(8,))
    w["v"] = Matrix.from_array(np.abs(w["v"].dequantize()) + 1)
    used = {name: matrix for name, matrix in w.items() if name in node.inputs}
    x = np.random.default_rng(1).standard_normal((4, *IMAGE[1:]), dtype=np.float32)
    x[0, 0] = 1.0  # ties
    graph = dense([node], IMAGE if batched else (4, *IMAGE[1:]), ("y",), used)
    found = run(graph, {"x": x}, max_items=3)
    close(found, StatelessExecutor(graph).run({"x": x}))
    if batched:
        np.testing.assert_array_equal(run(graph, {"x": x[3:]}, num_threads=1)["y"][0], found["y"][3])


def test_concatenation_shapes_that_cost_nothing_and_several_outputs(run):
    nodes = [
        Node("a", "slice", ("x",), {"axis": 1, "begin": 2, "end": 5}),
        Node("cat", "concat", ("x", "a", "x"), {"axis": 1}),
        Node("flat", "flatten", ("cat",)),
        Node("deep", "reshape", ("flat",), {"shape": (5, -1)}),
        Node("h", "linear", ("flat", "w")),
        Node("r", "relu", ("h",)),
        Node("sum", "reduce", ("deep",), {"kind": "sum", "axes": (2,)}),
    ]
    graph = dense(nodes, ("B", 6, 2, 5), ("r", "deep", "sum", "x"), weights(w=(7, 150)))
    x = np.random.default_rng(2).standard_normal((3, 6, 2, 5), dtype=np.float32)
    close(run(graph, {"x": x}), StatelessExecutor(graph).run({"x": x}))


def test_along_the_first_axis_of_a_fixed_shape(run):
    nodes = [
        Node("t", "transpose", ("x",), {"axes": (1, 0)}),
        Node("c", "concat", ("x", "x"), {"axis": 0}),
        Node("s", "softmax", ("x",), {"axis": 0}),
        Node("total", "reduce", ("x",), {"kind": "sum", "axes": (0,)}),
        Node("all", "reduce", ("x",), {"kind": "sum", "axes": (0, 1)}),
        Node("first", "slice", ("x",), {"axis": 0, "begin": 1, "end": 3}),
        Node("flat", "flatten", ("x",), {"start_axis": 0}),
    ]
    graph = dense(nodes, (4, 6), tuple(node.name for node in nodes))
    x = np.random.default_rng(3).standard_normal((4, 6), dtype=np.float32)
    close(run(graph, {"x": x}), StatelessExecutor(graph).run({"x": x}))


def test_non_maximum_suppression_over_all_parts(run):
    random = np.random.default_rng(4)
    corner, size = random.random((40, 2), dtype=np.float32), random.random((40, 2), dtype=np.float32) / 2
    x = np.concatenate([corner, corner + size, random.random((40, 1), dtype=np.float32).round(1)], axis=1)
    nodes = [
        Node("boxes", "slice", ("x",), {"axis": 1, "end": 4}),
        Node("column", "slice", ("x",), {"axis": 1, "begin": 4, "end": 5}),
        Node("scores", "reduce", ("column",), {"kind": "sum", "axes": (1,)}),
        Node("kept", "nms", ("boxes", "scores"), {"iou": 0.3}),
        Node("few", "nms", ("boxes", "scores"), {"iou": 0.3, "max_output": 4}),
    ]
    graph = dense(nodes, ("B", 5), ("kept", "few"))
    found = run(graph, {"x": x}, max_items=16)
    expected = StatelessExecutor(graph).run({"x": x})
    assert found["kept"].tolist() == expected["kept"].tolist() and 4 < len(found["kept"]) < 40
    assert found["few"].tolist() == expected["few"].tolist()


def test_nan_goes_through_pools_and_reductions(run):
    x = np.random.default_rng(5).standard_normal((1, 2, 4, 4), dtype=np.float32)
    x[0, 0, 1, 1] = np.nan
    nodes = [
        Node("p", "max_pool2d", ("x",), {"kernel": (2, 2)}),
        Node("m", "reduce", ("x",), {"kind": "max", "axes": (2, 3)}),
        Node("k", "top_k", ("x",), {"k": 4, "want": "indices"}),
    ]
    graph = dense(nodes, ("B", 2, 4, 4), ("p", "m", "k"))
    found, expected = run(graph, {"x": x}), StatelessExecutor(graph).run({"x": x})
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def test_an_empty_batch(run):
    graph = dense([Node("y", "relu", ("x",))], ("B", 3), ("y",))
    assert run(graph, {"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    "node",
    [
        Node("y", "softmax", ("x",), {"axis": 0}),
        Node("y", "transpose", ("x",), {"axes": (1, 0)}),
        Node("y", "concat", ("x",), {"axis": 1, "fill": 0}),
    ],
    ids=lambda node: node.op,
)
def test_what_has_no_kernel_is_refused_and_nothing_is_kept(library, node):
    pool = MemoryPool()
    with pytest.raises(UnsupportedOpError, match=node.op):
        NativeStatelessExecutor(dense([node], ("B", 3), ("y",)), library, num_threads=1, pool=pool)
    assert pool.stats().live_bytes == 0


def test_the_plain_executor_stands_in_where_a_kernel_is_missing(library):
    graph = dense([Node("y", "softmax", ("x",), {"axis": 0})], ("B", 3), ("y",))
    lines = []
    executor = make_stateless_executor(graph, report=lines.append)
    assert isinstance(executor, StatelessExecutor) and "NumPy" in lines[-1] and "softmax" in lines[-1]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(executor.run({"x": x})["y"], 0.5)
    with pytest.raises(UnsupportedOpError, match="softmax"):
        make_stateless_executor(graph, kernels="native")
    assert isinstance(make_stateless_executor(graph, kernels="numpy"), StatelessExecutor)
    fast = make_stateless_executor(dense([Node("y", "relu", ("x",))], ("B", 3), ("y",)), num_threads=1, max_items=1)
    assert isinstance(fast, NativeStatelessExecutor)
    np.testing.assert_array_equal(fast.run({"x": x})["y"], x)
    fast.close()


def test_without_threads_to_pack_ahead_each_matrix_is_packed_where_it_is_used(run, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    graph = encoder()
    inputs, starts = texts([3, 8])
    close(run(graph, inputs, starts), StatelessExecutor(graph).run(inputs, starts))
