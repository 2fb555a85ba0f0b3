"""Operators on rows, as entries of a plan: look-ups, norms, products with weights, functions of elements.

Axes: T tokens, V vocabulary, C width, K/N widths of a linear layer; "." stands for whatever rows an operator runs over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aie_tensor.native.appending import Appender, Buffer, F32Array, Rows, in_out
from aie_tensor.native.library import pointer
from aie_tensor.native.packed import PackedMatrix
from aie_tensor.native.structs import FORMATS, INDICES, POOL_KINDS
from aie_tensor.quant import Matrix

__all__ = ["RowOperators"]


@dataclass
class RowOperators(Appender):
    """An operator may write over its own input only where its method says so."""

    def embed(self, table: Matrix, out: Buffer, *, index: str = "token_ids", scale: float = 1.0) -> None:
        """out[t] = scale · row index[t] of table [V, C], read in the file's own layout.

        index: which of the step's arrays: "token_ids", "positions" or "token_types".
        """
        assert table.dtype in FORMATS and table.shape[1] == out.width, (table.dtype, table.shape, out)
        self._alive.append(table)
        self._index_sizes[index] = min(self._index_sizes.get(index, table.shape[0]), table.shape[0])
        row_bytes = table.nbytes // table.shape[0]
        self._append(
            "embed", out=out.address, out_width=out.width, index=INDICES.index(index), scale=scale,
            table=pointer(table.data), table_format=FORMATS.index(table.dtype), table_row_bytes=row_bytes,
        )  # fmt: skip

    def rms_norm(
        self, x: Buffer, weight: F32Array, eps: float, out: Buffer, rows: Rows = "tokens", *,
        offset: float = 0.0, num_heads: int = 1,
    ) -> None:  # fmt: skip
        """out = x / sqrt(mean(x²) + eps) · (weight + offset), each of a row's `num_heads` parts by itself; out may be
        x."""
        self._norm("rms_norm", x, out, rows, num_heads, weight=weight + np.float32(offset), eps=eps)

    def layer_norm(
        self, x: Buffer, weight: F32Array, bias: F32Array | None, eps: float, out: Buffer, rows: Rows = "tokens", *,
        num_parts: int = 1,
    ) -> None:  # fmt: skip
        """out = (x − mean) / sqrt(variance + eps) · weight + bias, each of a row's parts by itself; out may be x."""
        self._norm("layer_norm", x, out, rows, num_parts, weight=weight, bias=bias, eps=eps)

    def l2_normalize(self, x: Buffer, out: Buffer, rows: Rows = "tokens", *, num_parts: int = 1) -> None:
        """out = x / |x|, each of a row's parts by itself; out may be x."""
        self._norm("l2_normalize", x, out, rows, num_parts)

    def _norm(
        self, name: str, x: Buffer, out: Buffer, rows: Rows, num_parts: int, *,
        weight: F32Array | None = None, bias: F32Array | None = None, eps: float = 0.0,
    ) -> None:  # fmt: skip
        assert x.width == out.width and x.width % num_parts == 0, (x, out, num_parts)
        width = x.width // num_parts
        addresses = [0 if vector is None else self._vector(vector, width) for vector in (weight, bias)]
        self._append(name, rows, num_heads=num_parts, weight=addresses[0], bias=addresses[1], eps=eps, **in_out(x, out))

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
            mats=self._packed(weights, x.width), num_mats=len(weights), **in_out(x, out),
        )  # fmt: skip

    def swiglu(self, x: Buffer, gate: PackedMatrix, up: PackedMatrix, out: Buffer, rows: Rows = "tokens") -> None:
        """out [., N] = silu(x · gateᵀ) · (x · upᵀ) (Shazeer 2020); out may not be x."""
        assert gate.n == up.n == out.width and x.address != out.address, (gate.n, up.n, out)
        mats = self._packed([gate, up], x.width)
        self._append("swiglu", rows, mats=mats, num_mats=2, **in_out(x, out))

    def select_rows(self, x: Buffer, out: Buffer) -> None:
        """out[r] = x[logit_rows[r]]; out may not be x."""
        assert x.width == out.width and x.address != out.address, (x, out)
        self._append("select_rows", **in_out(x, out))

    def pool_tokens(self, x: Buffer, out: Buffer, kind: Literal["mean", "cls", "max", "last"]) -> None:
        """x [T, C] → out [S, C]: one row for each sequence; out may not be x."""
        assert x.width == out.width and x.address != out.address, (x, out)
        self._append("pool_tokens", index=POOL_KINDS.index(kind), **in_out(x, out))

    def argmax(self, x: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """x [., V] → out [., 1] of int32: index of each row's first greatest value, or of its first NaN."""
        assert out.width == 1 and x.width > 0, (x, out)
        self._append("argmax", rows, **in_out(x, out))

    def silu(self, x: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = x / (1 + e^-x); out may be x."""
        self.map("silu", x, out, rows)

    def map(self, name: str, x: Buffer, out: Buffer, rows: Rows = "tokens", *, constant: float = 1.0) -> None:
        """out = f(x), element by element; out may be x.

        name: silu, relu, sigmoid, tanh, gelu, gelu_tanh, quick_gelu; with a constant: scale (x · constant), softcap
        (constant · tanh(x / constant)).
        """
        assert x.width == out.width, (x, out)
        self._append(name, rows, scale=constant, **in_out(x, out))

    def mul(self, a: Buffer, b: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = a · b, element by element; out may be a or b."""
        self._binary("mul", a, b, out, rows)

    def add(self, a: Buffer, b: Buffer, out: Buffer, rows: Rows = "tokens") -> None:
        """out = a + b; out may be a or b."""
        self._binary("add", a, b, out, rows)

    def _binary(self, name: str, a: Buffer, b: Buffer, out: Buffer, rows: Rows) -> None:
        assert a.width == b.width == out.width, (a, b, out)
        self._append(name, rows, y=b.address, **in_out(a, out))
