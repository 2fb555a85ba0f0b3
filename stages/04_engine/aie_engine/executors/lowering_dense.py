"""The operators on images, signals and plain vectors as entries of a plan; `lowering.py` has those on text.

An operator sees one item of the batch as one row, and its shape without the leading axis B. A value whose leading axis
has a fixed length is no batch: it is one row as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from aie_engine.errors import UnsupportedOpError
from aie_loader import Node
from aie_tensor.native import MAX_DIMS, Buffer, Windows

if TYPE_CHECKING:
    from aie_engine.executors.lowering import Lowering

__all__ = ["ALIASES", "DENSE_OPERATORS"]

ALIASES = frozenset({"flatten", "reshape"})
"""Operators that only see the same numbers in another shape: they cost nothing."""


def _axis(low: "Lowering", node: Node, axis: int) -> int:
    """The axis, counted in one row of the node's first input. The batch's own axis is none of them."""
    shape = low.shapes[node.inputs[0]]
    place = axis % len(shape) - (not isinstance(shape[0], int))
    if place < 0:
        raise UnsupportedOpError(node.name, f"{node.op} along the batch", "native")
    return place


def _strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, for each axis of a contiguous array."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _conv(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    x, kernels, *bias = node.inputs
    rows, shape, out_shape = low.rows(node.name), low.known(x)[1:], low.known(node.name)[1:]
    weights = low.vector(kernels)
    settings = {key: attrs.get(key, default) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
    if node.op == "conv1d":  # an image one pixel high
        shape, out_shape, weights = (shape[0], 1, shape[1]), (out_shape[0], 1, out_shape[1]), weights[:, :, None]
        pairs: dict[str, Any] = {key: (1 if key != "padding" else 0, value) for key, value in settings.items()}
    else:
        pairs = {key: (value, value) if isinstance(value, int) else tuple(value) for key, value in settings.items()}
    groups = attrs.get("groups", 1)
    windows = Windows(_three(shape), _three(out_shape), (weights.shape[2], weights.shape[3]), **pairs, groups=groups)
    packed = [low.pack_array(part) for part in np.split(weights.reshape(len(weights), -1), groups)]
    shift = low.vector(bias[0]) if bias else None
    low.builder.conv(low.buffer(x), packed, shift, low.buffer(node.name), rows, windows)


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = shape
    return channels, height, width


def _pool(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    shape = _three(low.known(node.inputs[0])[1:])
    if node.op == "global_avg_pool":
        windows = Windows(shape, (shape[0], 1, 1), shape[1:])
    else:
        out_shape, kernel = _three(low.known(node.name)[1:]), tuple(attrs["kernel"])
        pairs: dict[str, Any] = {key: tuple(attrs[key]) for key in ("padding", "dilation") if key in attrs}
        stride, counts = tuple(attrs.get("stride", kernel)), attrs.get("count_include_pad", True)
        windows = Windows(shape, out_shape, kernel, stride, **pairs, count_padding=counts)
    kind: Any = "max" if node.op == "max_pool2d" else "avg"
    low.builder.pool(kind, low.buffer(node.inputs[0]), low.buffer(node.name), low.rows(node.name), windows)


def _batch_norm(low: "Lowering", node: Node) -> None:
    """With the statistics that training left behind it is one multiplication and one addition per channel."""
    attrs: Mapping[str, Any] = node.attrs
    weight, bias, mean, variance = map(low.vector, node.inputs[1:])
    scale = weight / np.sqrt(variance + np.float32(attrs["eps"]))
    x, out = low.buffer(node.inputs[0]), low.buffer(node.name)
    low.builder.channels(x, scale, bias - mean * scale, out, low.rows(node.name))


def _group_norm(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    weight, bias = map(low.vector, node.inputs[1:])
    x, out = low.buffer(node.inputs[0]), low.buffer(node.name)
    low.builder.group_norm(x, weight, bias, attrs["eps"], out, low.rows(node.name), groups=attrs["groups"])


def _transpose(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    axes = [_axis(low, node, axis) for axis in attrs["axes"][_leading(low, node) :]]
    rows, shape = low.item(node.inputs[0])
    strides, sizes = _strides(shape), [shape[axis] for axis in axes]
    _copy(low, node, node.inputs[0], rows, sizes, [strides[axis] for axis in axes], _strides(sizes))


def _leading(low: "Lowering", node: Node) -> int:
    """1 when the first axis is the batch's, and then a transposition must leave it where it is."""
    is_batch = not isinstance(low.shapes[node.inputs[0]][0], int)
    attrs: Mapping[str, Any] = node.attrs
    if is_batch and attrs["axes"][0] % len(attrs["axes"]):
        raise UnsupportedOpError(node.name, "transpose of the batch", "native")
    return int(is_batch)


def _slice(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    axis = _axis(low, node, attrs["axis"])
    rows, shape = low.item(node.inputs[0])
    _, sizes = low.item(node.name)
    strides = _strides(shape)
    offset = attrs.get("begin", 0) * strides[axis]
    _copy(low, node, node.inputs[0], rows, sizes, strides, _strides(sizes), in_offset=offset)


def _concat(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    axis = _axis(low, node, attrs["axis"])
    rows, whole = low.item(node.name)
    out_strides = _strides(whole)
    shapes = [low.item(name)[1] for name in node.inputs]
    begins = accumulate((shape[axis] for shape in shapes[:-1]), initial=0)
    for name, shape, begin in zip(node.inputs, shapes, begins, strict=True):
        _copy(low, node, name, rows, shape, _strides(shape), out_strides, out_offset=begin * out_strides[axis])


def _copy(
    low: "Lowering", node: Node, x: str, rows: Any, sizes: Sequence[int], in_strides: Sequence[int],
    out_strides: Sequence[int], *, in_offset: int = 0, out_offset: int = 0,
) -> None:  # fmt: skip
    if len(sizes) > MAX_DIMS:
        raise UnsupportedOpError(node.name, f"{node.op} of {len(sizes)} axes", "native")
    if not sizes:  # one element per row
        sizes = in_strides = out_strides = [1]
    low.builder.copy(
        low.as_row(x), low.as_row(node.name), rows, sizes=sizes, in_strides=in_strides, out_strides=out_strides,
        in_offset=in_offset, out_offset=out_offset,
    )  # fmt: skip


def _reduce(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    gone = {_axis(low, node, axis) for axis in attrs["axes"]}
    rows, shape = low.item(node.inputs[0])
    axes = list(zip(shape, _strides(shape), strict=True))
    kept = [axes[axis] for axis in range(len(shape)) if axis not in gone]
    reduced = [axes[axis] for axis in sorted(gone)]
    x, out = low.as_row(node.inputs[0]), Buffer(low.buffer(node.name).address, prod(size for size, _ in kept))
    low.builder.reduce(attrs["kind"], x, out, rows, kept=kept, reduced=reduced)


def _softmax(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    axis = _axis(low, node, attrs.get("axis", -1))
    rows, shape = low.item(node.inputs[0])
    low.builder.softmax(
        low.as_row(node.inputs[0]), low.as_row(node.name), rows, length=shape[axis], inner=prod(shape[axis + 1 :]),
        logarithm=node.op == "log_softmax",
    )  # fmt: skip


def _top_k(low: "Lowering", node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    rows, shape = low.item(node.inputs[0])
    if not shape:
        raise UnsupportedOpError(node.name, "top_k along the batch", "native")
    x, out = low.as_row(node.inputs[0]), low.as_row(node.name)
    low.builder.top_k(x, out, rows, length=shape[-1], k=attrs["k"], indices=attrs["want"] == "indices")


def _nothing(low: "Lowering", node: Node) -> None:
    """The same numbers in another shape."""


DENSE_OPERATORS: Mapping[str, tuple[Callable[["Lowering", Node], None], Sequence[str]]] = {
    "conv1d": (_conv, ["stride", "padding", "dilation", "groups"]),
    "conv2d": (_conv, ["stride", "padding", "dilation", "groups"]),
    "max_pool2d": (_pool, ["kernel", "stride", "padding", "dilation", "ceil_mode"]),
    "avg_pool2d": (_pool, ["kernel", "stride", "padding", "ceil_mode", "count_include_pad"]),
    "global_avg_pool": (_pool, []),
    "batch_norm": (_batch_norm, ["eps"]),
    "group_norm": (_group_norm, ["eps", "groups"]),
    "flatten": (_nothing, ["start_axis"]),
    "reshape": (_nothing, ["shape"]),
    "transpose": (_transpose, ["axes"]),
    "slice": (_slice, ["axis", "begin", "end"]),
    "concat": (_concat, ["axis"]),
    "reduce": (_reduce, ["kind", "axes", "keep"]),
    "softmax": (_softmax, ["axis"]),
    "log_softmax": (_softmax, ["axis"]),
    "top_k": (_top_k, ["k", "want"]),
}
"""As in `lowering.py`: how each is appended, and the constants that it takes into account."""
