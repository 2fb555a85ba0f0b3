"""GGUF, searched: sound files with a few numbers, lengths or parts changed, read by us and by the `gguf` package.

What we accept, the package must accept, with the same metadata and the same bytes. The package is made for its own
files and believes most of what a file says, so what only it accepts is a longer list: `ALLOWED`, or a `Leniency`.
"""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import ModelFileError, UnsupportedTensorTypeError
from aie_loader.formats import Checkpoint, Leniency, open_gguf
from aie_loader.formats.gguf_types import TYPE_NUMBERS

Write = Callable[[bytes, str], Path]

# What only the package accepts, and why we do not. None of these can be let through.
ALLOWED = [
    r"is truncated",  # it takes shorter strings and arrays where the file ends too early
    r"bytes after the last tensor",  # and, where a tensor is smaller than its row says, has a rest
    r"big-endian",  # it reads them; we have no machine to try that on
    r"the unknown value type|neither 0 nor 1",  # it takes any byte for a truth value
    r"is not valid UTF-8",  # it looks at the letters of a value only when it is asked for them
    r"is empty or",  # keys and names without letters
    r"nests arrays deeper",
    r"has \d+ dimensions; 1 to 4 are allowed",
    r"has dimensions \[.*\]; each must be",  # none of 0: nothing could be computed with it
    r"not whole \w+ blocks of",  # it rounds bytes down
    r"general\.alignment is",  # any power of two and any type; ours is 8 to 2^20
    r"metadata key .* occurs twice",
    r"split\.count is|is one of \d+ files of a model|is not the first file|says that it is part|promises",
]

# What only we accept: the package keeps these names for itself, or flattens what it cannot show.
OURS = re.compile(r"GGUF\.(version|tensor_count|kv_count)")

VALUE_TYPES = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
texts = st.text(max_size=5)
small = st.integers(0, 120)
scalars = st.sampled_from(sorted(VALUE_TYPES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind), small.map(lambda value: struct.pack(VALUE_TYPES[kind], bool(value) if kind == 7 else value))
    )
)


def string(text: str) -> list[bytes]:
    raw = text.encode("utf-8", "replace")
    return [struct.pack("<Q", len(raw)), raw]


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> tuple[int, list[bytes]]:
    """(type, parts): each part is one number, text or run of data that a mutation may change."""
    kind = draw(st.sampled_from(["scalar", "string", "array"] if depth < 2 else ["scalar", "string"]))
    if kind == "scalar":
        number, raw = draw(scalars)
        return number, [raw]
    if kind == "string":
        return STRING, string(draw(texts))
    item_kind, first = draw(values(depth + 1))
    count = draw(st.integers(0, 3))
    return ARRAY, [struct.pack("<I", item_kind), struct.pack("<Q", count), *(first * count)]


@st.composite
def parts(draw: st.DrawFn) -> list[bytes]:
    """A sound file as the list of everything that it says."""
    keys = draw(st.lists(st.sampled_from(["a", "b.c", "é", "split.no", "x" * 40]), max_size=3, unique=True))
    names = draw(st.lists(st.sampled_from(["t", "u.weight", "ü", "v" * 64]), max_size=3, unique=True))
    alignment = draw(st.sampled_from([32, 8, 64]))
    metadata: list[bytes] = []
    for key in keys:
        kind, raw = draw(values())
        metadata += [*string(key), struct.pack("<I", kind), *raw]
    if alignment != 32:
        metadata += [*string("general.alignment"), struct.pack("<I", 4), struct.pack("<I", alignment)]
    rows: list[bytes] = []
    data: list[bytes] = []
    offset = 0
    for name in names:
        dtype = draw(st.sampled_from(list(TYPE_NUMBERS)))
        dims = [draw(st.integers(1, 2)) * dtype.block_size, *draw(st.lists(st.integers(1, 3), max_size=3))]
        size = dtype.nbytes(int(np.prod(dims)))
        rows += [*string(name), struct.pack("<I", len(dims)), *(struct.pack("<Q", dim) for dim in dims)]
        rows += [struct.pack("<I", TYPE_NUMBERS[dtype]), struct.pack("<Q", offset)]
        data += [bytes(i % 251 for i in range(size)), bytes(-size % alignment)]
        offset += size + -size % alignment
    num_keys = len(keys) + (alignment != 32)
    head = [b"GGUF", struct.pack("<I", draw(st.sampled_from([2, 3]))), struct.pack("<Q", len(names))]
    head += [struct.pack("<Q", num_keys), *metadata, *rows]
    length = sum(map(len, head))
    return [*head, bytes(-length % alignment), *data]


INTERESTING = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    9,
    10,
    12,
    13,
    31,
    32,
    33,
    64,
    255,
    256,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
    2**64 - 32,
]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    pieces = draw(parts())
    for _ in range(draw(st.integers(0, 2))):
        index = draw(st.integers(0, len(pieces) - 1))
        piece = pieces[index]
        kind = draw(st.sampled_from(["number", "number", "near", "drop", "copy", "swap", "bytes", "cut"]))
        if kind == "number" and len(piece) in {4, 8}:
            pieces[index] = (draw(st.sampled_from(INTERESTING)) % 256 ** len(piece)).to_bytes(len(piece), "little")
        elif kind == "near" and len(piece) in {4, 8}:
            near = int.from_bytes(piece, "little") + draw(st.sampled_from([-1, 1, 8, 32, -32]))
            pieces[index] = (near % 256 ** len(piece)).to_bytes(len(piece), "little")
        elif kind == "drop":
            pieces[index] = b""
        elif kind == "copy":
            pieces.insert(index, piece)
        elif kind == "swap":
            other = draw(st.integers(0, len(pieces) - 1))
            pieces[index], pieces[other] = pieces[other], piece
        elif kind == "bytes":
            pieces[index] = (
                draw(st.binary(min_size=len(piece), max_size=len(piece))) if len(piece) < 64 else piece[::-1]
            )
        else:
            pieces = [*pieces[:index], piece[: len(piece) // 2]]
            break
    return b"".join(pieces)


class BoundedReader(gguf.GGUFReader):  # type: ignore[misc]
    """The package's reader, except that it does not count to 2^63 when a file says that an array is so long."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == ARRAY and int(self._get(orig_offs + 4, np.uint64)[0]) > len(self.data):
            raise ValueError("an array longer than the file")
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        if int(count) > len(self.data):
            raise ValueError("more keys than bytes")
        return int(super()._build_fields(offs, count))

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        if int(count) > len(self.data):
            raise ValueError("more tensors than bytes")
        return super()._build_tensor_info(offs, count)


def theirs(path: Path) -> gguf.GGUFReader | None:
    """What the package sees; None where it fails, in whatever way."""
    try:
        with np.errstate(all="ignore"):
            return BoundedReader(path)
    except Exception:
        return None


def assert_same(ours: Checkpoint, reader: gguf.GGUFReader) -> None:
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        # Nested arrays it flattens, and of empty ones it does not know the type.
        if field.types[0] != ARRAY or (len(field.types) == 2 and field.types[1] != ARRAY):
            assert repr(ours.metadata[name]) == repr(field.contents()), name  # by `repr`, since NaN is not itself
    assert list(ours) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        matrix = ours[tensor.name]
        assert (matrix.dtype.name, list(matrix.shape)) == (tensor.tensor_type.name, tensor.shape[::-1].tolist())
        assert bytes(matrix.data) == tensor.data.tobytes()


@settings(settings.get_profile("fuzz"))
@given(files())
def test_fuzz_against_the_reference_reader(scratch_file: Write, raw: bytes) -> None:
    path = scratch_file(raw, ".gguf")
    reader = theirs(path)
    try:
        ours = open_gguf(path)
    except UnsupportedTensorTypeError:
        return
    except ModelFileError as error:
        if reader is None or any(re.search(pattern, str(error)) for pattern in ALLOWED):
            return
        assert "be lenient about" in str(error), error
        try:
            assert_same(open_gguf(path, lenient=Leniency), reader)
        except ModelFileError as second:
            assert any(re.search(pattern, str(second)) for pattern in ALLOWED), second
        return
    if reader is None and any(OURS.search(name) for name in ours.metadata):
        return
    assert reader is not None, "we accept what the package refuses"
    assert_same(ours, reader)


@settings(settings.get_profile("fuzz"))
@given(files())
def test_fuzz_what_is_accepted_can_be_used(scratch_file: Write, raw: bytes) -> None:
    """Whatever is let through, each tensor is inside the file and can be expanded."""
    checkpoint: Any
    for lenient in ((), Leniency):
        try:
            checkpoint = open_gguf(scratch_file(raw, ".gguf"), lenient=lenient)
        except ModelFileError:
            continue
        for matrix in checkpoint.values():
            with np.errstate(all="ignore"):
                assert matrix.dequantize().shape == matrix.shape
