"""Reading ggml's K types: blocks of 256 whose scales are themselves quantized.

A block is cut into sub-blocks of 16 or 32 elements. Each has its own small integer scale `s` (and, in Q2_K, Q4_K and
Q5_K, a small integer minimum `m`), and one or two half-precision numbers scale those:

    Q2_K   84 bytes   16 × (4-bit s | 4-bit m) | 64 bytes of q  | f16 d | f16 e          value = d·s·q − e·m
    Q3_K  110 bytes   32 bytes of third bits | 64 bytes of q | 12 bytes of s | f16 d     value = d·(s − 32)·q
    Q4_K  144 bytes   f16 d | f16 e | 12 bytes of s and m | 128 bytes of q               value = d·s·q − e·m
    Q5_K  176 bytes   f16 d | f16 e | 12 bytes of s and m | 32 bytes of fifth bits | 128 value = d·s·q − e·m
    Q6_K  210 bytes   128 bytes of low nibbles | 64 of high pairs | 16 × int8 s | f16 d  value = d·s·(q − 32)

Sub-blocks have 16 elements in Q2_K, Q3_K and Q6_K, 32 in Q4_K and Q5_K. Float32 arithmetic in the order written gives
ggml's bits. Axis b: blocks.

Layouts and formulas: ggml's `block_q*_K` and `dequantize_row_q*_K`, checked against the `gguf` package in
`tests/01_tensor/test_quant.py`.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode_q2_k", "decode_q3_k", "decode_q4_k", "decode_q5_k", "decode_q6_k"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_PAIRS = (0, 2, 4, 6)
_NIBBLES = (0, 4)
_BITS = tuple(range(8))


def decode_q2_k(blocks: Bytes) -> Floats:
    """[b, 84] → float32 [b, 256]."""
    scales, packed = blocks[:, :16], blocks[:, 16:80]
    step = _half(blocks, 80) * (scales & 15).astype(np.float32)  # [b, 16]
    minimum = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    levels = _spread(packed, 32, _PAIRS, 3).reshape(-1, 16, 16).astype(np.float32)
    return (step[:, :, None] * levels - minimum[:, :, None]).reshape(-1, 256)


def decode_q3_k(blocks: Bytes) -> Floats:
    """[b, 110] → float32 [b, 256]. A third bit that is *set* means that nothing is subtracted."""
    third, packed, scales = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    # Sixteen 6-bit scales: eight bytes hold their low nibbles (first all low halves, then all high), four the rest.
    low = _spread(scales[:, :8], 8, _NIBBLES, 15).reshape(-1, 16)
    high = _spread(scales[:, 8:], 4, _PAIRS, 3).reshape(-1, 16)
    step = _half(blocks, 108) * ((low | high << 4).astype(np.int8) - np.int8(32)).astype(np.float32)  # [b, 16]
    pairs = _spread(packed, 32, _PAIRS, 3).reshape(-1, 256).astype(np.int8)
    unset = _spread(third, 32, _BITS, 1).reshape(-1, 256) ^ 1
    levels = (pairs - (unset << 2).astype(np.int8)).astype(np.float32).reshape(-1, 16, 16)
    return (step[:, :, None] * levels).reshape(-1, 256)


def decode_q4_k(blocks: Bytes) -> Floats:
    """[b, 144] → float32 [b, 256]."""
    levels = _spread(blocks[:, 16:], 32, _NIBBLES, 15)
    return _scaled_by_eight(blocks, levels)


def decode_q5_k(blocks: Bytes) -> Floats:
    """[b, 176] → float32 [b, 256]. Bit i of the 32 bytes of fifth bits belongs to sub-block i."""
    levels = _spread(blocks[:, 48:], 32, _NIBBLES, 15).reshape(-1, 8, 32)
    fifth = _spread(blocks[:, 16:48], 32, _BITS, 1).reshape(-1, 8, 32)
    return _scaled_by_eight(blocks, (levels | fifth << 4).astype(np.uint8, copy=False))


def decode_q6_k(blocks: Bytes) -> Floats:
    """[b, 210] → float32 [b, 256]. Two halves of 128 elements, each from 64 bytes of nibbles and 32 of upper pairs."""
    low = _spread(blocks[:, :128], 64, _NIBBLES, 15).reshape(-1, 256)
    high = _spread(blocks[:, 128:192], 32, _PAIRS, 3).reshape(-1, 256)
    levels = ((low | high << 4).astype(np.int8) - np.int8(32)).astype(np.float32).reshape(-1, 16, 16)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    step = _half(blocks, 208) * scales  # [b, 16]
    return (step[:, :, None] * levels).reshape(-1, 256)


def _scaled_by_eight(blocks: Bytes, levels: Bytes) -> Floats:
    """Q4_K and Q5_K share everything but the levels: d and e in front, then eight 6-bit scales and minima."""
    scales, minima = _six_bit(blocks[:, 4:16])
    step = (_half(blocks, 0) * scales.astype(np.float32))[:, :, None]  # [b, 8, 1]
    minimum = (_half(blocks, 2) * minima.astype(np.float32))[:, :, None]
    return (step * levels.reshape(-1, 8, 32).astype(np.float32) - minimum).reshape(-1, 256)


def _six_bit(packed: Bytes) -> tuple[Bytes, Bytes]:
    """[b, 12] → scales and minima [b, 8] each, 0 to 63.

    Scales 0–3 are the low six bits of bytes 0–3, minima 0–3 those of bytes 4–7. Numbers 4–7 have their low nibbles in
    bytes 8–11 (scale low, minimum high) and their upper two bits on top of the first eight bytes.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    return scales, minima


def _spread(packed: Bytes, width: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """[b, n] bytes → [b, n/width, shifts, width] fields: of each run of `width` bytes first all low fields, then on."""
    runs = packed.reshape(len(packed), -1, 1, width)
    return runs >> np.array(shifts, dtype=np.uint8)[:, None] & np.uint8(mask)


def _half(blocks: Bytes, offset: int) -> Floats:
    """The half-precision number at `offset` of each block, as float32 [b, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)
