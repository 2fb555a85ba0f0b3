"""Kahn's algorithm: a valid, repeatable order for every sound graph, a named error for every other."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_loader import DuplicateNodeError, Graph, GraphCycleError, MissingInputError, Node
from aie_loader.rendering import render_text


def graph(edges: dict[str, str], outputs: tuple[str, ...] = ()) -> Graph:
    """`{"c": "a b"}`: node c reads a and b; `x` is the graph's input."""
    return Graph(("x",), [Node(name, "add", tuple(reads.split())) for name, reads in edges.items()], outputs)


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def test_order_follows_the_data_whatever_the_list() -> None:
    assert names(graph({"d": "b c", "c": "a", "b": "a", "a": "x"}).sorted()) == ["a", "c", "b", "d"]


def test_a_value_read_twice_by_one_node_is_two_edges() -> None:
    assert names(graph({"b": "a a", "a": "x x"}).sorted()) == ["a", "b"]


def test_empty_graph() -> None:
    assert graph({}).sorted() == []


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_any_acyclic_graph_is_ordered(num_nodes: int, rng: random.Random) -> None:
    reads = [[rng.randrange(i) for _ in range(rng.randrange(4))] if i else [] for i in range(num_nodes)]
    edges = {f"n{i}": " ".join(f"n{source}" for source in sources) for i, sources in enumerate(reads)}
    shuffled = dict(rng.sample(list(edges.items()), num_nodes))
    order = graph(shuffled).sorted()
    position = {name: index for index, name in enumerate(names(order))}
    assert len(order) == num_nodes
    assert all(position[name] < position[node.name] for node in order for name in node.inputs)
    assert order == graph(shuffled).sorted()


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": "a"}, {"a"}),
        ({"a": "b x", "b": "a"}, {"a", "b"}),
        ({"in": "x", "a": "c in", "b": "a", "c": "b", "behind": "c"}, {"a", "b", "c"}),
        ({"behind": "behind2", "behind2": "b", "a": "b", "b": "a"}, {"a", "b"}),
    ],
)
def test_a_cycle_is_named_in_full_and_alone(edges: dict[str, str], cycle: set[str]) -> None:
    with pytest.raises(GraphCycleError) as caught:
        graph(edges).sorted()
    found = caught.value.cycle
    assert set(found) == cycle and len(found) == len(cycle)
    for name, following in zip(found, [*found[1:], found[0]], strict=True):
        assert name in edges[following].split()  # along the data: each is read by the next
    assert " -> ".join([*found, found[0]]) in str(caught.value)


@given(st.integers(2, 30), st.randoms(use_true_random=False))
def test_closing_any_chain_is_found(length: int, rng: random.Random) -> None:
    begin = rng.randrange(length)
    edges = {f"n{i}": f"n{i - 1}" if i else "x" for i in range(length)}
    edges[f"n{begin}"] += f" n{length - 1}"
    with pytest.raises(GraphCycleError) as caught:
        graph(dict(rng.sample(list(edges.items()), length))).sorted()
    assert set(caught.value.cycle) == {f"n{i}" for i in range(begin, length)}


def test_long_cycles_are_shortened_in_the_message_only() -> None:
    with pytest.raises(GraphCycleError, match=r"… 261 more …") as caught:
        graph({f"n{i}": f"n{(i - 1) % 300}" for i in range(300)}).sorted()
    assert len(caught.value.cycle) == 300


def test_missing_input_names_node_and_value() -> None:
    with pytest.raises(MissingInputError, match=r"'b' \(add\) needs 'nowhere'"):
        graph({"b": "x nowhere"}).sorted()
    with pytest.raises(MissingInputError, match="output 'y'"):
        graph({"b": "x"}, outputs=("y",)).sorted()


def test_duplicates() -> None:
    with pytest.raises(DuplicateNodeError, match="'a'"):
        Graph(("x",), [Node("a", "add", ("x",)), Node("a", "mul", ("x",))], ("a",)).sorted()
    with pytest.raises(DuplicateNodeError, match="'x'"):
        graph({"x": "x"}).sorted()


def test_a_chain_of_a_million_nodes() -> None:
    count = 1_000_000
    nodes = [Node(f"n{i}", "silu", (f"n{i - 1}" if i else "x",)) for i in reversed(range(count))]
    start = time.perf_counter()
    order = Graph(("x",), nodes, (f"n{count - 1}",)).sorted()
    assert order[0].name == "n0" and order[-1].name == f"n{count - 1}"
    assert time.perf_counter() - start < 60  # seconds are normal; quadratic would take hours


def test_render_shows_operators_and_order() -> None:
    text = render_text(graph({"b": "a", "a": "x"}, outputs=("b",)))
    assert text.index("a ") < text.index("= add(x)") < text.index("= add(a)")
    assert "output  b" in text
    assert render_text(graph({"b": "a", "a": "x"}), "b").count("\n") == 0
