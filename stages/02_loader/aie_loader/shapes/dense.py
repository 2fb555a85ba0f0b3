"""Shapes of the operators on images, signals and plain vectors. The leading axis B (items of a batch) is symbolic.

Axes: B items, C channels, O output channels, H and W height and width.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeGuard

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Node, Shape
from aie_loader.shapes.checking import Rule, axis, flag, number, one_of, pair, real, same, wrong
from aie_tensor import ops

__all__ = ["DENSE_RULES"]


def _layer_norm(node: Node, shapes: list[Shape]) -> Shape:
    real(node, "eps")
    if len(shapes) not in (2, 3) or not shapes[0] or any(shape != shapes[0][-1:] for shape in shapes[1:]):
        raise wrong(node, shapes, "x […, C], a weight [C] and no or one bias [C]")
    return shapes[0]


def _batch_norm(node: Node, shapes: list[Shape]) -> Shape:
    real(node, "eps")
    if len(shapes) != 5 or len(shapes[0]) < 2 or any(shape != shapes[0][1:2] for shape in shapes[1:]):
        raise wrong(node, shapes, "x [B, C, …] and weight, bias, mean and variance [C]")
    return shapes[0]


def _group_norm(node: Node, shapes: list[Shape]) -> Shape:
    real(node, "eps")
    groups = number(node, "groups")
    if len(shapes) != 3 or len(shapes[0]) < 2 or any(shape != shapes[0][1:2] for shape in shapes[1:]):
        raise wrong(node, shapes, "x [B, C, …], weight and bias [C]")
    if _size(node, shapes[0][1]) % groups:
        raise wrong(node, shapes, f"channels that divide into {groups} groups")
    return shapes[0]


def _conv1d(node: Node, shapes: list[Shape]) -> Shape:
    settings = [(number(node, "stride", 1), number(node, "padding", 0, low=0), number(node, "dilation", 1))]
    return _convolution(node, shapes, settings)


def _conv2d(node: Node, shapes: list[Shape]) -> Shape:
    strides, paddings = pair(node, "stride", (1, 1)), pair(node, "padding", (0, 0), low=0)
    return _convolution(node, shapes, list(zip(strides, paddings, pair(node, "dilation", (1, 1)), strict=True)))


def _convolution(node: Node, shapes: list[Shape], settings: list[tuple[int, int, int]]) -> Shape:
    groups, rank = number(node, "groups", 1), len(settings) + 2
    fits = len(shapes) in (2, 3) and len(shapes[0]) == len(shapes[1]) == rank and shapes[2:] in ([], [shapes[1][:1]])
    if not fits:
        raise wrong(node, shapes, f"x and kernels of {rank} axes each, and no or one bias [O]")
    x, w = shapes[0], shapes[1]
    if _size(node, x[1]) != _size(node, w[1]) * groups or _size(node, w[0]) % groups:
        raise wrong(node, shapes, f"kernels [O, C/{groups}, …] with O a multiple of {groups}")
    spatial = [
        _windows(node, size, _size(node, kernel), stride, padding, dilation)
        for size, kernel, (stride, padding, dilation) in zip(x[2:], w[2:], settings, strict=True)
    ]
    return (x[0], w[0], *spatial)


def _pool2d(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise wrong(node, shapes, "x [B, C, H, W]")
    kernel = pair(node, "kernel")
    strides, paddings = pair(node, "stride", kernel), pair(node, "padding", (0, 0), low=0)
    if any(2 * p > k for p, k in zip(paddings, kernel, strict=True)):
        raise GraphShapeError(f"node {node.name!r}: {node.op} takes a padding of at most half its kernel")
    ceil_mode = flag(node, "ceil_mode", False)
    flag(node, "count_include_pad", True)
    dilation = pair(node, "dilation", (1, 1)) if node.op == "max_pool2d" else (1, 1)
    spatial = [
        _windows(node, size, k, s, p, d, ceil_mode)
        for size, k, s, p, d in zip(shapes[0][2:], kernel, strides, paddings, dilation, strict=True)
    ]
    return (*shapes[0][:2], *spatial)


def _windows(
    node: Node, size: int | str, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False
) -> int | str:
    if isinstance(size, str) and stride == 1 and 2 * padding == dilation * (kernel - 1):
        return size  # as many windows as elements, however many those are
    count = ops.window_count(_size(node, size), kernel, stride, padding, dilation, ceil_mode)
    if count < 1:
        raise GraphShapeError(
            f"node {node.name!r}: a window of {kernel} does not fit {size} elements padded by {padding}"
        )
    return count


def _global_avg_pool(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise wrong(node, shapes, "x [B, C, H, W]")
    return shapes[0][:2]


def _flatten(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or not shapes[0]:
        raise wrong(node, shapes, "one input")
    start = axis(node, shapes[0], "start_axis", 1 if len(shapes[0]) > 1 else 0)
    return (*shapes[0][:start], prod(_size(node, size) for size in shapes[0][start:]))


def _reshape(node: Node, shapes: list[Shape]) -> Shape:
    """`shape` is that of one item: the leading axis stays, so that the batch may be of any size."""
    wanted = node.attrs.get("shape")
    if not isinstance(wanted, tuple | list) or not all(type(size) is int for size in wanted):
        raise GraphShapeError(f"node {node.name!r}: reshape needs integers as shape, not {wanted!r}")
    if len(shapes) != 1 or not shapes[0]:
        raise wrong(node, shapes, "one input")
    total = prod(_size(node, size) for size in shapes[0][1:])
    known = prod(size for size in wanted if size != -1)
    open_axes = wanted.count(-1)
    if open_axes > 1 or any(size < 1 and size != -1 for size in wanted) or known == 0 or total % known:
        raise wrong(node, shapes, f"{total} elements per item in a shape {list(wanted)} with at most one −1")
    if not open_axes and known != total:
        raise wrong(node, shapes, f"{total} elements per item, not {known}")
    return (shapes[0][0], *(total // known if size == -1 else size for size in wanted))


def _transpose(node: Node, shapes: list[Shape]) -> Shape:
    axes = node.attrs.get("axes")
    if len(shapes) != 1 or not _are_axes(axes) or sorted(axes) != list(range(len(shapes[0]))):
        raise wrong(node, shapes, f"one input, and axes that name each of its axes once (not {axes!r})")
    return tuple(shapes[0][index] for index in axes)


def _are_axes(axes: object) -> TypeGuard[Sequence[int]]:
    return isinstance(axes, tuple | list) and all(type(index) is int for index in axes)


def _slice(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1:
        raise wrong(node, shapes, "one input")
    along = axis(node, shapes[0])
    begin, end = number(node, "begin", 0, low=0), number(node, "end")
    if not begin < end <= _size(node, shapes[0][along]):
        raise wrong(node, shapes, f"0 ≤ begin < end ≤ {shapes[0][along]}, not {begin} and {end}")
    return (*shapes[0][:along], end - begin, *shapes[0][along + 1 :])


def _concat(node: Node, shapes: list[Shape]) -> Shape:
    if not shapes:
        raise wrong(node, shapes, "at least one input")
    along = axis(node, shapes[0])
    rest = {(*shape[:along], *shape[along + 1 :]) for shape in shapes}
    if len(rest) != 1 or len({len(shape) for shape in shapes}) != 1:
        raise wrong(node, shapes, f"inputs that differ in axis {along} only")
    total = sum(_size(node, shape[along]) for shape in shapes)
    return (*shapes[0][:along], total, *shapes[0][along + 1 :])


def _reduce(node: Node, shapes: list[Shape]) -> Shape:
    one_of(node, "kind", ("mean", "sum", "max"))
    axes = node.attrs.get("axes")
    if len(shapes) != 1 or not isinstance(axes, tuple | list) or not axes:
        raise wrong(node, shapes, f"one input and at least one axis (not {axes!r})")
    rank = len(shapes[0])
    if not all(type(index) is int and -rank <= index < rank for index in axes):
        raise wrong(node, shapes, f"axes of its input, not {axes!r}")
    gone = {index % rank for index in axes}
    if len(gone) != len(axes):
        raise wrong(node, shapes, f"axes that are named once, not {axes!r}")
    if flag(node, "keep", False):
        return tuple(1 if index in gone else size for index, size in enumerate(shapes[0]))
    return tuple(size for index, size in enumerate(shapes[0]) if index not in gone)


def _along_axis(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or not shapes[0]:
        raise wrong(node, shapes, "one input")
    axis(node, shapes[0], default=-1)
    return shapes[0]


def _top_k(node: Node, shapes: list[Shape]) -> Shape:
    k = number(node, "k")
    one_of(node, "want", ("values", "indices"))
    if len(shapes) != 1 or not shapes[0] or _size(node, shapes[0][-1]) < k:
        raise wrong(node, shapes, f"at least {k} elements in the last axis")
    return (*shapes[0][:-1], k)


def _nms(node: Node, shapes: list[Shape]) -> Shape:
    real(node, "iou")
    most = number(node, "max_output", 1 << 31)
    if len(shapes) != 2 or len(shapes[0]) != 2 or shapes[0][1] != 4 or shapes[1] != shapes[0][:1]:
        raise wrong(node, shapes, "boxes [N, 4] and scores [N]")
    return ("kept" if most == 1 << 31 else f"kept≤{most}",)


def _size(node: Node, size: int | str) -> int:
    if not isinstance(size, int):
        raise GraphShapeError(
            f"node {node.name!r}: {node.op} must know the length of the axis {size!r}; give the graph's input a fixed "
            "one"
        )
    return size


def _l2_normalize(node: Node, shapes: list[Shape]) -> Shape:
    if len(shapes) != 1 or not shapes[0]:
        raise wrong(node, shapes, "one input")
    return shapes[0]


def _scaled(key: str) -> Rule:
    def rule(node: Node, shapes: list[Shape]) -> Shape:
        real(node, key)
        return same(1)(node, shapes)

    return rule


_ELEMENTWISE = ("relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "quick_gelu")

DENSE_RULES: Mapping[str, Rule] = {
    **{op: same(1) for op in _ELEMENTWISE},
    "add": same(2),
    "mul": same(2),
    "scale": _scaled("factor"),
    "softcap": _scaled("cap"),
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "l2_normalize": _l2_normalize,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "max_pool2d": _pool2d,
    "avg_pool2d": _pool2d,
    "global_avg_pool": _global_avg_pool,
    "flatten": _flatten,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    "reduce": _reduce,
    "softmax": _along_axis,
    "log_softmax": _along_axis,
    "top_k": _top_k,
    "nms": _nms,
}
