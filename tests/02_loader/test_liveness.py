"""The memory plan: no two living values overlap, and a chain of layers needs no more than one layer does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_loader import Graph, Lifetime, Node, bound_nbytes, infer_shapes, lifetimes, plan_memory
from aie_tensor import InvalidInputError, Matrix


def chain(*edges: tuple[str, tuple[str, ...]]) -> list[Node]:
    return [Node(name, "add", inputs, {}) for name, inputs in edges]


def test_a_value_lives_from_its_node_to_its_last_reader() -> None:
    nodes = chain(("a", ("ids",)), ("b", ("a", "w")), ("c", ("b", "a")), ("d", ("c",)))
    lives = {life.name: (life.first, life.last) for life in lifetimes(nodes, ["d"], lambda name: 64)}
    assert lives == {"a": (0, 2), "b": (1, 2), "c": (2, 3), "d": (3, 4)}


def test_an_unread_value_lives_while_it_is_made() -> None:
    (life,) = lifetimes(chain(("a", ("ids",))), [], lambda name: 8)
    assert (life.first, life.last) == (0, 0)


def test_a_chain_takes_two_buffers_however_long() -> None:
    nodes = chain(("x0", ("ids",)), *((f"x{i}", (f"x{i - 1}",)) for i in range(1, 100)))
    plan = plan_memory(lifetimes(nodes, ["x99"], lambda name: 640))
    assert plan.total_bytes == 2 * 640


def test_a_small_value_fits_into_a_gap_between_large_ones() -> None:
    plan = plan_memory([Lifetime("a", 0, 1, 1024), Lifetime("b", 1, 2, 512), Lifetime("c", 2, 3, 1000)])
    assert plan.offsets["a"] == plan.offsets["c"] == 0
    assert plan.total_bytes == 1024 + 512


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(0, 5000)), max_size=30))
def test_values_that_meet_in_time_never_overlap_in_space(spans: list[tuple[int, int, int]]) -> None:
    values = [Lifetime(str(i), first, first + length, nbytes) for i, (first, length, nbytes) in enumerate(spans)]
    plan = plan_memory(values)
    for value in values:
        begin, end = plan.offsets[value.name], plan.offsets[value.name] + value.nbytes
        assert begin % 64 == 0 and end <= plan.total_bytes
        for other in values:
            if other.name != value.name and value.meets(other):
                assert end <= plan.offsets[other.name] or plan.offsets[other.name] + other.nbytes <= begin
    if values:
        moments = range(max(value.last for value in values) + 1)
        busiest = max(sum(v.nbytes for v in values if v.first <= moment <= v.last) for moment in moments)
        assert plan.total_bytes >= busiest


def test_sizes_are_bound_for_a_step_of_a_given_length() -> None:
    weights = {"w": Matrix.from_array(np.zeros((6, 4), np.float32))}
    nodes = [Node("y", "linear", ("x", "w")), Node("best", "top_k", ("y",), {"k": 2, "want": "indices"})]
    graph = infer_shapes(Graph(("x",), nodes, ("best",), weights), {"x": ("B", 4)})
    nbytes = bound_nbytes(graph, B=5)
    assert (nbytes("x"), nbytes("y"), nbytes("best")) == (80, 120, 80)
    assert plan_memory(lifetimes(graph.sorted(), graph.outputs, nbytes)).total_bytes == 128 + 80
    with pytest.raises(InvalidInputError, match="depends on B"):
        bound_nbytes(graph)("y")
