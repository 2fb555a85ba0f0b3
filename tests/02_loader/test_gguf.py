"""GGUF: values equal those of the `gguf` package; a broken rule is one typed error; claims allocate nothing."""

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import MalformedHeaderError, MissingFileError, ModelFileError, TruncatedFileError
from aie_loader.errors import UnsupportedTensorTypeError
from aie_loader.formats import Leniency, open_gguf, read_gguf_header
from aie_loader.formats.gguf_types import TYPE_NUMBERS, UNSUPPORTED_TYPES
from aie_tensor import DType

Make = Callable[..., Any]
Write = Callable[[bytes, str], Path]
U8, BOOL, STRING, ARRAY = 0, 7, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


# Values

QUANTIZED_BY_THE_ORACLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# Types whose blocks the oracle can only read → where a block keeps its half-precision numbers.
READ_TYPES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.fixture(scope="module")
def oracle_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the `gguf` package: every kind of value, every supported kind of tensor."""
    path = tmp_path_factory.mktemp("gguf") / "oracle.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in [
        ("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4_000_000_000),
        ("int32", -2_000_000_000), ("uint64", 1 << 63), ("int64", -(1 << 62)), ("float32", 0.1), ("float64", 0.1),
        ("bool", True), ("string", "héllo \U0001f600"),
    ]:  # fmt: skip
        getattr(writer, f"add_{kind}")(f"one.{kind}", value)
    writer.add_array("array.strings", ["a", "", "Ġthe"])
    writer.add_array("array.ints", [1, -2, 3])
    writer.add_array("array.floats", [1.5, 2.5])
    writer.add_array("array.bools", [True, False])
    random = np.random.default_rng(0)
    kinds = gguf.GGMLQuantizationType
    for name in QUANTIZED_BY_THE_ORACLE:
        array = random.standard_normal((3, 64)).astype(np.float32)
        writer.add_tensor(f"t.{name}", gguf.quantize(array, kinds[name]), raw_dtype=kinds[name])
    for name, halves in READ_TYPES.items():
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kinds[name]]
        blocks = random.integers(0, 256, (3 * 256 // block_size, block_bytes), dtype=np.uint8)
        for offset in halves:  # the half-precision scales must be numbers; everything else may be anything
            scales = random.standard_normal((len(blocks), 1)).astype("<f2")
            blocks[:, offset : offset + 2] = scales.view(np.uint8)
        writer.add_tensor(f"t.{name}", blocks.reshape(3, -1), raw_dtype=kinds[name])
    writer.add_tensor("t.vector", random.standard_normal(5).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_equals_oracle(path: Path) -> None:
    reader, ours = gguf.GGUFReader(path), open_gguf(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert {name: field.contents() for name, field in fields.items()} == dict(ours.metadata)
    assert [tensor.name for tensor in reader.tensors] == list(ours.tensors)
    infos = {info.name: info for info in read_gguf_header(path).tensors}
    for tensor in reader.tensors:
        matrix = ours.tensors[tensor.name]
        assert matrix.shape == tuple(int(dim) for dim in tensor.shape[::-1])
        assert matrix.dtype.name == tensor.tensor_type.name
        assert infos[tensor.name].offset == tensor.data_offset
        assert bytes(matrix.data[:64]) == tensor.data.tobytes()[:64]
        assert matrix.nbytes == tensor.n_bytes


def test_values_equal_the_reference_reader(oracle_file: Path) -> None:
    assert_equals_oracle(oracle_file)
    for tensor in gguf.GGUFReader(oracle_file).tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        ours = open_gguf(oracle_file).tensors[tensor.name]
        np.testing.assert_array_equal(ours.dequantize(), expected.reshape(ours.shape))


@pytest.mark.real_model
def test_real_file_equals_the_reference_reader(real_model: Path) -> None:
    assert_equals_oracle(real_model)


def test_version_2_and_other_alignment(gguf_file: Make, tmp_path: Path) -> None:
    file = gguf_file(version=2, alignment=128)
    file.keys.append((b"general.alignment", 4, struct.pack("<I", 128)))
    file.tensors[1].offset, file.data = 128, bytes(range(200))
    path = tmp_path / "m.gguf"
    path.write_bytes(file.bytes())
    header = read_gguf_header(path)
    assert (header.version, header.alignment, header.data_offset % 128) == (2, 128, 0)
    assert header.metadata["numbers"] == [7, 8, 9]


def test_matrices_are_read_only_views_that_outlive_close(gguf_file: Make, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file().bytes())
    checkpoint = open_gguf(path)
    a = checkpoint.tensors["a"]
    checkpoint.close()
    path.unlink()
    assert not a.data.flags.writeable and not a.data.flags.owndata
    assert bytes(a.data) == bytes(range(32))
    assert (a.dtype, a.shape) == (DType.F32, (2, 4))


def test_every_type_that_the_format_has_is_read_or_named() -> None:
    numbers = {kind.value for kind in gguf.GGMLQuantizationType}
    assert numbers == set(TYPE_NUMBERS.values()) | UNSUPPORTED_TYPES.keys()
    for number, name in UNSUPPORTED_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == name
    for dtype, number in TYPE_NUMBERS.items():
        assert gguf.GGMLQuantizationType(number).name == dtype.name


# Broken rules: each case changes one thing in a valid file.


def with_key(kind: int, value: bytes) -> Callable[[Any], None]:
    return lambda f: f.keys.append((b"extra", kind, value))


def with_tensor(**changes: object) -> Callable[[Any], None]:
    return lambda f: vars(f.tensors[1]).update(changes)


def with_file(**changes: object) -> Callable[[Any], None]:
    return lambda f: vars(f).update(changes)


def alignment(value: int) -> Callable[[Any], None]:
    return lambda f: f.keys.append((b"general.alignment", 4, struct.pack("<I", value)))


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)


HUGE = (1 << 64) - 1
BROKEN = {
    "magic": (with_file(magic=b"GGML"), MalformedHeaderError, "not a GGUF file"),
    "big endian": (with_file(version=3 << 24), MalformedHeaderError, "big-endian"),
    "big endian magic": (with_file(magic=b"FUGG"), MalformedHeaderError, "big-endian"),
    "version 1": (with_file(version=1), MalformedHeaderError, "version 1"),
    "version 0": (with_file(version=0), MalformedHeaderError, "version 0"),
    "too many tensors": (with_file(num_tensors=HUGE), TruncatedFileError, "number of tensors"),
    "too many keys": (with_file(num_keys=1 << 40), TruncatedFileError, "number of metadata keys"),
    "key twice": (lambda f: f.keys.append(f.keys[0]), MalformedHeaderError, "'general.architecture' occurs twice"),
    "empty key": (lambda f: f.keys.append((b"", 4, bytes(4))), MalformedHeaderError, "key 2 is empty"),
    "key not UTF-8": (lambda f: f.keys.append((b"\xff", 4, bytes(4))), MalformedHeaderError, "UTF-8"),
    "unknown value type": (with_key(13, bytes(8)), MalformedHeaderError, "value type 13"),
    "bool of 2": (with_key(BOOL, b"\x02"), MalformedHeaderError, "neither 0 nor 1"),
    "bools with a 2": (with_key(ARRAY, struct.pack("<IQ", BOOL, 3) + b"\x01\x02\x00"), MalformedHeaderError, "neither"),
    "string not UTF-8": (with_key(STRING, struct.pack("<Q", 2) + b"\xc3("), MalformedHeaderError, "UTF-8"),
    "string too long": (with_key(STRING, struct.pack("<Q", HUGE)), TruncatedFileError, "'extra'"),
    "array too long": (with_key(ARRAY, struct.pack("<IQ", U8, HUGE)), TruncatedFileError, "the length of"),
    "strings too many": (with_key(ARRAY, struct.pack("<IQ", STRING, 1 << 30)), TruncatedFileError, "the length of"),
    "array of unknown": (with_key(ARRAY, struct.pack("<IQ", 99, 0)), MalformedHeaderError, "value type 99"),
    "nested too deep": (with_key(ARRAY, nested(5)), MalformedHeaderError, "nests arrays"),
    "alignment 0": (alignment(0), MalformedHeaderError, "general.alignment is 0"),
    "alignment 24": (alignment(24), MalformedHeaderError, "general.alignment is 24"),
    "alignment huge": (alignment(1 << 31), MalformedHeaderError, "general.alignment"),
    "alignment text": (
        lambda f: f.keys.append((b"general.alignment", STRING, text("32"))), MalformedHeaderError, "STRING, not a"),
    "alignment of one byte": (
        lambda f: f.keys.append((b"general.alignment", U8, b"\x20")), MalformedHeaderError, "UINT8, not a UINT32"),
    "no dimensions": (with_tensor(dims=[]), MalformedHeaderError, "0 dimensions"),
    "five dimensions": (with_tensor(dims=[32, 1, 1, 1, 1]), MalformedHeaderError, "5 dimensions"),
    "2^32-1 dimensions": (with_tensor(num_dims=(1 << 32) - 1), MalformedHeaderError, "dimensions"),
    "dimension 0": (with_tensor(dims=[32, 0]), MalformedHeaderError, "each must be"),
    "dimensions overflow": (with_tensor(dims=[1 << 40, 1 << 40]), TruncatedFileError, "'b' ends at byte"),
    "dimension 2^64-1": (with_tensor(dims=[32, HUGE]), MalformedHeaderError, "each must be"),
    "partial block": (with_tensor(dims=[30, 2]), MalformedHeaderError, "Q8_0 blocks of 32"),
    "IQ4_XS": (with_tensor(type=23), UnsupportedTensorTypeError, "tensor 'b' has type IQ4_XS"),
    "part of a K block": (with_tensor(type=12), MalformedHeaderError, "rows of 32 values, not whole Q4_K blocks"),
    "type 4": (with_tensor(type=4), UnsupportedTensorTypeError, "unknown type number 4; the types that can be read"),
    "tensor twice": (with_tensor(name=b"a"), MalformedHeaderError, "'a' occurs twice"),
    "nameless tensor": (with_tensor(name=b""), MalformedHeaderError, "name of tensor 1 is empty"),
    "unaligned": (with_tensor(offset=33), MalformedHeaderError, "not aligned to 32"),
    "overlap": (with_tensor(offset=0), MalformedHeaderError, "overlap"),
    "hole": (
        lambda f: (vars(f.tensors[1]).update(offset=64), vars(f).update(data=bytes(132))),
        MalformedHeaderError, "32 bytes between a and tensor 'b' belong to no tensor"),
    "trailing bytes": (with_file(data=bytes(129)), MalformedHeaderError, "1 bytes after the last tensor"),
    "out of file": (with_tensor(offset=1 << 62), TruncatedFileError, "'b' ends at byte"),
    "data cut": (with_file(data=bytes(99)), TruncatedFileError, "'b' ends at byte"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_is_named(rule: str, gguf_file: Make, tmp_path: Path) -> None:
    mutate, error, words = BROKEN[rule]
    file = gguf_file()
    mutate(file)
    path = tmp_path / "m.gguf"
    path.write_bytes(file.bytes())
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            read_gguf_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21  # whatever the file claims
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert words in message and str(path) in message and "\n" not in message
    assert caught.value.exit_code == 2


def test_a_long_key_before_many_strings_takes_linear_time(gguf_file: Make, tmp_path: Path) -> None:
    file = gguf_file()
    file.keys.append((b"k" * 65_535, ARRAY, struct.pack("<IQ", STRING, 200_000) + bytes(8 * 200_000)))
    path = tmp_path / "m.gguf"
    path.write_bytes(file.bytes())
    start = time.process_time()
    assert read_gguf_header(path).metadata["k" * 65_535] == [""] * 200_000
    assert time.process_time() - start < 10  # copying the key for each string would take a minute


def test_every_truncation_is_one_clear_sentence(gguf_file: Make, scratch_file: Write) -> None:
    raw = gguf_file().bytes()
    for length in range(len(raw)):
        with pytest.raises(ModelFileError) as caught:
            open_gguf(scratch_file(raw[:length], ".gguf"))
        assert "truncated" in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_bytes_loads_or_is_a_typed_error(gguf_file: Make, scratch_file: Write, data: Any) -> None:
    raw = bytearray(gguf_file().bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 8, 9, 127, 128, 255]))
    try:
        checkpoint = open_gguf(scratch_file(bytes(raw), ".gguf"))
    except ModelFileError:
        return
    for matrix in checkpoint.tensors.values():
        with np.errstate(all="ignore"):
            assert matrix.dequantize().shape == matrix.shape


LENIENT = {
    "unaligned": Leniency.UNALIGNED_TENSORS,
    "overlap": Leniency.SHARED_TENSORS,
    "hole": Leniency.HOLES,
    "trailing bytes": Leniency.TRAILING_BYTES,
}


@pytest.mark.parametrize("rule", LENIENT)
def test_each_leniency_lets_through_what_it_names(rule: str, gguf_file: Make, tmp_path: Path) -> None:
    file = gguf_file(data=bytes(range({"unaligned": 101, "overlap": 68}.get(rule, 100))))
    BROKEN[rule][0](file)
    path = tmp_path / "m.gguf"
    path.write_bytes(file.bytes())
    with pytest.raises(MalformedHeaderError, match=f"be lenient about '{LENIENT[rule]}'"):
        open_gguf(path, lenient=set(Leniency) - {LENIENT[rule]})
    offset = file.tensors[1].offset
    assert bytes(open_gguf(path, lenient={LENIENT[rule]})["b"].data) == file.data[offset : offset + 68]


def test_padding_after_the_last_tensor_is_no_trailing_byte(gguf_file: Make, tmp_path: Path) -> None:
    for size in (100, 101, 128):  # b ends at byte 100; the writers of the field pad it
        (tmp_path / "m.gguf").write_bytes(gguf_file(data=bytes(size)).bytes())
        assert len(open_gguf(tmp_path / "m.gguf")) == 2


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_gguf(tmp_path)
