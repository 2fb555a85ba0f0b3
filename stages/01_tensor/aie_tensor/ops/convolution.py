"""Convolution and pooling over one or two axes.

A convolution is a product of patches with kernels. `sliding_window_view` shows all patches of an input without copying
a byte; the einsum below it is the formula. (What is usually called convolution is a cross-correlation: no kernel is
turned round.)

Axes: B images, C channels, O output channels, H and W height and width, g groups.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from aie_tensor.errors import InvalidInputError
from aie_tensor.ops.linear import Floats

__all__ = ["avg_pool2d", "conv1d", "conv2d", "global_avg_pool", "max_pool2d", "window_count"]

Pair = Sequence[int]


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil_mode: bool = False) -> int:
    """How many windows fit along one axis. With `ceil_mode` also a last one that begins inside the padded input."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if span < 0:
        return 0
    count = -(-span // stride) + 1 if ceil_mode else span // stride + 1
    # The last window must begin inside the input or the padding before it, or it would see nothing but padding.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def conv2d(
    x: Floats,
    w: Floats,
    bias: Floats | None = None,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Floats:
    """x [B, C, H, W] with kernels w [O, C/g, kh, kw] → [B, O, H', W']; zeros beyond the edges.

    Group i of the inputs feeds group i of the outputs only; groups = C is the depthwise convolution.
    """
    batch, channels = x.shape[:2]
    outputs, per_group, *kernel = w.shape
    if channels != per_group * groups or outputs % groups:
        raise InvalidInputError(f"a convolution {w.shape} in {groups} groups does not fit inputs {x.shape}")
    patches = _windows(x, kernel, stride, padding, dilation, np.float32(0))  # [B, C, H', W', kh, kw]
    height, width = patches.shape[2:4]
    grouped = patches.reshape(batch, groups, per_group, height, width, *kernel)
    kernels = w.reshape(groups, outputs // groups, per_group, *kernel)
    out: Floats = np.einsum("bgchwij,gocij->bgohw", grouped, kernels, optimize=True)
    out = out.reshape(batch, outputs, height, width)
    return out if bias is None else out + bias[:, None, None]


def conv1d(
    x: Floats,
    w: Floats,
    bias: Floats | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Floats:
    """x [B, C, W] with kernels w [O, C/g, k] → [B, O, W']: a convolution over an image one pixel high."""
    out = conv2d(
        x[:, :, None],
        w[:, :, None],
        bias,
        stride=(1, stride),
        padding=(0, padding),
        dilation=(1, dilation),
        groups=groups,
    )
    return out[:, :, 0]


def max_pool2d(
    x: Floats, kernel: Pair, *, stride: Pair, padding: Pair = (0, 0), dilation: Pair = (1, 1), ceil_mode: bool = False
) -> Floats:
    """The largest of each window, x [B, C, H, W] → [B, C, H', W']. Padding never wins."""
    windows = _windows(x, kernel, stride, padding, dilation, np.float32(-np.inf), ceil_mode)
    largest: Floats = windows.max(axis=(-2, -1))
    return largest


def avg_pool2d(
    x: Floats,
    kernel: Pair,
    *,
    stride: Pair,
    padding: Pair = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Floats:
    """The mean of each window, x [B, C, H, W] → [B, C, H', W'].

    `count_include_pad` counts padded zeros as elements; what `ceil_mode` adds beyond the padding never counts.
    """
    sums = _windows(x, kernel, stride, padding, (1, 1), np.float32(0), ceil_mode).sum(axis=(-2, -1), dtype=np.float32)
    counted = [
        _elements(size, k, s, p, count, count_include_pad)
        for size, k, s, p, count in zip(x.shape[2:], kernel, stride, padding, sums.shape[2:], strict=True)
    ]
    means: Floats = sums / (counted[0][:, None] * counted[1]).astype(np.float32)
    return means


def global_avg_pool(x: Floats) -> Floats:
    """The mean over height and width, x [B, C, H, W] → [B, C]."""
    mean: Floats = x.mean(axis=(2, 3), dtype=np.float32)
    return mean


def _windows(
    x: Floats, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, fill: np.float32, ceil_mode: bool = False
) -> Floats:
    """All windows of the padded input as a view [B, C, H', W', kh, kw]."""
    counts, after = [], []
    for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True):
        count = window_count(size, k, s, p, d, ceil_mode)
        if count < 1:
            raise InvalidInputError(f"a window of {k} (dilation {d}) does not fit {size} elements padded by {p}")
        counts.append(count)
        after.append(max(p, (count - 1) * s + d * (k - 1) + 1 - size - p))  # ceil_mode may reach beyond the padding
    borders = [(0, 0), (0, 0), (padding[0], after[0]), (padding[1], after[1])]
    padded = np.pad(x, borders, constant_values=fill) if any(map(any, borders)) else x
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    views = sliding_window_view(padded, spans, axis=(2, 3))
    views = views[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    return views[:, :, : counts[0], : counts[1]]


def _elements(size: int, kernel: int, stride: int, padding: int, count: int, include_pad: bool) -> np.ndarray:
    """How many elements of each window count, along one axis."""
    begin = np.arange(count) * stride - padding
    end = np.minimum(begin + kernel, size + padding)
    return end - begin if include_pad else np.minimum(end, size) - np.maximum(begin, 0)
