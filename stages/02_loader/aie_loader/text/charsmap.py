"""SentencePiece's compiled normalization, checked before it is handed to a library that trusts it.

The bytes are: a length n (uint32), n bytes of a trie in a double array of uint32 units, then the replacement texts,
each ended by a zero byte. From unit i the child for byte c is unit (i ^ offset) ^ c, where the offset is part of the
unit; a unit with the leaf bit has its value, a position among the texts, at i ^ offset. Nothing keeps a broken file's
offsets inside the array, and following one out of it ends the library with a panic that no `except Exception` catches.
Since c is below 256, the children of one unit lie in one block of 256, so a check of each unit's block is enough.
Format: Yata's Darts-clone, as SentencePiece embeds it.
"""

import struct

import numpy as np

from aie_loader.errors import TokenizerError

__all__ = ["check_charsmap"]


def check_charsmap(raw: bytes) -> None:
    """Raises `TokenizerError` unless every path through the trie stays inside it and ends at a text."""
    if len(raw) < 4:
        raise TokenizerError("the tokenizer's normalization map is cut short")
    (size,) = struct.unpack("<I", raw[:4])
    if size == 0 or size % 4 or size > len(raw) - 4:
        raise TokenizerError(f"the tokenizer's normalization map says {size} bytes of trie, of {len(raw) - 4}")
    units = np.frombuffer(raw, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    texts = raw[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError("the tokenizer's normalization map has texts that are not UTF-8") from error
    is_node = units >> 31 == 0  # the others are values
    is_node[0] = True  # nobody asks the root
    base = np.arange(len(units)) ^ ((units >> 10) << ((units & (1 << 9)) >> 6))
    if np.any((base[is_node] | 0xFF) >= len(units)):
        raise TokenizerError("the tokenizer's normalization map points out of itself")
    positions = units[base[is_node & (units & (1 << 8) != 0)]] & 0x7FFFFFFF
    if np.any(positions > len(texts)):
        raise TokenizerError("the tokenizer's normalization map points behind its texts")
    starts = np.frombuffer(texts + b"\0", dtype=np.uint8)[positions]
    if np.any(starts & 0xC0 == 0x80):
        raise TokenizerError("the tokenizer's normalization map points into the middle of a character")
