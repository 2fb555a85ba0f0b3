"""Texts as an encoder's graph takes them: packed one after another, without padding.

[101, 7592, 102]                        token_ids  [101, 7592, 102, 101, 102]
[101, 102]                         →    positions  [0, 1, 2, 0, 1]
                                        seq_starts [0, 3, 5]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aie_loader.graph import Graph
from aie_tensor import InvalidInputError

__all__ = ["PackedTexts", "pack_texts", "without_padding"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedTexts:
    """What a run of the graph is given: T tokens of S texts."""

    inputs: dict[str, npt.NDArray[np.int32]]  # by the graph's names, each [T]
    seq_starts: npt.NDArray[np.int32]  # [S + 1]


def pack_texts(
    graph: Graph, texts: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None
) -> PackedTexts:
    """texts: token ids. token_types: for each text as many; by default all are 0, the first part of a pair.

    InvalidInputError for no texts, an empty one, or types that do not match.
    """
    lengths = [len(text) for text in texts]
    if not lengths or 0 in lengths:
        raise InvalidInputError("there must be at least one text, and each needs at least one token")
    if token_types is not None and [len(types) for types in token_types] != lengths:
        raise InvalidInputError("token_types must have an entry for each token of each text", param="token_types")
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    inputs = {
        "token_ids": _joined(texts),
        "positions": np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], lengths),
    }
    if "token_types" in graph.inputs:
        inputs["token_types"] = np.zeros(starts[-1], dtype=np.int32) if token_types is None else _joined(token_types)
    elif token_types is not None and any(map(any, token_types)):
        raise InvalidInputError("this model does not distinguish types of tokens", param="token_types")
    return PackedTexts(inputs, starts)


def without_padding(token_ids: Sequence[Sequence[int]], attention_mask: Sequence[Sequence[int]]) -> list[list[int]]:
    """The texts of a padded batch, both [S, length]: a token stays where the mask is not 0, wherever padding stands."""
    if [len(row) for row in token_ids] != [len(row) for row in attention_mask]:
        raise InvalidInputError("attention_mask must have an entry for each token", param="attention_mask")
    return [
        [token for token, kept in zip(row, mask, strict=True) if kept]
        for row, mask in zip(token_ids, attention_mask, strict=True)
    ]


def _joined(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
