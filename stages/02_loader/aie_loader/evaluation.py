"""What each operator of a graph computes, in NumPy: a graph's vocabulary on one side, `aie_tensor.ops` on the other.

Here are the operators that need nothing but their inputs. Attention over the paged cache and the choice of rows belong
to a step of generation, and live with its executor in stage 4.

Axes: T tokens (packed), S sequences, B items, H query heads, G key/value heads, D head size, N/K output and reduction
dims of a matmul.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_tensor import ops

__all__ = ["EVALUATORS", "Attrs", "Evaluator", "rotate"]

Attrs = Mapping[str, Any]
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Evaluator = Callable[[Attrs, list[Any], Int32Array | None], Any]
"""(constants, inputs, seq_starts [S + 1] or None where nothing is packed) → value. Weights come expanded, except the
table of an embedding, of which only rows are needed."""


def rotate(x: Float32Array, positions: Int32Array, num_heads: int, attrs: Attrs) -> Float32Array:
    """x [T, heads·D] with the features of each head turned."""
    heads = x.reshape(len(x), num_heads, attrs["head_dim"])
    inv_freq = np.asarray(attrs["inv_freq"], dtype=np.float32)
    turned = ops.rope(heads, positions, inv_freq, attrs["interleaved"], attrs.get("attention_factor", 1.0))
    return turned.reshape(x.shape)


def _embedding(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    ids, table = inputs  # [T], [V, C]
    rows = ops.embedding(ids, table)
    scale = attrs.get("scale", 1.0)
    return rows if scale == 1.0 else rows * np.float32(scale)


def _linear(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    """x [., K] through one or more weights [N, K], results side by side: [., ΣN]. 1-D inputs are biases."""
    x, parameters = inputs[0], inputs[1:]
    weights = [parameter for parameter in parameters if parameter.ndim == 2]
    biases = [parameter for parameter in parameters if parameter.ndim == 1]
    parts = [ops.linear(x, weight, biases[i] if biases else None) for i, weight in enumerate(weights)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _linear_add(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    """x [T, K], W [N, K], no or one bias, residual [T, N] → x·Wᵀ + bias + residual [T, N]."""
    total: Float32Array = _linear(attrs, inputs[:-1], starts) + inputs[-1]
    return total


def _swiglu(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    """silu(x·gate) · (x·up): x [T, C], both weights [F, C] → [T, F]."""
    x, gate, up = inputs
    activated = ops.silu(ops.linear(x, gate))
    activated *= ops.linear(x, up)
    return activated


def _rms_norm(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    x, weight = inputs
    return ops.rms_norm(x, weight, attrs["eps"], offset=attrs.get("offset", 0.0), num_heads=attrs.get("num_heads", 1))


def _layer_norm(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    return ops.layer_norm(inputs[0], inputs[1], inputs[2] if len(inputs) == 3 else None, attrs["eps"])


def _batch_norm(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    x, weight, bias, mean, variance = inputs
    return ops.batch_norm(x, weight, bias, mean, variance, attrs["eps"])


def _group_norm(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    x, weight, bias = inputs
    return ops.group_norm(x, attrs["groups"], weight, bias, attrs["eps"])


def _rope(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    x, positions = inputs  # [T, H·D], [T]
    return rotate(x, positions, attrs["num_heads"], attrs)


def _encoder_attention(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    """q [T, H·D], k and v [T, G·D] → [T, H·D]: each sequence looks at all of itself."""
    assert starts is not None, "attention needs to know where the sequences begin"
    q, k, v = (x.reshape(len(x), -1, attrs["head_dim"]) for x in inputs)
    out: Float32Array = np.empty_like(q)
    for begin, end in pairwise(starts):
        own = slice(begin, end)
        out[own] = ops.bidirectional_attention(q[own], k[own], v[own], attrs["scale"])
    return out.reshape(len(out), -1)


def _pool_tokens(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    assert starts is not None, "pooling needs to know where the sequences begin"
    return ops.pool_tokens(inputs[0], starts, attrs["kind"])


def _convolution(function: Callable[..., Float32Array]) -> Evaluator:
    def apply(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
        return function(*inputs, **_only(attrs, "stride", "padding", "dilation", "groups"))

    return apply


def _max_pool2d(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    settings = _only(attrs, "padding", "dilation", "ceil_mode")
    return ops.max_pool2d(inputs[0], attrs["kernel"], stride=attrs.get("stride", attrs["kernel"]), **settings)


def _avg_pool2d(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Float32Array:
    settings = _only(attrs, "padding", "ceil_mode", "count_include_pad")
    return ops.avg_pool2d(inputs[0], attrs["kernel"], stride=attrs.get("stride", attrs["kernel"]), **settings)


def _flatten(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Any:
    x = inputs[0]
    start = attrs.get("start_axis", 1 if x.ndim > 1 else 0) % x.ndim
    return x.reshape(*x.shape[:start], -1)


def _slice(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Any:
    index = [slice(None)] * inputs[0].ndim
    index[attrs["axis"]] = slice(attrs.get("begin", 0), attrs["end"])
    return inputs[0][tuple(index)]


def _reduce(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Any:
    functions: Mapping[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "max": np.max}
    function = functions[attrs["kind"]]
    return function(inputs[0], axis=tuple(attrs["axes"]), keepdims=attrs.get("keep", False))


def _top_k(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Any:
    values, indices = ops.top_k(inputs[0], attrs["k"])
    return values if attrs["want"] == "values" else indices


def _nms(attrs: Attrs, inputs: list[Any], starts: Int32Array | None) -> Any:
    return ops.nms(inputs[0], inputs[1], attrs["iou"], attrs.get("max_output"))


def _only(attrs: Attrs, *keys: str) -> dict[str, Any]:
    return {key: attrs[key] for key in keys if key in attrs}


def _each(function: Callable[..., Any]) -> Evaluator:
    """An operator whose inputs are the function's arguments."""
    return lambda attrs, inputs, starts: function(*inputs)


EVALUATORS: Mapping[str, Evaluator] = {
    "embedding": _embedding,
    "linear": _linear,
    "linear_concat": _linear,
    "linear_add": _linear_add,
    "swiglu": _swiglu,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "encoder_attention": _encoder_attention,
    "pool_tokens": _pool_tokens,
    "relu": _each(ops.relu),
    "sigmoid": _each(ops.sigmoid),
    "tanh": _each(ops.tanh),
    "silu": _each(ops.silu),
    "gelu": _each(ops.gelu),
    "gelu_tanh": _each(ops.gelu_tanh),
    "quick_gelu": _each(ops.quick_gelu),
    "l2_normalize": _each(ops.l2_normalize),
    "global_avg_pool": _each(ops.global_avg_pool),
    "add": _each(np.add),
    "mul": _each(np.multiply),
    "scale": lambda attrs, inputs, starts: inputs[0] * np.float32(attrs["factor"]),
    "softcap": lambda attrs, inputs, starts: ops.softcap(inputs[0], attrs["cap"]),
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "conv1d": _convolution(ops.conv1d),
    "conv2d": _convolution(ops.conv2d),
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "flatten": _flatten,
    "reshape": lambda attrs, inputs, starts: inputs[0].reshape(len(inputs[0]), *attrs["shape"]),
    "transpose": lambda attrs, inputs, starts: inputs[0].transpose(attrs["axes"]),
    "slice": _slice,
    "concat": lambda attrs, inputs, starts: np.concatenate(inputs, axis=attrs["axis"]),
    "reduce": _reduce,
    "softmax": lambda attrs, inputs, starts: ops.softmax(inputs[0], attrs.get("axis", -1)),
    "log_softmax": lambda attrs, inputs, starts: ops.log_softmax(inputs[0], attrs.get("axis", -1)),
    "top_k": _top_k,
    "nms": _nms,
}
