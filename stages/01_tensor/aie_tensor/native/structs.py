"""Mirrors of the C structures in src/formats.h, plan.h and dense.h, field by field; their sizes are checked at load."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import numpy as np

from aie_tensor.dtypes import DType

__all__ = [
    "DOT_FORMATS",
    "FORMATS",
    "INDICES",
    "KV_FORMATS",
    "MAX_DIMS",
    "MIRRORED",
    "OP_NAMES",
    "POOL_KINDS",
    "REDUCE_KINDS",
    "ROWS",
    "OpC",
    "PackedMatrixC",
    "PlanSpecC",
    "StepC",
    "StripC",
    "WalkC",
    "WindowC",
]

# Index = the number of the format, operator, kind of rows, … in C.
FORMATS = (
    DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1,
    DType.Q5_0, DType.Q5_1, DType.Q4_K, DType.Q5_K, DType.Q6_K,
)  # fmt: skip
DOT_FORMATS = (DType.Q8_0, DType.Q4_0, DType.Q4_1)
"""Types of weights that also multiply activations in eight bits; in C their numbers follow those of FORMATS."""
OP_NAMES = (
    "embed", "rms_norm", "layer_norm", "l2_normalize", "linear", "swiglu", "rope", "attention", "encoder_attention",
    "select_rows", "pool_tokens",
    "silu", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "quick_gelu", "scale", "softcap", "exp", "mul", "add",
    "conv", "max_pool", "avg_pool", "channels", "group_norm", "copy", "reduce", "softmax", "log_softmax", "top_k",
    "argmax",
)  # fmt: skip
KV_FORMATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int8))
ROWS = ("tokens", "logits", "sequences", "items", "fixed")
INDICES = ("token_ids", "positions", "token_types")
POOL_KINDS = ("mean", "cls", "max", "last")
REDUCE_KINDS = ("mean", "sum", "max")
MAX_DIMS = 8


class PackedMatrixC(ctypes.Structure):
    """PackedMatrix of formats.h."""

    _fields_ = (
        ("data", c_void_p), ("panel_bytes", c_int64),
        ("format", c_int32), ("n", c_int32), ("k", c_int32), ("num_panels", c_int32),
    )  # fmt: skip


class OpC(ctypes.Structure):
    """Op of plan.h."""

    _fields_ = (
        ("kind", c_int32), ("rows", c_int32), ("width", c_int32), ("out_width", c_int32),
        ("num_mats", c_int32), ("layer", c_int32), ("num_heads", c_int32), ("num_kv_heads", c_int32),
        ("head_dim", c_int32), ("interleaved", c_int32), ("table_format", c_int32), ("eps", c_float),
        ("scale", c_float), ("fixed_rows", c_int32), ("kv_width", c_int32), ("rotary_dim", c_int32),
        ("window", c_int32), ("index", c_int32), ("softcap", c_float), ("reserved", c_int32),
        ("table_row_bytes", c_int64),
        ("x", c_void_p), ("y", c_void_p), ("z", c_void_p), ("out", c_void_p), ("weight", c_void_p), ("bias", c_void_p),
        ("cosines", c_void_p), ("sines", c_void_p), ("slopes", c_void_p),
        ("table", c_void_p), ("mats", c_void_p), ("shape", c_void_p),
    )  # fmt: skip


class StepC(ctypes.Structure):
    """Step of plan.h."""

    _fields_ = (
        ("num_tokens", c_int32), ("num_sequences", c_int32), ("num_logit_rows", c_int32), ("max_blocks", c_int32),
        ("num_items", c_int32), ("reserved", c_int32),
        ("token_ids", c_void_p), ("positions", c_void_p), ("token_types", c_void_p),
        ("seq_starts", c_void_p), ("context_lens", c_void_p),
        ("block_tables", c_void_p), ("logit_rows", c_void_p),
    )  # fmt: skip


class PlanSpecC(ctypes.Structure):
    """PlanSpec of plan.h."""

    _fields_ = (
        ("num_ops", c_int32), ("num_threads", c_int32), ("max_tokens", c_int32), ("profile", c_int32),
        ("num_blocks", c_int32), ("num_layers", c_int32), ("num_kv_heads", c_int32), ("block_size", c_int32),
        ("head_dim", c_int32), ("max_group", c_int32), ("max_head_dim", c_int32), ("kv_format", c_int32),
        ("ops", c_void_p), ("keys", c_void_p), ("values", c_void_p),
        ("key_scales", c_void_p), ("value_scales", c_void_p), ("partials", c_void_p), ("num_partials", c_int64),
    )  # fmt: skip


class WindowC(ctypes.Structure):
    """Window of dense.h."""

    _fields_ = (
        ("channels", c_int32), ("height", c_int32), ("width", c_int32),
        ("out_channels", c_int32), ("out_height", c_int32), ("out_width", c_int32),
        ("groups", c_int32), ("count_padding", c_int32),
        ("kernel", c_int32 * 2), ("stride", c_int32 * 2), ("padding", c_int32 * 2), ("dilation", c_int32 * 2),
    )  # fmt: skip


class WalkC(ctypes.Structure):
    """Walk of dense.h."""

    _fields_ = (
        ("num_dims", c_int32), ("in_offset", c_int32), ("out_offset", c_int32), ("num_inner", c_int32),
        ("sizes", c_int32 * MAX_DIMS), ("in_strides", c_int32 * MAX_DIMS), ("out_strides", c_int32 * MAX_DIMS),
    )  # fmt: skip


class StripC(ctypes.Structure):
    """Strip of dense.h."""

    _fields_ = (("outer", c_int32), ("length", c_int32), ("inner", c_int32), ("k", c_int32))


MIRRORED: tuple[type[ctypes.Structure], ...] = (PackedMatrixC, OpC, StepC, PlanSpecC, WindowC, WalkC, StripC)
