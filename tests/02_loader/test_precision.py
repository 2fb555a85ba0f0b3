"""Precisions: what a matrix becomes, how far it is off, and which of a graph's weights are concerned."""

import numpy as np
import numpy.typing as npt
import pytest

from aie_loader import Graph, Node, infer_shapes
from aie_loader.passes import WeightConverter, convert_weights
from aie_loader.precision import PRECISIONS, convert_matrix, find_precision, stored_dtype
from aie_tensor import DType, InvalidInputError, Matrix, quantize

VALUES = np.random.default_rng(0).standard_normal((40, 160)).astype(np.float32)
MATRIX = Matrix.from_array(VALUES)


def scales(matrix: Matrix) -> npt.NDArray[np.float16]:
    """[N, b] of a Q8_0 matrix."""
    blocks = matrix.data.reshape(matrix.shape[0], -1, 34)
    return np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", DType.F32), ("fp16", DType.F16), ("bf16", DType.BF16), ("int8", DType.Q8_0), ("int4", DType.Q4_1)],
)
def test_plain_kinds_are_those_of_the_format(name: str, dtype: DType) -> None:
    made = convert_matrix(MATRIX, find_precision(name))
    expected = quantize(VALUES, dtype)
    assert (made.dtype, made.shape, bytes(made.data)) == (dtype, MATRIX.shape, bytes(expected.data))
    assert convert_matrix(made, find_precision(name)) is made


@pytest.mark.parametrize("name", PRECISIONS)
def test_error_is_at_most_half_a_step(name: str) -> None:
    made = convert_matrix(MATRIX, find_precision(name)).dequantize()
    error = np.abs(made - VALUES)
    blocks = np.abs(VALUES).reshape(40, 5, 32)
    largest = {"int8": blocks.max(axis=2), "int8-row": np.abs(VALUES).max(axis=1, keepdims=True)}
    largest["int8-64"] = np.repeat(np.maximum.reduceat(blocks.max(axis=2), [0, 2, 4], axis=1), [2, 2, 1], axis=1)
    spread = VALUES.reshape(40, 5, 32).max(axis=2) - VALUES.reshape(40, 5, 32).min(axis=2)
    # Half a step, and what rounding the scale to half precision moves the outermost level by.
    steps = {kind: values / 127 for kind, values in largest.items()} | {"int4": spread / 15}
    relative = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}
    if name in relative:
        assert (error <= relative[name] * np.abs(VALUES)).all()
    else:
        half = np.broadcast_to(steps[name], (40, 5))[..., None] * (0.5 + 127 * 2.0**-11) + 2.0**-9
        assert (error.reshape(40, 5, 32) <= half).all()
        assert error.max() > 0


def test_wider_groups_share_one_scale() -> None:
    rows, pairs = (scales(convert_matrix(MATRIX, find_precision(name))) for name in ("int8-row", "int8-64"))
    assert (rows == rows[:, :1]).all()
    assert (pairs[:, 0] == pairs[:, 1]).all() and (pairs[:, 2] == pairs[:, 3]).all()
    assert (pairs[:, 1] != pairs[:, 2]).any() and (pairs[:, 4] != pairs[:, 3]).any()  # the last is alone
    expected = (np.abs(VALUES).max(axis=1) / np.float32(127)).astype(np.float16)
    np.testing.assert_array_equal(rows[:, 0], expected)


def test_a_coarser_scale_costs_precision() -> None:
    errors = [
        float(((convert_matrix(MATRIX, find_precision(name)).dequantize() - VALUES) ** 2).mean())
        for name in ("int8", "int8-64", "int8-row", "int4")
    ]
    assert errors == sorted(errors) and errors[0] < errors[-1] / 10


def test_levels_by_hand() -> None:
    """Scale 1 for the row: values are their own levels; a half goes to the even neighbour."""
    row = np.zeros((1, 64), np.float32)
    row[0, :4], row[0, 40] = [1, -2, 2.5, 0.4], 127
    made = convert_matrix(Matrix.from_array(row), find_precision("int8-row"))
    np.testing.assert_array_equal(made.dequantize()[0, :4], [1, -2, 2, 0])
    assert (scales(made) == 1).all()


def test_all_zero_and_tiny_rows() -> None:
    values = np.zeros((3, 64), np.float32)
    values[1] = 1e-9  # smaller than any half-precision scale
    values[2, 0] = 1e-5
    made = convert_matrix(Matrix.from_array(values), find_precision("int8-row")).dequantize()
    np.testing.assert_allclose(made, values, atol=5e-6)
    assert (made[:2] == 0).all()


@pytest.mark.parametrize("name", ["int8", "int8-row", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_what_no_block_can_hold(name: str, bad: float) -> None:
    values = VALUES.copy()
    values[1, 1] = bad
    with pytest.raises(InvalidInputError, match="cannot quantize"):
        convert_matrix(Matrix.from_array(values), find_precision(name))


def test_fp16_says_where_it_ends() -> None:
    values = VALUES.copy()
    values[0, 0] = 7e4
    with pytest.raises(InvalidInputError, match=r"fp16 ends at 65504, but a weight is 70000; choose bf16"):
        convert_matrix(Matrix.from_array(values), find_precision("fp16"))
    assert convert_matrix(Matrix.from_array(values), find_precision("bf16")).dequantize()[0, 0] > 6e4


def test_rows_without_whole_blocks() -> None:
    odd = Matrix.from_array(VALUES[:, :50])
    assert stored_dtype(odd, find_precision("int4")) is DType.F16
    assert convert_matrix(odd, find_precision("int4")).dtype is DType.F16


def test_large_matrices_are_converted_in_pieces() -> None:
    values = np.random.default_rng(1).standard_normal((33, 1 << 15)).astype(np.float32)  # 32 rows make a piece
    made = convert_matrix(Matrix.from_array(values), find_precision("int8"))
    assert bytes(made.data) == bytes(quantize(values, DType.Q8_0).data)


def test_unknown_names_are_answered_with_the_known() -> None:
    with pytest.raises(InvalidInputError, match=r"precision is 'int3'; choose one of fp32, fp16"):
        find_precision("int3")


def tiny_graph() -> Graph:
    weights = {
        "table": Matrix.from_array(VALUES[:, :32]),
        "norm": Matrix.from_array(VALUES[0, :32].astype(np.float16)),
        "up": Matrix.from_array(VALUES[:50, :32]),
        "down": Matrix.from_array(VALUES[:32, :40]),
        "bias": quantize(VALUES[0, :32], DType.BF16),
        "head": Matrix.from_array(VALUES[:, :32]),
    }
    nodes = [
        Node("x", "embedding", ("token_ids", "table")),
        Node("h", "rms_norm", ("x", "norm"), {"eps": 1e-5}),
        Node("u", "linear", ("h", "up")),
        Node("d", "linear", ("u", "down", "bias")),
        Node("last", "select_rows", ("d",)),
        Node("logits", "linear", ("last", "head")),
    ]
    return infer_shapes(Graph(("token_ids", "positions"), nodes, ("logits",), weights))


def test_which_weights_of_a_graph_become_what() -> None:
    notes: list[str] = []
    graph = tiny_graph()
    converted = convert_weights(graph, find_precision("int4"), note=notes.append)
    kinds = {name: matrix.dtype for name, matrix in converted.weights.items()}
    assert kinds == {
        "table": DType.Q8_0, "head": DType.Q8_0, "up": DType.Q4_1, "down": DType.F16, "norm": DType.F32,
        "bias": DType.F32,
    }  # fmt: skip
    assert notes == ["down is in fp16: its rows of 40 do not fill blocks of 32."]
    assert converted.nodes is graph.nodes
    converter = WeightConverter(graph, find_precision("int4"))
    assert converter.nbytes == sum(matrix.nbytes for matrix in converted.weights.values())


def test_a_table_that_is_also_the_head_is_an_end() -> None:
    graph = tiny_graph()
    nodes = [*graph.nodes[:-1], Node("logits", "linear", ("last", "table"))]
    tied = infer_shapes(Graph(graph.inputs, nodes, graph.outputs, graph.weights))
    assert convert_weights(tied, find_precision("int4")).weights["table"].dtype is DType.Q8_0
