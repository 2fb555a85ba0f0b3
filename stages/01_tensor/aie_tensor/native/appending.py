"""What every operator of a plan needs while the plan grows: an entry appended, its constants kept alive.

C checks nothing: every shape and length is checked by the operators' methods before an entry is appended.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aie_tensor.native.constants import Constants
from aie_tensor.native.library import NativeLibrary, pointer
from aie_tensor.native.packed import PackedMatrix
from aie_tensor.native.structs import KV_FORMATS, OP_NAMES, ROWS, OpC, PackedMatrixC

__all__ = ["Appender", "Buffer", "F32Array", "KVLayout", "Rows", "in_out"]

F32Array = npt.NDArray[np.float32]
Rows = Literal["tokens", "logits", "sequences", "items"] | int
"""Over what an operator runs: the step's tokens, its wanted rows, its sequences, a batch's items, or a fixed number."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Activations [rows, width] float32 at `address`, in memory that the caller keeps alive."""

    address: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class KVLayout:
    """The paged cache: k and v [P, L, G, A, D], float32, float16 or int8; int8 with scales [P, L, G, A].

    The kernels keep the keys of a block transposed, as [D, A]."""

    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    k_scales: F32Array | None = None
    v_scales: F32Array | None = None

    def __post_init__(self) -> None:
        assert self.k.shape == self.v.shape and self.k.ndim == 5, (self.k.shape, self.v.shape)
        assert self.k.dtype == self.v.dtype and self.k.dtype in KV_FORMATS, (self.k.dtype, self.v.dtype)
        for scales in (self.k_scales, self.v_scales):
            assert (scales is not None) == (self.k.dtype == np.int8), (self.k.dtype, scales)
            assert scales is None or (scales.shape == self.k.shape[:4] and scales.dtype == np.float32), scales.shape

    @property
    def format(self) -> int:
        """The number of the format in C."""
        return KV_FORMATS.index(self.k.dtype)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """As `PlanSpec` of plan.h has them."""
        return self.k, self.v, self.k_scales, self.v_scales


def in_out(x: Buffer, out: Buffer) -> dict[str, int]:
    """The fields that nearly every operator has."""
    return {"x": x.address, "width": x.width, "out": out.address, "out_width": out.width}


@dataclass
class Appender:
    """The growing plan. `max_tokens`: the most tokens of a step; `max_items`: the most items of a batch."""

    lib: NativeLibrary
    num_threads: int = field(kw_only=True)
    max_tokens: int = field(kw_only=True)
    kv: KVLayout | None = field(default=None, kw_only=True)  # None: nothing is kept between steps
    max_context: int = field(default=1, kw_only=True)
    max_items: int = field(default=1, kw_only=True)
    constants: Constants = field(default_factory=Constants, kw_only=True)  # where vectors and tables lie
    profile: bool = field(default=False, kw_only=True)  # measure each kind of operator; costs a clock per operator
    _ops: list[OpC] = field(default_factory=list, init=False)
    _alive: list[object] = field(default_factory=list, init=False)
    _index_sizes: dict[str, int] = field(default_factory=dict, init=False)  # rows of the tables that indices look into
    _max_group: int = field(default=1, init=False)
    _max_head_dim: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        if self.kv is not None:
            self._max_head_dim = self.kv.k.shape[4]
        assert min(self.num_threads, self.max_tokens, self.max_context, self.max_items) >= 1, self

    @property
    def num_ops(self) -> int:
        """Operators appended so far."""
        return len(self._ops)

    @property
    def _max_rows(self) -> int:
        """The most rows that any operator may have."""
        fixed = [int(op.fixed_rows) for op in self._ops]
        return max(self.max_tokens, self.max_items, *fixed)

    def _append(self, name: str, rows: Rows = "tokens", /, **fields: object) -> None:
        kind = "fixed" if isinstance(rows, int) else rows
        op = OpC(kind=OP_NAMES.index(name), rows=ROWS.index(kind), fixed_rows=rows if isinstance(rows, int) else 0)
        for key, value in fields.items():
            setattr(op, key, value)
        self._ops.append(op)

    def _vector(self, values: F32Array, length: int) -> int:
        assert values.shape == (length,), (values.shape, length)
        array = self.constants.store(np.asarray(values, np.float32), "norms and biases")
        self._alive.append(array)
        return pointer(array)

    def _packed(self, weights: Sequence[PackedMatrix], width: int) -> int:
        mats = (PackedMatrixC * len(weights))()
        for mat, weight in zip(mats, weights, strict=True):
            assert weight.k == width, (weight.k, width)
            panel_bytes = weight.nbytes // weight.num_panels
            values = (pointer(weight.data), panel_bytes, weight.format, weight.n, weight.k, weight.num_panels)
            for (key, *_), value in zip(PackedMatrixC._fields_, values, strict=True):
                setattr(mat, key, value)
        self._alive += [mats, *weights]
        return ctypes.addressof(mats)
