"""The executor of graphs without a cache: packed sequences do not see each other, inputs are checked."""

import numpy as np
import pytest

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.stateless import StatelessExecutor
from aie_loader import Graph, Node, infer_shapes
from aie_tensor import InvalidInputError, Matrix, ops


def weights(**shapes: tuple[int, ...]) -> dict[str, Matrix]:
    random = np.random.default_rng(0)
    return {name: Matrix.from_array(random.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


def encoder() -> Graph:
    """One layer of two heads of four, mean-pooled."""
    w = weights(table=(9, 8), places=(12, 8), g=(8,), b=(8,), q=(8, 8), k=(8, 8), v=(8, 8), bq=(8,))
    heads = {"num_heads": 2, "head_dim": 4, "scale": 0.5}
    nodes = [
        Node("words", "embedding", ("token_ids", "table")),
        Node("where", "embedding", ("positions", "places")),
        Node("x", "add", ("words", "where")),
        Node("h", "layer_norm", ("x", "g", "b"), {"eps": 1e-12}),
        Node("hq", "linear", ("h", "q", "bq")),
        Node("hk", "linear", ("h", "k")),
        Node("hv", "linear", ("h", "v")),
        Node("mixed", "encoder_attention", ("hq", "hk", "hv"), heads),
        Node("y", "gelu", ("mixed",)),
        Node("pooled", "pool_tokens", ("y",), {"kind": "mean"}),
        Node("unit", "l2_normalize", ("pooled",)),
    ]
    return infer_shapes(Graph(("token_ids", "positions"), nodes, ("unit",), w))


def test_packed_sequences_give_the_bits_that_each_gives_alone() -> None:
    executor = StatelessExecutor(encoder())
    texts = [[1, 2, 3], [4], [5, 6, 7, 8, 0, 1, 2]]
    alone = [executor.run({"token_ids": np.array(t), "positions": np.arange(len(t))})["unit"] for t in texts]
    ids, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts)])
    positions = np.concatenate([np.arange(len(text)) for text in texts])
    together = executor.run({"token_ids": ids, "positions": positions}, starts)["unit"]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-6)


def test_an_image_classifier() -> None:
    w = weights(k=(4, 3, 3, 3), kb=(4,), fc=(5, 4 * 4 * 4), fb=(5,))
    nodes = [
        Node("c", "conv2d", ("image", "k", "kb"), {"padding": (1, 1)}),
        Node("r", "relu", ("c",)),
        Node("p", "max_pool2d", ("r",), {"kernel": (2, 2)}),
        Node("f", "flatten", ("p",)),
        Node("logits", "linear", ("f", "fc", "fb")),
        Node("best", "top_k", ("logits",), {"k": 2, "want": "indices"}),
    ]
    graph = infer_shapes(Graph(("image",), nodes, ("logits", "best"), w), {"image": ("B", 3, 8, 8)})
    image = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    out = StatelessExecutor(graph).run({"image": image})
    a = {name: matrix.dequantize() for name, matrix in w.items()}
    features = ops.max_pool2d(ops.relu(ops.conv2d(image, a["k"], a["kb"], padding=(1, 1))), (2, 2), stride=(2, 2))
    expected = features.reshape(2, -1) @ a["fc"].T + a["fb"]
    np.testing.assert_allclose(out["logits"], expected, rtol=1e-5, atol=1e-6)
    assert out["best"].tolist() == np.argsort(-expected, axis=1)[:, :2].tolist()


@pytest.mark.parametrize(
    ("inputs", "starts", "match"),
    [
        ({"token_ids": np.array([1])}, None, "takes token_ids, positions"),
        ({"token_ids": np.array([1]), "positions": np.array([0, 1])}, None, "positions must be"),
        ({"token_ids": np.array([[1]]), "positions": np.array([0])}, None, "token_ids must be"),
        ({"token_ids": np.array([1.5]), "positions": np.array([0])}, None, "holds indices"),
        ({"token_ids": np.array([1, 2]), "positions": np.array([0, 1])}, [0, 2, 2], "seq_starts"),
        ({"token_ids": np.array([1, 2]), "positions": np.array([0, 1])}, [0, 1], "seq_starts"),
        ({"token_ids": np.array([9]), "positions": np.array([0])}, None, "9"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, starts, match) -> None:
    with pytest.raises(InvalidInputError, match=match):
        StatelessExecutor(encoder()).run(inputs, starts)


def test_a_graph_that_needs_a_cache_is_refused() -> None:
    w = weights(table=(9, 8))
    nodes = [Node("x", "embedding", ("token_ids", "table")), Node("last", "select_rows", ("x",))]
    with pytest.raises(UnsupportedOpError, match="select_rows"):
        StatelessExecutor(infer_shapes(Graph(("token_ids",), nodes, ("last",), w)))
