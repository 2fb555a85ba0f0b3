"""Positions and attention, as entries of a plan: the methods that `PlanBuilder` has for them.

Axes: T tokens, H/G query/kv heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aie_tensor.native.appending import Appender, Buffer, F32Array, in_out
from aie_tensor.native.library import pointer
from aie_tensor.native.structs import OP_NAMES

__all__ = ["AttentionOperators"]

FLOAT_BYTES = 4
SPAN, PANEL = 256, 16  # of attention.h and simd.h: keys that are summed up together; floats that rows are padded to


@dataclass
class AttentionOperators(Appender):
    """rope, attention over the paged cache (with or without rope), attention over packed sequences."""

    _tables: dict[tuple[bytes, float], tuple[F32Array, F32Array]] = field(default_factory=dict, init=False)

    def rope(
        self, x: Buffer, out: Buffer, *, num_heads: int, head_dim: int, inv_freq: F32Array, interleaved: bool,
        attention_factor: float = 1.0,
    ) -> None:  # fmt: skip
        """out [T, H·D] = x, the first 2·len(inv_freq) features of each head turned by the token's position; out may be
        x."""
        assert x.width == out.width == num_heads * head_dim, (x, out, num_heads, head_dim)
        self._append(
            "rope", num_heads=num_heads, head_dim=head_dim,
            **self._rotation(inv_freq, head_dim, interleaved, attention_factor), **in_out(x, out),
        )  # fmt: skip

    def rope_attention(
        self, qkv: Buffer, out: Buffer, *, layer: int, num_heads: int, num_kv_heads: int, head_dim: int,
        scale: float, inv_freq: F32Array, interleaved: bool, attention_factor: float = 1.0, window: int | None = None,
        softcap: float | None = None, alibi_slopes: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        """qkv [T, (H + 2G)·D] → out [T, H·D]: rotates q and k, then as `attention`."""
        assert qkv.width == (num_heads + 2 * num_kv_heads) * head_dim, (qkv, num_heads, num_kv_heads, head_dim)
        key = qkv.address + FLOAT_BYTES * num_heads * head_dim
        parts = {"y": key, "z": key + FLOAT_BYTES * num_kv_heads * head_dim, "kv_width": qkv.width}
        rotation = self._rotation(inv_freq, head_dim, interleaved, attention_factor)
        self._attend(
            qkv,
            out,
            layer,
            num_heads,
            num_kv_heads,
            head_dim,
            scale,
            window,
            softcap,
            alibi_slopes,
            **parts,
            **rotation,
        )

    def attention(
        self, q: Buffer, k: Buffer, v: Buffer, out: Buffer, *, layer: int, num_heads: int, num_kv_heads: int,
        head_dim: int, scale: float, window: int | None = None, softcap: float | None = None,
        alibi_slopes: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        """q [T, H·D], k and v [T, G·D] → out [T, H·D]: stores k and v in the cache, then attends causally.

        window: how many positions a query sees, itself included. softcap bounds the scores. alibi_slopes [H] lower them
        with the distance.
        """
        assert q.width == num_heads * head_dim and k.width == v.width == num_kv_heads * head_dim, (q, k, v, head_dim)
        parts = {"y": k.address, "z": v.address, "kv_width": k.width}
        self._attend(q, out, layer, num_heads, num_kv_heads, head_dim, scale, window, softcap, alibi_slopes, **parts)

    def _attend(
        self, q: Buffer, out: Buffer, layer: int, num_heads: int, num_kv_heads: int, head_dim: int, scale: float,
        window: int | None, softcap: float | None, alibi_slopes: Sequence[float] | None, **fields: int,
    ) -> None:  # fmt: skip
        assert self.kv is not None, "causal attention needs a cache"
        _, num_layers, kv_heads, _, kv_dim = self.kv.k.shape
        assert (kv_heads, kv_dim) == (num_kv_heads, head_dim) and 0 <= layer < num_layers, (self.kv.k.shape, layer)
        assert num_heads % num_kv_heads == 0 and out.width == num_heads * head_dim, (num_heads, num_kv_heads, out)
        assert q.address != out.address and (window is None or window >= 1), (q, out, window)
        self._max_group = max(self._max_group, num_heads // num_kv_heads)
        slopes = 0 if alibi_slopes is None else self._vector(np.asarray(alibi_slopes, np.float32), num_heads)
        self._append(
            "attention", layer=layer, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=scale,
            window=min(window or 0, 2**31 - 1), softcap=softcap or 0.0, slopes=slopes, **fields, **in_out(q, out),
        )  # fmt: skip

    def encoder_attention(
        self, q: Buffer, k: Buffer, v: Buffer, out: Buffer, *, num_heads: int, num_kv_heads: int, head_dim: int,
        scale: float,
    ) -> None:  # fmt: skip
        """q [T, H·D], k and v [T, G·D] → out [T, H·D]: every token sees all of its own sequence."""
        assert q.width == out.width == num_heads * head_dim and num_heads % num_kv_heads == 0, (q, out, num_heads)
        assert k.width == v.width == num_kv_heads * head_dim and q.address != out.address, (q, k, v, out)
        self._max_group = max(self._max_group, num_heads // num_kv_heads)
        self._max_head_dim = max(self._max_head_dim, head_dim)
        self._append(
            "encoder_attention", num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=scale,
            y=k.address, z=v.address, kv_width=k.width, **in_out(q, out),
        )  # fmt: skip

    def _partial_sums(self) -> F32Array | None:
        """Where the sums of single spans wait to be merged: room for all spans that the cache can hold, each of one new
        token. A sequence for which there is no room left is not shared out."""
        users = [op for op in self._ops if op.kind == OP_NAMES.index("attention")]
        if self.kv is None or not users or self.max_context <= SPAN:
            return None
        num_blocks, _, _, block_size, _ = self.kv.k.shape
        floats = max(op.num_heads * (-(-op.head_dim // PANEL) * PANEL + 2) for op in users)
        num_spans = 2 * (-(-num_blocks * block_size // SPAN))
        return self.constants.allocate(num_spans * floats * FLOAT_BYTES, "partial sums of attention").view(np.float32)

    def _rotation(
        self, inv_freq: F32Array, head_dim: int, interleaved: bool, attention_factor: float
    ) -> dict[str, int]:
        """Tables of cos and sin [max_context, n], shared between layers; angles rounded to float32, as in training."""
        turning = 2 * len(inv_freq)
        assert inv_freq.ndim == 1 and 2 <= turning <= head_dim, (inv_freq.shape, head_dim)
        key = np.ascontiguousarray(inv_freq, np.float32).tobytes(), attention_factor
        if key not in self._tables:
            positions = np.arange(self.max_context, dtype=np.float32)
            angles = (positions[:, None] * inv_freq.astype(np.float32)[None, :]).astype(np.float64)
            factor, store = np.float32(attention_factor), self.constants.store
            cosines, sines = (function(angles).astype(np.float32) * factor for function in (np.cos, np.sin))
            self._tables[key] = store(cosines, "rotary tables"), store(sines, "rotary tables")
        cosines, sines = self._tables[key]
        return {
            "cosines": pointer(cosines),
            "sines": pointer(sines),
            "rotary_dim": turning,
            "interleaved": int(interleaved),
        }
