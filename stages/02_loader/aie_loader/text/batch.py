"""Many texts, or pairs of texts, at once: cut to a length and padded on the side that the model was trained with.

Cutting removes tokens of the text, never those that the model wants around it, such as BERT's [CLS] and [SEP]. Of a
pair the longer text gives way first, down to the length of the other, then both do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tokenizers

from aie_loader.text.library_errors import library_errors
from aie_tensor import InvalidInputError

__all__ = ["BatchRules", "EncodedBatch", "encode_batch"]

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What a model's files say about texts that are too long, and too short."""

    pad_token_id: int | None = None
    padding_side: Side = "right"
    truncation_side: Side = "right"
    max_length: int | None = None  # tokens, special ones too


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """S sequences. With padding to P, every row of `ids` and `type_ids` has P entries; else each its own length."""

    ids: list[list[int]]
    type_ids: list[list[int]]  # 0; for the second text of a pair whatever the model was trained with, usually 1
    lengths: list[int]  # tokens of the text, so without padding; the padding is to be masked
    padding_side: Side
    num_truncated: int  # sequences that lost something


def encode_batch(
    backend: tokenizers.Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    rules: BatchRules,
    *,
    max_length: int | None,
    truncate: bool,
    pad_to: int | Literal["longest"] | None,
    add_special_tokens: bool,
) -> EncodedBatch:
    """See `Tokenizer.encode_batch`. `backend` has neither padding nor truncation of its own."""
    limit = rules.max_length if max_length is None else max_length
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    seconds = [text[1] for text in texts if not isinstance(text, str)]
    with library_errors("the model's tokenizer fails on these texts"):
        encoded = backend.encode_batch(firsts, add_special_tokens=False)
        pairs = iter(backend.encode_batch(seconds, add_special_tokens=False))
    rows, num_truncated = [], 0
    for index, (text, first) in enumerate(zip(texts, encoded, strict=True)):
        second = None if isinstance(text, str) else next(pairs)
        if limit is not None:
            extra = backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
            num_truncated += _cut(first, second, limit - extra, truncate, rules.truncation_side, index)
        with library_errors("the model's tokenizer fails on these texts"):
            rows.append(backend.post_process(first, second, add_special_tokens))
    ids, type_ids = [row.ids for row in rows], [row.type_ids for row in rows]
    lengths = [len(row) for row in ids]
    if pad_to is not None:
        width = max(lengths, default=0) if pad_to == "longest" else pad_to
        if max(lengths, default=0) > width:
            raise InvalidInputError(
                f"a text has {max(lengths)} tokens, more than the {width} to pad to", param="pad_to"
            )
        ids = [_padded(row, width, rules.pad_token_id or 0, rules.padding_side) for row in ids]
        type_ids = [_padded(row, width, 0, rules.padding_side) for row in type_ids]
    return EncodedBatch(ids, type_ids, lengths, rules.padding_side, num_truncated)


def _cut(
    first: tokenizers.Encoding,
    second: tokenizers.Encoding | None,
    room: int,
    truncate: bool,
    side: Side,
    index: int,
) -> bool:
    """Shorten both to `room` tokens together; whether that was needed. Raises `InvalidInputError` if not allowed."""
    sizes = len(first.ids), 0 if second is None else len(second.ids)
    if sum(sizes) <= room:
        return False
    if room < 0:
        raise InvalidInputError("max_length leaves no room for the model's special tokens", param="max_length")
    if not truncate:
        raise InvalidInputError(
            f"text {index} has {sum(sizes)} tokens, but there is room for {room}; shorten it, or allow truncation",
            param=f"input[{index}]",
        )
    keep_first, keep_second = _shares(*sizes, room)
    first.truncate(keep_first, direction=side)
    if second is not None:
        second.truncate(keep_second, direction=side)
    return True


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each text keeps: the shorter all of it if it has at most half; the longer gets an odd one."""
    if second == 0:
        return room, 0
    short, long = min(first, second), max(first, second)
    if short > room // 2:
        short, long = room // 2, room - room // 2
    else:
        long = room - short
    return (short, long) if first <= second else (long, short)


def _padded(row: list[int], width: int, filler: int, side: Side) -> list[int]:
    padding = [filler] * (width - len(row))
    return padding + row if side == "left" else row + padding
