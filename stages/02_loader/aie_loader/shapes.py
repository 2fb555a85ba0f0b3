"""Shapes of every value in a graph, found by walking it once in executable order.

Axes: T tokens of the step (packed, all requests one after another), R rows whose logits are wanted; both symbolic.
C hidden, N/K output and reduction width of a projection, V vocabulary. Activations are 2-D, [T, width] or [R, width];
heads are not an axis here: attention reads them out of the width.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Graph, Node, Shape

__all__ = ["infer_shapes"]

GRAPH_INPUT_SHAPES: Mapping[str, Shape] = {"token_ids": ("T",), "positions": ("T",)}


def infer_shapes(graph: Graph) -> Graph:
    """The same graph with `shapes` filled in. GraphShapeError names the first node whose inputs do not fit."""
    shapes: dict[str, Shape] = {name: GRAPH_INPUT_SHAPES.get(name, ("T",)) for name in graph.inputs}
    shapes |= {name: matrix.shape for name, matrix in graph.weights.items()}
    for node in graph.sorted():
        rule = _RULES.get(node.op)
        if rule is None:
            known = ", ".join(_RULES)
            raise GraphShapeError(f"node {node.name!r} has the unknown operator {node.op!r}; known: {known}")
        shapes[node.name] = rule(node, [shapes[name] for name in node.inputs])
    return replace(graph, shapes=shapes)


def _wrong(node: Node, shapes: list[Shape], needs: str) -> GraphShapeError:
    given = ", ".join(f"{name} {list(shape)}" for name, shape in zip(node.inputs, shapes, strict=True))
    return GraphShapeError(f"node {node.name!r}: {node.op} needs {needs}; given {given}")


def _number(node: Node, key: str) -> int:
    value = node.attrs.get(key)
    if type(value) is not int or value <= 0:
        raise GraphShapeError(f"node {node.name!r}: {node.op} needs a positive integer {key}, not {value!r}")
    return value


def _embedding(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 2 or len(shapes[0]) != 1 or len(shapes[1]) != 2:
        raise _wrong(node, shapes, "ids [T] and a table [V, C]")
    return (shapes[0][0], shapes[1][1])


def _rms_norm(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 2 or len(shapes[0]) != 2 or shapes[1] != shapes[0][1:]:
        raise _wrong(node, shapes, "x [T, C] and a weight [C]")
    return shapes[0]


def _project(node: Node, shapes: list[Shape], num_weights: int) -> Shape:
    """x [T, K] by W [N, K], one or several side by side, then as many biases [N] or none."""
    if len(shapes) < 1 + num_weights:
        raise _wrong(node, shapes, f"x [T, K] and {num_weights} × W [N, K]")
    x, weights, biases = shapes[0], shapes[1 : 1 + num_weights], shapes[1 + num_weights :]
    fits = len(x) == 2 and all(len(w) == 2 and w[1] == x[1] for w in weights)
    if not fits or (biases and biases != [w[:1] for w in weights]):
        raise _wrong(node, shapes, f"x [T, K], {num_weights} × W [N, K] and no or {num_weights} × bias [N]")
    return (x[0], sum(w[0] for w in weights if isinstance(w[0], int)))


def _linear(node: Node, shapes: list[Shape]) -> Shape:
    return _project(node, shapes, 1)


def _linear_concat(node: Node, shapes: list[Shape]) -> Shape:
    return _project(node, shapes, _number(node, "num_weights"))


def _linear_add(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) < 3 or shapes[-1] != _project(node, shapes[:-1], 1):
        raise _wrong(node, shapes, "x [T, K], W [N, K], no or one bias [N], and last a residual [T, N]")
    return shapes[-1]


def _swiglu(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 3 or len(shapes[0]) != 2 or shapes[1] != shapes[2] or shapes[1][1:] != shapes[0][1:]:
        raise _wrong(node, shapes, "x [T, K] and two weights [N, K]")
    return (shapes[0][0], shapes[1][0])


def _rope(node: Node, shapes: list[Shape]) -> Shape:
    width = _number(node, "num_heads") * _number(node, "head_dim")
    if len(shapes) != 2 or shapes[0][1:] != (width,) or shapes[1] != shapes[0][:1]:
        raise _wrong(node, shapes, f"x [T, {width}] and positions [T]")
    return shapes[0]


def _attention(node: Node, shapes: list[Shape]) -> Shape:
    q, kv = (_number(node, key) * _number(node, "head_dim") for key in ("num_heads", "num_kv_heads"))
    if [shape[1:] for shape in shapes] != [(q,), (kv,), (kv,)] or len({shape[0] for shape in shapes}) != 1:
        raise _wrong(node, shapes, f"q [T, {q}], k [T, {kv}] and v [T, {kv}]")
    return shapes[0]


def _rope_attention(node: Node, shapes: list[Shape]) -> Shape:
    q, kv = (_number(node, key) * _number(node, "head_dim") for key in ("num_heads", "num_kv_heads"))
    if len(shapes) != 2 or shapes[0][1:] != (q + 2 * kv,) or shapes[1] != shapes[0][:1]:
        raise _wrong(node, shapes, f"qkv [T, {q + 2 * kv}] and positions [T]")
    return (shapes[0][0], q)


def _same(node: Node, shapes: list[Shape], num_inputs: int) -> Shape:
    if len(shapes) != num_inputs or any(shape != shapes[0] for shape in shapes):
        raise _wrong(node, shapes, f"{num_inputs} input(s) of one shape")
    return shapes[0]


def _select_rows(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise _wrong(node, shapes, "x [T, C]")
    return ("R", shapes[0][1])


_RULES: Mapping[str, Callable[[Node, list[Shape]], Shape]] = {
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "linear_concat": _linear_concat,
    "linear_add": _linear_add,
    "swiglu": _swiglu,
    "rope": _rope,
    "attention": _attention,
    "rope_attention": _rope_attention,
    "silu": lambda node, shapes: _same(node, shapes, 1),
    "mul": lambda node, shapes: _same(node, shapes, 2),
    "add": lambda node, shapes: _same(node, shapes, 2),
    "select_rows": _select_rows,
}
