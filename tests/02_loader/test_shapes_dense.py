"""Shapes of the operators on images and vectors: against what the reference operators really give, and misfits."""

from math import prod

import numpy as np
import pytest

from aie_loader import Graph, GraphShapeError, Node, infer_shapes
from aie_loader.shapes import infer_dtypes
from aie_tensor import DType, Matrix, ops

BATCH = 3


def matrix(*shape: int) -> Matrix:
    return Matrix.from_array(np.zeros(shape, dtype=np.float32))


def shape_of(node: Node, x: tuple[int | str, ...], **weights: tuple[int, ...]) -> tuple[int | str, ...]:
    graph = Graph(("x",), [node], (node.name,), {name: matrix(*shape) for name, shape in weights.items()})
    return infer_shapes(graph, {"x": x}).shapes[node.name]


def test_convolutions_and_pools_agree_with_what_is_computed() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        k, s, d = (tuple(map(int, random.integers(1, 4, 2))) for _ in range(3))
        p = tuple(int(random.integers(0, size // 2 + 1)) for size in k)
        size = tuple(int(random.integers(9, 14)) for _ in range(2))
        x = np.zeros((BATCH, 4, *size), dtype=np.float32)
        w = np.zeros((6, 2, *k), dtype=np.float32)
        conv = {"stride": s, "padding": p, "dilation": d, "groups": 2}
        assert shape_of(Node("y", "conv2d", ("x", "w"), conv), ("B", 4, *size), w=w.shape) == (
            "B",
            *ops.conv2d(x, w, **conv).shape[1:],
        )
        pool = {"stride": s, "padding": p, "ceil_mode": bool(random.integers(2))}
        for op, function in (("max_pool2d", ops.max_pool2d), ("avg_pool2d", ops.avg_pool2d)):
            given = shape_of(Node("y", op, ("x",), {"kernel": k, **pool}), ("B", 4, *size))
            assert given == ("B", *function(x, k, **pool).shape[1:]), (op, k, pool, size)


@pytest.mark.parametrize(
    ("op", "attrs", "x", "expected"),
    [
        ("flatten", {}, ("B", 3, 4, 5), ("B", 60)),
        ("reshape", {"shape": (6, -1)}, ("B", 3, 4), ("B", 6, 2)),
        ("transpose", {"axes": (0, 2, 1)}, ("B", 3, 4), ("B", 4, 3)),
        ("slice", {"axis": -1, "begin": 1, "end": 3}, ("B", 4), ("B", 2)),
        ("concat", {"axis": 1}, ("B", 4), ("B", 4)),
        ("reduce", {"kind": "mean", "axes": (1, -1)}, ("B", 3, 4, 5), ("B", 4)),
        ("reduce", {"kind": "max", "axes": (2,), "keep": True}, ("B", 3, 4), ("B", 3, 1)),
        ("softmax", {}, ("B", 9), ("B", 9)),
        ("top_k", {"k": 2, "want": "indices"}, ("B", 9), ("B", 2)),
        ("global_avg_pool", {}, ("B", 8, 3, 3), ("B", 8)),
        ("gelu", {}, ("B", 3, 4), ("B", 3, 4)),
        ("scale", {"factor": 0.5}, ("T", 4), ("T", 4)),
        ("pool_tokens", {"kind": "mean"}, ("T", 4), ("S", 4)),
        ("l2_normalize", {}, ("S", 4), ("S", 4)),
    ],
)
def test_shape(op, attrs, x, expected) -> None:
    assert shape_of(Node("y", op, ("x",), attrs), x) == expected


def test_a_signal_of_open_length_keeps_it_where_windows_and_elements_are_as_many() -> None:
    same = Node("y", "conv1d", ("x", "w"), {"padding": 2, "dilation": 2})
    assert shape_of(same, ("B", 4, "W"), w=(8, 4, 3)) == ("B", 8, "W")
    with pytest.raises(GraphShapeError, match="must know the length of the axis 'W'"):
        shape_of(Node("y", "conv1d", ("x", "w"), {"stride": 2}), ("B", 4, "W"), w=(8, 4, 3))


@pytest.mark.parametrize(
    ("op", "attrs", "x", "weights"),
    [
        ("conv2d", {}, ("B", 3, 8, 8), {"w": (4, 2, 3, 3)}),
        ("conv2d", {"groups": 3}, ("B", 3, 8, 8), {"w": (4, 1, 3, 3)}),
        ("conv2d", {}, ("B", 3, 2, 8), {"w": (4, 3, 3, 3)}),
        ("conv2d", {"stride": (0, 1)}, ("B", 3, 8, 8), {"w": (4, 3, 3, 3)}),
        ("conv2d", {}, ("B", 3, 8), {"w": (4, 3, 3)}),
        ("conv2d", {"padding": "same"}, ("B", 3, 8, 8), {"w": (4, 3, 3, 3)}),
        ("max_pool2d", {}, ("B", 3, 8, 8), {}),
        ("max_pool2d", {"kernel": (2, 2), "padding": (2, 0)}, ("B", 3, 8, 8), {}),
        ("batch_norm", {"eps": 1e-5}, ("B", 3, 8, 8), {"w": (3,)}),
        ("group_norm", {"eps": 1e-5, "groups": 2}, ("B", 3, 8), {"w": (3,), "b": (3,)}),
        ("layer_norm", {"eps": 1e-5}, ("T", 4), {"w": (3,)}),
        ("layer_norm", {"eps": 0.0}, ("T", 4), {"w": (4,)}),
        ("reshape", {"shape": (5, -1)}, ("B", 12), {}),
        ("reshape", {"shape": (-1, -1)}, ("B", 12), {}),
        ("reshape", {"shape": (3, 0)}, ("B", 12), {}),
        ("transpose", {"axes": (0, 0)}, ("B", 12), {}),
        ("slice", {"axis": 1, "begin": 3, "end": 13}, ("B", 12), {}),
        ("slice", {"axis": 2, "begin": 0, "end": 1}, ("B", 12), {}),
        ("concat", {"axis": 1}, ("B", 12), {"w": (3, 12, 1)}),
        ("reduce", {"kind": "median", "axes": (1,)}, ("B", 12), {}),
        ("reduce", {"kind": "sum", "axes": (2,)}, ("B", 12), {}),
        ("top_k", {"k": 13, "want": "values"}, ("B", 12), {}),
        ("nms", {"iou": 0.5}, ("N", 5), {"w": (3,)}),
        ("softcap", {"cap": -1.0}, ("T", 4), {}),
        ("pool_tokens", {"kind": "median"}, ("T", 4), {}),
    ],
)
def test_misfits_name_the_node(op, attrs, x, weights) -> None:
    with pytest.raises(GraphShapeError, match="'y'"):
        shape_of(Node("y", op, ("x", *weights), attrs), x, **weights)


def test_flattened_size_is_the_product() -> None:
    assert shape_of(Node("y", "flatten", ("x",), {"start_axis": 2}), ("B", 3, 4, 5)) == ("B", 3, prod((4, 5)))


def test_an_input_without_a_shape_is_asked_for() -> None:
    with pytest.raises(GraphShapeError, match="'pixels' has no shape"):
        infer_shapes(Graph(("pixels",), [Node("y", "relu", ("pixels",))], ("y",)))


def test_types_tell_indices_from_numbers() -> None:
    weights = {"table": matrix(5, 4)}
    nodes = [Node("x", "embedding", ("token_ids", "table")), Node("best", "top_k", ("x",), {"k": 1, "want": "indices"})]
    types = infer_dtypes(Graph(("token_ids",), nodes, ("best",), weights))
    assert types == {"token_ids": DType.I32, "x": DType.F32, "best": DType.I64}
    with pytest.raises(GraphShapeError, match="takes numbers there, but 'best' holds indices"):
        infer_dtypes(Graph(("token_ids",), [*nodes, Node("y", "relu", ("best",))], ("y",), weights))
    with pytest.raises(GraphShapeError, match="takes indices there, but 'x' holds numbers"):
        infer_dtypes(Graph(("token_ids",), [*nodes, Node("y", "embedding", ("x", "table"))], ("y",), weights))
