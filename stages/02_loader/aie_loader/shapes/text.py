"""Shapes of the operators on text. Activations are packed and 2-D, [T, width] or [R, width].

Axes: T tokens of the step (all sequences one after another), R rows whose logits are wanted, S sequences; all three
symbolic. C hidden, N/K output and reduction width of a projection, V vocabulary. Heads are not an axis here: attention
reads them out of the width.
"""

from collections.abc import Mapping

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Node, Shape
from aie_loader.shapes.checking import Rule, number, one_of, real, reals, signed, wrong

__all__ = ["TEXT_RULES"]


def _embedding(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 2 or len(shapes[0]) != 1 or len(shapes[1]) != 2:
        raise wrong(node, shapes, "ids [T] and a table [V, C]")
    real(node, "scale", 1.0)
    return (shapes[0][0], shapes[1][1])


def _rms_norm(node: Node, shapes: list[Shape]) -> Shape:
    heads = number(node, "num_heads", 1)
    real(node, "eps")
    signed(node, "offset", 0.0)
    if len(shapes) != 2 or len(shapes[0]) != 2 or len(shapes[1]) != 1 or shapes[0][1:] != _times(shapes[1], heads):
        raise wrong(node, shapes, "x [T, C] and a weight [C]" if heads == 1 else f"x [T, {heads}·D] and a weight [D]")
    return shapes[0]


def _times(shape: Shape, factor: int) -> Shape:
    return tuple(size * factor if isinstance(size, int) else size for size in shape)


def _project(node: Node, shapes: list[Shape], num_weights: int) -> Shape:
    """x [T, K] by W [N, K], one or several side by side, then as many biases [N] or none."""
    if len(shapes) < 1 + num_weights:
        raise wrong(node, shapes, f"x [T, K] and {num_weights} × W [N, K]")
    x, weights, biases = shapes[0], shapes[1 : 1 + num_weights], shapes[1 + num_weights :]
    fits = len(x) == 2 and all(len(w) == 2 and w[1] == x[1] for w in weights)
    if not fits or (biases and biases != [w[:1] for w in weights]):
        raise wrong(node, shapes, f"x [T, K], {num_weights} × W [N, K] and no or {num_weights} × bias [N]")
    return (x[0], sum(w[0] for w in weights if isinstance(w[0], int)))


def _linear(node: Node, shapes: list[Shape]) -> Shape:
    return _project(node, shapes, 1)


def _linear_concat(node: Node, shapes: list[Shape]) -> Shape:
    return _project(node, shapes, number(node, "num_weights"))


def _linear_add(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) < 3 or shapes[-1] != _project(node, shapes[:-1], 1):
        raise wrong(node, shapes, "x [T, K], W [N, K], no or one bias [N], and last a residual [T, N]")
    return shapes[-1]


def _swiglu(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 3 or len(shapes[0]) != 2 or shapes[1] != shapes[2] or shapes[1][1:] != shapes[0][1:]:
        raise wrong(node, shapes, "x [T, K] and two weights [N, K]")
    return (shapes[0][0], shapes[1][0])


def _rope(node: Node, shapes: list[Shape]) -> Shape:
    head_dim = number(node, "head_dim")
    width = number(node, "num_heads") * head_dim
    turning = number(node, "rotary_dim", head_dim, low=2)
    frequencies = node.attrs.get("inv_freq")
    if (
        turning > head_dim
        or turning % 2
        or not isinstance(frequencies, tuple | list)
        or len(frequencies) != turning // 2
    ):
        raise GraphShapeError(
            f"node {node.name!r}: rope turns an even number of a head's {head_dim} features, at most all, by half as "
            f"many frequencies; given rotary_dim {turning} and inv_freq {_count(frequencies)}"
        )
    reals(node, "inv_freq")
    real(node, "attention_factor", 1.0)
    if type(node.attrs.get("interleaved")) is not bool:
        raise GraphShapeError(f"node {node.name!r}: rope needs to know whether pairs are interleaved: true or false")
    if len(shapes) != 2 or shapes[0][1:] != (width,) or shapes[1] != shapes[0][:1]:
        raise wrong(node, shapes, f"x [T, {width}] and positions [T]")
    return shapes[0]


def _count(values: object) -> str:
    return f"of {len(values)}" if isinstance(values, tuple | list) else repr(values)


def _attention(node: Node, shapes: list[Shape]) -> Shape:
    heads = number(node, "num_heads")
    shared = number(node, "num_kv_heads", heads)
    if heads % shared:
        raise GraphShapeError(f"node {node.name!r}: {heads} heads cannot share {shared} key/value heads evenly")
    q, kv = (count * number(node, "head_dim") for count in (heads, shared))
    if [shape[1:] for shape in shapes] != [(q,), (kv,), (kv,)] or len({shape[0] for shape in shapes}) != 1:
        raise wrong(node, shapes, f"q [T, {q}], k [T, {kv}] and v [T, {kv}]")
    return shapes[0]


def _rope_attention(node: Node, shapes: list[Shape]) -> Shape:
    q, kv = (number(node, key) * number(node, "head_dim") for key in ("num_heads", "num_kv_heads"))
    if len(shapes) != 2 or shapes[0][1:] != (q + 2 * kv,) or shapes[1] != shapes[0][:1]:
        raise wrong(node, shapes, f"qkv [T, {q + 2 * kv}] and positions [T]")
    return (shapes[0][0], q)


def _select_rows(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise wrong(node, shapes, "x [T, C]")
    return ("R", shapes[0][1])


def _pool_tokens(node: Node, shapes: list[Shape]) -> Shape:
    one_of(node, "kind", ("mean", "cls", "max", "last"))
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != "T":
        raise wrong(node, shapes, "x [T, C]")
    return ("S", shapes[0][1])


def _encoder_attention(node: Node, shapes: list[Shape]) -> Shape:
    real(node, "scale")
    return _attention(node, shapes)


TEXT_RULES: Mapping[str, Rule] = {
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "linear_concat": _linear_concat,
    "linear_add": _linear_add,
    "swiglu": _swiglu,
    "rope": _rope,
    "attention": _attention,
    "encoder_attention": _encoder_attention,
    "rope_attention": _rope_attention,
    "select_rows": _select_rows,
    "pool_tokens": _pool_tokens,
}
