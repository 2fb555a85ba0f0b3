"""Reading SentencePiece's `.model` files: a protocol-buffers message, of which a few fields are needed.

A message is a run of fields, each a key (number of the field and wire type, as a varint) and a value: a varint, 4 or 8
bytes, or a length and that many bytes, which may be a message again. Every length is checked against what is left of
the enclosing message; nesting is two levels deep, so nothing recurses; unknown fields are skipped.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, TokenizerError
from aie_loader.text.pieces import PieceType

__all__ = ["SentencePieceFile", "read_sentencepiece"]

_MAX_BYTES = 256 << 20
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_KINDS = {1: "unigram", 2: "bpe"}

Field = tuple[int, int | float | bytes]  # number and value; a float where the wire type is 4 bytes


@dataclass(slots=True)
class SentencePieceFile:
    """The fields of a model file that matter, with the format's defaults."""

    pieces: list[str]
    scores: list[float]
    types: list[int]  # of `PieceType`
    kind: str = "unigram"  # or "bpe"
    unknown_id: int = 0
    charsmap: bytes | None = None
    adds_space_prefix: bool = True
    removes_extra_spaces: bool = True


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Raises `MalformedHeaderError` for a file that is no such message, `TokenizerError` for what is not supported."""
    if path.stat().st_size > _MAX_BYTES:
        raise MalformedHeaderError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB, too large for a tokenizer")
    model = SentencePieceFile([], [], [])
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1 and isinstance(value, bytes):
                _read_piece(model, value)
            elif number == 2 and isinstance(value, bytes):
                _read_trainer(model, value, path)
            elif number == 3 and isinstance(value, bytes):
                _read_normalizer(model, value)
    except (ValueError, struct.error) as error:  # UnicodeDecodeError too
        raise MalformedHeaderError(f"{path}: is not a SentencePiece model: {error}") from error
    if not all(map(math.isfinite, model.scores)):
        raise MalformedHeaderError(f"{path}: has a piece whose score is no finite number")
    if not model.pieces:
        raise MalformedHeaderError(f"{path}: is not a SentencePiece model: it has no pieces")
    if not 0 <= model.unknown_id < len(model.pieces):
        raise TokenizerError(f"{path}: the unknown piece has id {model.unknown_id} of {len(model.pieces)}")
    return model


def _read_piece(model: SentencePieceFile, message: bytes) -> None:
    text, score, kind = b"", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    model.pieces.append(text.decode())
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencePieceFile, message: bytes, path: Path) -> None:
    for number, value in _fields(message):
        if not isinstance(value, int):
            continue
        if number == 3:
            if value not in _KINDS:
                raise TokenizerError(f"{path}: a word or character model (type {value}); supported: unigram, BPE")
            model.kind = _KINDS[value]
        elif number == 24 and value:
            raise TokenizerError(f"{path}: marks spaces after words, which is not supported")
        elif number == 40:
            model.unknown_id = value


def _read_normalizer(model: SentencePieceFile, message: bytes) -> None:
    for number, value in _fields(message):
        if number == 2 and isinstance(value, bytes):
            model.charsmap = value or None
        elif number == 3:
            model.adds_space_prefix = bool(value)
        elif number == 4:
            model.removes_extra_spaces = bool(value)


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of one message in order. Raises `ValueError` where it breaks a rule."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _varint(message, at)
        elif wire in {_EIGHT_BYTES, _FOUR_BYTES}:
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field has the unknown wire type {wire}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes does not fit into the {end - at} that are left")
        raw = message[at : at + size]
        at += size
        yield number, struct.unpack("<f", raw)[0] if wire == _FOUR_BYTES else raw


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A signed number of 64 bits, 7 in each byte, lowest first; and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value - (1 << 64) if value >= 1 << 63 else value), at
    raise ValueError("a number has more than 10 bytes")
