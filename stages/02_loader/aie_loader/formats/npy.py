"""One NumPy array as `numpy.save` writes it, without `pickle` and without `eval`.

    "\\x93NUMPY"  major u8  minor u8  header_bytes u16 (u32 from version 2)
    {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  padded by spaces, ended by a newline
    the elements

The header is a Python literal. NumPy evaluates it as one; we read the one sentence that it can be, word by word, so
that nothing nests and nothing is evaluated.

Layout: NumPy enhancement proposal 1, https://numpy.org/neps/nep-0001-npy-format.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from aie_loader.errors import MalformedHeaderError, TruncatedFileError, UnsupportedTensorTypeError
from aie_tensor import DType, InvalidInputError

__all__ = ["MAGIC", "MAX_HEADER_BYTES", "NpyHeader", "parse_npy_header"]

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000  # NumPy's own limit for files that are not trusted
_MAX_DIMS = 32
_MAX_VALUES = 1 << 63
_WORD = re.compile(r"\s*(?:'([^'\\]*)'|\"([^\"\\]*)\"|(True|False)|(0|[1-9]\d{0,19})|([{}()\[\],:-]))")
_LONG = re.compile(r"(?<=\d)L(?=\s*[,)])")  # Python 2 on Windows wrote (3L, 4L), in versions 1 and 2 of the format
_DESCR = re.compile(r"[<>|]([a-zA-Z])(\d{1,4})|[|]?(O)")
_KEYS = {"descr", "fortran_order", "shape"}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What an array is, and where its elements start."""

    dtype: DType
    stored: np.dtype[Any]  # the same, in the file's byte order
    shape: tuple[int, ...]
    fortran_order: bool  # columns first
    data_offset: int  # from the start of the array's file or member

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.block_bytes


def parse_npy_header(raw: bytes, total_bytes: int, where: str) -> NpyHeader:
    """The header at the start of `raw`, which holds at least the first `MAX_HEADER_BYTES` + 12 bytes or everything.

    `total_bytes` is the size of the whole array's file. Errors start with `where` and name the broken rule.
    """
    if not raw.startswith(MAGIC):
        raise MalformedHeaderError(f"{where} is not a NumPy array: it starts with {raw[:6]!r}, not {MAGIC!r}")
    length_bytes = 2 if raw[6:7] == b"\1" else 4
    text_offset = 8 + length_bytes
    if len(raw) < text_offset:
        raise TruncatedFileError(f"{where} is truncated: it has {len(raw)} bytes, its header needs more")
    if raw[6] not in {1, 2, 3} or raw[7] != 0:
        raise MalformedHeaderError(f"{where} has version {raw[6]}.{raw[7]} of the format; 1.0, 2.0 and 3.0 can be read")
    header_bytes = int.from_bytes(raw[8:text_offset], "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise MalformedHeaderError(
            f"{where} claims a header of {header_bytes:,} bytes; {MAX_HEADER_BYTES:,} are allowed"
        )
    data_offset = text_offset + header_bytes
    if data_offset > total_bytes:
        raise TruncatedFileError(f"{where} is truncated: its header ends at byte {data_offset}, it at {total_bytes}")
    try:
        text = raw[text_offset:data_offset].decode("utf-8" if raw[6] == 3 else "latin-1")
    except UnicodeDecodeError as error:
        raise MalformedHeaderError(f"{where}: the header is not valid UTF-8") from error
    return _checked(_fields(text if raw[6] == 3 else _LONG.sub("", text), where), data_offset, where)


def _checked(fields: dict[str, object], data_offset: int, where: str) -> NpyHeader:
    if fields.keys() != _KEYS:
        raise MalformedHeaderError(f"{where}: the header has the keys {sorted(fields)}, not {sorted(_KEYS)}")
    shape, order = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or type(order) is not bool:
        raise MalformedHeaderError(f"{where}: shape is not a tuple of integers, or fortran_order not a truth value")
    if len(shape) > _MAX_DIMS or prod(shape) >= _MAX_VALUES:
        raise MalformedHeaderError(f"{where} has more than {_MAX_DIMS} dimensions, or 2^63 or more values")
    dtype, stored = _dtype(fields["descr"], where)
    return NpyHeader(dtype, stored, shape, order, data_offset)


def _dtype(descr: object, where: str) -> tuple[DType, np.dtype[Any]]:
    named = _DESCR.fullmatch(descr) if isinstance(descr, str) else None
    if named is not None and "O" in {named[1], named[3]}:
        raise UnsupportedTensorTypeError(
            f"{where} holds Python objects, which only pickle could read, and pickle runs what the file says; "
            "save arrays of numbers instead"
        )
    try:
        stored = np.dtype(descr) if named is not None and isinstance(descr, str) else None
        dtype = DType.from_numpy(stored) if stored is not None else None
    except (TypeError, ValueError, InvalidInputError):
        stored = dtype = None
    if stored is None or dtype is None or dtype.numpy is None or (stored.itemsize > 1) != (str(descr)[0] != "|"):
        known = ", ".join(member.value for member in DType if member.numpy is not None)
        raise UnsupportedTensorTypeError(
            f"{where} has elements of type {str(descr)[:40]!r}; the types that can be read are {known}"
        )
    return dtype, stored


def _fields(text: str, where: str) -> dict[str, object]:
    """{'key': value, …} where a value is a text, a truth value or a tuple of integers."""
    words = _words(text, where)
    _expect(words, "{", where)
    fields: dict[str, object] = {}
    while (key := next(words)) != "}":
        if not isinstance(key, _Text):
            raise _unreadable(where, f"{key!s:.20} stands where a key should")
        _expect(words, ":", where)
        if key.text in fields:
            raise MalformedHeaderError(f"{where}: the header's key {key.text!r:.40} occurs twice")
        fields[key.text] = _value(words, where)
        follows = next(words)
        if follows == "}":
            break
        if follows != ",":
            raise _unreadable(where, f"{follows!s:.20} stands where a comma should")
    if next(words) != "":
        raise _unreadable(where, "something follows the closing brace")
    return fields


def _value(words: Iterator[object], where: str) -> object:
    word = next(words)
    if isinstance(word, _Text):
        return word.text
    if isinstance(word, bool):
        return word
    if word != "(":
        # A list here describes a record of several fields: NumPy can, a tensor cannot.
        return None if word != "[" else _raise(UnsupportedTensorTypeError(f"{where} is an array of records"))
    sizes: list[int] = []
    while (word := next(words)) != ")":
        if type(word) is not int:
            raise _unreadable(where, f"{word!s:.20} stands in the shape")
        sizes.append(word)
        word = next(words)
        if word == ")" and len(sizes) > 1:
            break
        if word != ",":
            raise _unreadable(where, "the shape is not a tuple")
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Text:
    """A quoted word, as opposed to a sign."""

    text: str


def _words(text: str, where: str) -> Iterator[object]:
    """Texts, truth values, integers and signs; then an empty sign for ever."""
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _WORD.match(text, position, end)
        if found is None:
            raise _unreadable(where, f"{text[position : position + 20].strip()!r} at character {position}")
        single, double, truth, number, sign = found.groups()
        position = found.end()
        quoted = single if single is not None else double
        if quoted is not None:
            yield _Text(quoted)
        elif truth:
            yield truth == "True"
        else:
            yield int(number) if number else sign
    while True:
        yield ""


def _expect(words: Iterator[object], sign: str, where: str) -> None:
    word = next(words)
    if word != sign:
        raise _unreadable(where, f"{word!s:.20} stands where {sign} should")


def _unreadable(where: str, why: str) -> MalformedHeaderError:
    return MalformedHeaderError(f"{where}: the header is not a dictionary of descr, fortran_order and shape: {why}")


def _raise(error: Exception) -> object:
    raise error
