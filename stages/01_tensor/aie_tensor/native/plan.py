"""A plan: a model's operators as a flat array that one native call walks, with its own threads.

A call into C from Python costs tens of microseconds, an operator of a small model at batch 1 about ten. So the whole
step is one call. `PlanBuilder` appends operators and keeps alive whatever they point to; `Plan.run` hands over a step's
index arrays. C checks nothing: every shape, index and length is checked here, before it is called.

Axes: T tokens of a step (all sequences one after another), S sequences, R rows whose logits are wanted, K/N widths of a
linear layer, L layers, P blocks of the KV cache, A positions per block, H/G query/kv heads, D head size.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from aie_tensor.errors import OutOfMemoryError
from aie_tensor.native.constants import Constants
from aie_tensor.native.library import NativeLibrary, pointer
from aie_tensor.native.packed import PackedMatrix
from aie_tensor.native.step import Limits, StepArrays
from aie_tensor.native.structs import FORMATS, OP_NAMES, OpC, PackedMatrixC, PlanSpecC, StepC
from aie_tensor.quant import Matrix

__all__ = ["Buffer", "KVLayout", "Plan", "PlanBuilder"]

F32Array = npt.NDArray[np.float32]
Rows = Literal["tokens", "logits"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Activations [max_tokens, width] float32 at `address`, in memory that the caller keeps alive."""

    address: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class KVLayout:
    """The paged cache: k and v [L, P, G, A, D] float32. The kernels keep the keys of a block transposed, as [D, A]."""

    k: F32Array
    v: F32Array


def _in_out(x: Buffer, out: Buffer) -> dict[str, int]:
    """The fields that nearly every operator has."""
    return {"x": x.address, "width": x.width, "out": out.address, "out_width": out.width}


@dataclass(slots=True)
class PlanBuilder:
    """Appends operators one by one; `build` makes the plan. Buffers may be reused between operators by the caller.

    An operator may write over its own input only where its method says so.
    """

    lib: NativeLibrary
    num_threads: int = field(kw_only=True)
    max_tokens: int = field(kw_only=True)
    kv: KVLayout = field(kw_only=True)
    max_context: int = field(kw_only=True)
    constants: Constants = field(default_factory=Constants, kw_only=True)  # where vectors and tables lie
    profile: bool = field(default=False, kw_only=True)  # measure each kind of operator; costs a clock per operator
    _ops: list[OpC] = field(default_factory=list, init=False)
    _alive: list[object] = field(default_factory=list, init=False)
    _tables: dict[bytes, tuple[F32Array, F32Array]] = field(default_factory=dict, init=False)
    _vocab_size: int = field(default=2**31 - 1, init=False)
    _max_group: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        k, v = self.kv.k, self.kv.v
        assert k.shape == v.shape and k.ndim == 5, (k.shape, v.shape)
        assert k.dtype == v.dtype == np.float32, (k.dtype, v.dtype)
        assert self.num_threads >= 1 and self.max_tokens >= 1 and self.max_context >= 1, self

    def _append(self, name: str, rows: Rows = "tokens", /, **fields: object) -> None:
        op = OpC(kind=OP_NAMES.index(name), rows=("tokens", "logits").index(rows))
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

    def embed(self, table: Matrix, out: Buffer) -> None:
        """out[t] = row token_ids[t] of table [V, C], read in the file's own layout."""
        assert table.dtype in FORMATS and table.shape[1] == out.width, (table.dtype, table.shape, out)
        self._alive.append(table)
        self._vocab_size = min(self._vocab_size, table.shape[0])
        row_bytes = table.nbytes // table.shape[0]
        self._append(
            "embed", out=out.address, out_width=out.width,
            table=pointer(table.data), table_format=FORMATS.index(table.dtype), table_row_bytes=row_bytes,
        )  # fmt: skip

    def rms_norm(self, x: Buffer, weight: F32Array, eps: float, out: Buffer, rows: Rows = "tokens") -> None:
        """out = x / sqrt(mean(x²) + eps) · weight; out may be x."""
        assert x.width == out.width, (x, out)
        address = self._vector(weight, x.width)
        self._append("rms_norm", rows, weight=address, eps=eps, **_in_out(x, out))

    def linear(
        self, x: Buffer, weights: Sequence[PackedMatrix], out: Buffer, *,
        add: Buffer | None = None, biases: Sequence[F32Array | None] | None = None, rows: Rows = "tokens",
    ) -> None:  # fmt: skip
        """out [., ΣN] = x [., K] · each weight [N, K]ᵀ, side by side, + biases + add; add may be out, x may not."""
        assert sum(w.n for w in weights) == out.width and x.address != out.address, (weights, out)
        assert add is None or add.width == out.width, (add, out)
        bias = 0
        if biases is not None and any(b is not None for b in biases):
            parts = [np.zeros(w.n, np.float32) if b is None else b for w, b in zip(weights, biases, strict=True)]
            bias = self._vector(np.concatenate(parts).astype(np.float32), out.width)
        self._append(
            "linear", rows, y=add.address if add else 0, bias=bias,
            mats=self._packed(weights, x.width), num_mats=len(weights), **_in_out(x, out),
        )  # fmt: skip

    def swiglu(self, x: Buffer, gate: PackedMatrix, up: PackedMatrix, out: Buffer, rows: Rows = "tokens") -> None:
        """out [., N] = silu(x · gateᵀ) · (x · upᵀ) (Shazeer 2020); out may not be x."""
        assert gate.n == up.n == out.width and x.address != out.address, (gate.n, up.n, out)
        mats = self._packed([gate, up], x.width)
        self._append("swiglu", rows, mats=mats, num_mats=2, **_in_out(x, out))

    def rope_attention(
        self, qkv: Buffer, out: Buffer, *, layer: int, num_heads: int, num_kv_heads: int, head_dim: int,
        scale: float, inv_freq: F32Array, interleaved: bool,
    ) -> None:  # fmt: skip
        """qkv [T, (H + 2G)·D] → out [T, H·D]: rotates q and k (in place), stores k and v, attends causally."""
        num_layers, _, kv_heads, _, kv_dim = self.kv.k.shape
        assert (kv_heads, kv_dim) == (num_kv_heads, head_dim) and 0 <= layer < num_layers, (self.kv.k.shape, layer)
        assert num_heads % num_kv_heads == 0 and head_dim % 2 == 0, (num_heads, num_kv_heads, head_dim)
        assert qkv.width == (num_heads + 2 * num_kv_heads) * head_dim and out.width == num_heads * head_dim, (qkv, out)
        assert qkv.address != out.address and inv_freq.shape == (head_dim // 2,), (qkv, out, inv_freq.shape)
        cosines, sines = self._rotations(inv_freq)
        self._max_group = max(self._max_group, num_heads // num_kv_heads)
        self._append(
            "rope_attention", layer=layer, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            interleaved=int(interleaved), scale=scale, cosines=pointer(cosines), sines=pointer(sines),
            **_in_out(qkv, out),
        )  # fmt: skip

    def _rotations(self, inv_freq: F32Array) -> tuple[F32Array, F32Array]:
        """cos and sin [max_context, D/2], shared between layers; angles rounded to float32, as in training."""
        key = np.ascontiguousarray(inv_freq, np.float32).tobytes()
        if key not in self._tables:
            positions = np.arange(self.max_context, dtype=np.float32)
            angles = (positions[:, None] * inv_freq.astype(np.float32)[None, :]).astype(np.float64)
            cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
            store = self.constants.store
            self._tables[key] = store(cosines, "rotary tables"), store(sines, "rotary tables")
        return self._tables[key]

    def select_rows(self, x: Buffer, out: Buffer) -> None:
        """out[r] = x[logit_rows[r]]; out may not be x."""
        assert x.width == out.width and x.address != out.address, (x, out)
        self._append("select_rows", **_in_out(x, out))

    def silu(self, x: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = x / (1 + e^-x); out may be x."""
        assert x.width == out.width, (x, out)
        self._append("silu", rows, **_in_out(x, out))

    def mul(self, a: Buffer, b: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = a · b, element by element; out may be a or b."""
        self._binary("mul", a, b, out, rows)

    def add(self, a: Buffer, b: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = a + b; out may be a or b."""
        self._binary("add", a, b, out, rows)

    def _binary(self, name: str, a: Buffer, b: Buffer, out: Buffer, rows: Rows) -> None:
        assert a.width == b.width == out.width, (a, b, out)
        self._append(name, rows, y=b.address, **_in_out(a, out))

    def build(self) -> "Plan":
        """The plan, with its threads started. Raises OutOfMemoryError when the machine refuses memory or threads."""
        num_layers, num_blocks, num_kv_heads, block_size, head_dim = self.kv.k.shape
        ops = (OpC * len(self._ops))(*self._ops)
        spec = PlanSpecC(
            len(self._ops), self.num_threads, self.max_tokens, int(self.profile),
            num_layers, num_blocks, num_kv_heads, block_size, head_dim, self._max_group,
            ctypes.addressof(ops), pointer(self.kv.k), pointer(self.kv.v),
        )  # fmt: skip
        handle = self.lib.c.aie_plan_create(ctypes.byref(spec))
        if not handle:
            raise OutOfMemoryError(f"The machine refuses memory or threads for a plan with {self.num_threads} threads.")
        limits = Limits(self.max_tokens, self.max_context, num_blocks, block_size, self._vocab_size)
        alive = [self.kv, *self._alive, *self._tables.values()]
        return Plan(self.lib, handle, limits, alive, int(self.lib.c.aie_plan_scratch_bytes(ctypes.byref(spec))))


class Plan:
    """A built plan. One step at a time; `close` (or leaving the `with`) joins its threads and frees its memory."""

    def __init__(
        self, lib: NativeLibrary, handle: int, limits: Limits, alive: list[object], scratch_bytes: int
    ) -> None:
        self.scratch_bytes = scratch_bytes  # of all threads together, from C's own allocator
        self._lib, self._handle, self._limits, self._alive = lib, handle, limits, alive

    def run(self, step: StepArrays) -> None:
        """Run every operator for this step. Not to be called by two threads at once."""
        assert self._handle, "the plan is closed"
        self._limits.check(step)
        self._lib.c.aie_plan_run(
            self._handle,
            ctypes.byref(
                StepC(
                    len(step.token_ids), len(step.context_lens), len(step.logit_rows), step.block_tables.shape[1],
                    pointer(step.token_ids), pointer(step.positions), pointer(step.seq_starts),
                    pointer(step.context_lens), pointer(step.block_tables), pointer(step.logit_rows),
                )
            ),
        )  # fmt: skip

    def profile(self) -> list[tuple[str, int, int]]:
        """[(operator, nanoseconds, calls)] since the build, longest first; empty unless built with profile=True."""
        assert self._handle, "the plan is closed"
        return self._lib.plan_profile(self._handle)

    def close(self) -> None:
        """Join the threads and free the memory; again is harmless."""
        if self._handle:
            self._lib.c.aie_plan_free(self._handle)
            self._handle = 0
            self._alive.clear()

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
