"""From the bytes of any element type to float32: the reference that every kernel is tested against.

Float32 arithmetic in the order in which ggml's own reference code does it, so that results agree bit for bit. Axis b:
blocks.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aie_tensor import k_blocks
from aie_tensor.dtypes import DType
from aie_tensor.errors import InvalidInputError
from aie_tensor.small_floats import small_float_table

__all__ = ["decode"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decode(dtype: DType, data: Bytes) -> Floats:
    """Raw bytes [n] → float32 [elements], always a fresh array.

    InvalidInputError for C64, which float32 cannot hold, and for the 6-bit floats, whose packing no format defines.
    """
    block_decoder = _BLOCK_DECODERS.get(dtype)
    if block_decoder is not None:
        return block_decoder(data.reshape(-1, dtype.block_bytes)).reshape(-1)
    if dtype is DType.BF16:
        # A bfloat16 is the upper half of a float32.
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype is DType.F4:
        pairs: Floats = small_float_table(dtype)[np.stack([data & 15, data >> 4], axis=-1)]
        return pairs.reshape(-1)
    if dtype in _TABLE_TYPES:
        return small_float_table(dtype)[data]
    if dtype is DType.BOOL:
        bits: Floats = (data != 0).astype(np.float32)
        return bits
    if dtype.numpy is None or dtype is DType.C64:
        raise InvalidInputError(f"elements of type {dtype.value} cannot be read as float32")
    floats: Floats = data.view(dtype.numpy).astype(np.float32)
    return floats


def _decode_q8_0(blocks: Bytes) -> Floats:
    levels = blocks[:, 2:].view(np.int8).astype(np.float32)
    levels *= _half(blocks, 0)
    return levels


def _decode_q4_0(blocks: Bytes) -> Floats:
    levels = _nibbles(blocks[:, 2:])
    levels -= 8
    levels *= _half(blocks, 0)
    return levels


def _decode_q4_1(blocks: Bytes) -> Floats:
    levels = _nibbles(blocks[:, 4:])
    levels *= _half(blocks, 0)
    levels += _half(blocks, 2)
    return levels


def _decode_q5_0(blocks: Bytes) -> Floats:
    levels = _nibbles(blocks[:, 6:]) + _fifth_bits(blocks[:, 2:6])
    levels -= 16
    levels *= _half(blocks, 0)
    return levels


def _decode_q5_1(blocks: Bytes) -> Floats:
    levels = _nibbles(blocks[:, 8:]) + _fifth_bits(blocks[:, 4:8])
    levels *= _half(blocks, 0)
    levels += _half(blocks, 2)
    return levels


def _half(blocks: Bytes, offset: int) -> Floats:
    """The half-precision number at `offset` of each block, as float32 [b, 1] (float32 holds every half exactly)."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """[b, 16] bytes → [b, 32] whole numbers 0–15: low nibbles first, then high nibbles."""
    dense = np.ascontiguousarray(packed)  # one strided pass instead of two
    return np.concatenate([dense & 15, dense >> 4], axis=1).astype(np.float32)


def _fifth_bits(packed: Bytes) -> Floats:
    """[b, 4] bytes → [b, 32], 16 where the element's bit is set: bit i of the 32 belongs to element i."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32) * np.float32(16)


_TABLE_TYPES = {DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ}
_BLOCK_DECODERS: dict[DType, Callable[[Bytes], Floats]] = {
    DType.Q8_0: _decode_q8_0,
    DType.Q4_0: _decode_q4_0,
    DType.Q4_1: _decode_q4_1,
    DType.Q5_0: _decode_q5_0,
    DType.Q5_1: _decode_q5_1,
    DType.Q2_K: k_blocks.decode_q2_k,
    DType.Q3_K: k_blocks.decode_q3_k,
    DType.Q4_K: k_blocks.decode_q4_k,
    DType.Q5_K: k_blocks.decode_q5_k,
    DType.Q6_K: k_blocks.decode_q6_k,
}
