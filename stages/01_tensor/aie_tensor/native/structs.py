"""Mirrors of the C structures in src/formats.h and src/plan.h, field by field. `NativeLibrary` checks their sizes."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from aie_tensor.dtypes import DType

__all__ = [
    "FORMATS",
    "INDICES",
    "MIRRORED",
    "OP_NAMES",
    "POOL_KINDS",
    "ROWS",
    "OpC",
    "PackedMatrixC",
    "PlanSpecC",
    "StepC",
]

# Index = the number of the format, operator, kind of rows, … in C.
FORMATS = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1)
OP_NAMES = (
    "embed", "rms_norm", "layer_norm", "l2_normalize", "linear", "swiglu", "rope", "attention", "encoder_attention",
    "select_rows", "pool_tokens",
    "silu", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "quick_gelu", "scale", "softcap", "exp", "mul", "add",
)  # fmt: skip
ROWS = ("tokens", "logits", "sequences", "items", "fixed")
INDICES = ("token_ids", "positions", "token_types")
POOL_KINDS = ("mean", "cls", "max", "last")


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
        ("cosines", c_void_p), ("sines", c_void_p), ("slopes", c_void_p), ("work", c_void_p),
        ("table", c_void_p), ("mats", c_void_p),
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
        ("num_layers", c_int32), ("num_blocks", c_int32), ("num_kv_heads", c_int32), ("block_size", c_int32),
        ("head_dim", c_int32), ("max_group", c_int32), ("max_head_dim", c_int32), ("reserved", c_int32),
        ("scratch_floats", c_int64), ("ops", c_void_p), ("keys", c_void_p), ("values", c_void_p),
    )  # fmt: skip


MIRRORED: tuple[type[ctypes.Structure], ...] = (PackedMatrixC, OpC, StepC, PlanSpecC)
