"""safetensors: values equal the library's; whatever the library refuses we refuse; every broken rule is named."""

import re
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from aie_loader import MalformedHeaderError, ModelFileError, TruncatedFileError
from aie_loader.errors import UnsupportedTensorTypeError
from aie_loader.formats import Leniency, open_safetensors, read_safetensors_header
from aie_loader.formats.safetensors import DTYPES

Make = Callable[..., Any]
Write = Callable[[bytes, str], Path]
HUGE = (1 << 64) - 1


def write(path: Path, file: Any) -> Path:
    path.write_bytes(file.bytes())
    return path


# Values


def test_values_equal_the_library(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "f32": random.standard_normal((3, 5)).astype(np.float32),
        "f16": random.standard_normal((2, 2, 2)).astype(np.float16),
        "f64": random.standard_normal(4),
        "i64": np.arange(6),
        "u8": np.arange(7, dtype=np.uint8),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(1.5, np.float32),
    }
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})
    ours = open_safetensors(tmp_path / "m.safetensors")
    assert ours.metadata == {"format": "np"}
    theirs = load_file(tmp_path / "m.safetensors")
    assert set(ours.tensors) == set(theirs)
    for name, array in theirs.items():
        assert ours.tensors[name].shape == array.shape
        np.testing.assert_array_equal(ours.tensors[name].dequantize(), array.astype(np.float32))


def test_bfloat16_is_the_upper_half_of_a_float32(safetensors_file: Make, tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3e38, 0.0], np.float32)
    header = {"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    matrix = open_safetensors(write(tmp_path / "m", safetensors_file(header=header, data=data))).tensors["x"]
    np.testing.assert_allclose(matrix.dequantize(), values, rtol=1 / 128)


def test_matrices_are_read_only_views_that_outlive_close(safetensors_file: Make, tmp_path: Path) -> None:
    checkpoint = open_safetensors(write(tmp_path / "m", safetensors_file()))
    b = checkpoint.tensors["b"]
    checkpoint.close()
    (tmp_path / "m").unlink()
    assert not b.data.flags.writeable and not b.data.flags.owndata
    assert bytes(b.data) == bytes(range(24, 32))


# Broken rules: each case changes one thing in a valid file.


def entry(**changes: object) -> Callable[[Any], None]:
    return lambda f: f.header["b"].update(changes)


def file(**changes: object) -> Callable[[Any], None]:
    return lambda f: vars(f).update(changes)


def top(**changes: object) -> Callable[[Any], None]:
    return lambda f: f.header.update(changes)


def json_text(text: str) -> Callable[[Any], None]:
    return lambda f: vars(f).update(header=text.encode("utf-8", "surrogatepass"))


B = '"b": {"dtype": "F16", "shape": [16], "data_offsets": [0, 32]}'
BROKEN = {
    "header of 0": (file(header_bytes=0), MalformedHeaderError, "claims a header of 0 bytes"),
    "header of 2^64-1": (file(header_bytes=HUGE), MalformedHeaderError, "claims a header"),
    "header over 100 MB": (file(header_bytes=100_000_001), MalformedHeaderError, "claims a header"),
    "header longer than the file": (file(header_bytes=99_000), TruncatedFileError, "the header has 99,000 bytes"),
    "no brace": (json_text(f"[{B}]"), MalformedHeaderError, "does not start with"),
    "byte-order mark": (json_text(f"\ufeff{{{B}}}"), MalformedHeaderError, "does not start with"),
    "not JSON": (json_text("{]"), MalformedHeaderError, "not valid JSON"),
    "trailing text": (json_text(f"{{{B}}} x"), MalformedHeaderError, "not valid JSON"),
    "not UTF-8": (file(header=b'{"\xff": 1}'), MalformedHeaderError, "not valid UTF-8"),
    "lone surrogate": (json_text('{"\\ud800": 1}'), MalformedHeaderError, "not valid UTF-8"),
    "NaN": (json_text('{"b": NaN}'), MalformedHeaderError, "NaN is not a JSON value"),
    "deep": (json_text('{"b":' + "[" * 100_000 + "]" * 100_000 + "}"), MalformedHeaderError, "nests deeper"),
    "many": (json_text('{"b": [' + "1," * 2_000_000 + "1]}"), MalformedHeaderError, "more than 2,000,000 values"),
    "5,000 digits": (json_text('{"b": ' + "9" * 5_000 + "}"), MalformedHeaderError, "not valid JSON"),
    "tensor twice": (json_text(f"{{{B}, {B}}}"), MalformedHeaderError, "'b' occurs twice"),
    "field twice": (
        json_text('{"b": {"dtype": "F16", "dtype": "F16"}}'), MalformedHeaderError, "'dtype' occurs twice"),
    "metadata null": (top(__metadata__=None), MalformedHeaderError, "__metadata__"),
    "metadata number": (top(__metadata__={"a": 1}), MalformedHeaderError, "__metadata__"),
    "unknown field": (entry(strides=[1]), MalformedHeaderError, "exactly the fields"),
    "missing field": (lambda f: f.header["b"].pop("shape"), MalformedHeaderError, "exactly the fields"),
    "entry is a list": (top(b=[1]), MalformedHeaderError, "exactly the fields"),
    "unknown dtype": (entry(dtype="C128"), UnsupportedTensorTypeError, "'C128'; the dtypes that can be"),
    "a block type": (entry(dtype="Q8_0"), UnsupportedTensorTypeError, "'Q8_0'; the dtypes that can be"),
    "rows not on a byte": (
        lambda f: f.header.update(b={"dtype": "F4", "shape": [4, 3], "data_offsets": [24, 30]}),
        MalformedHeaderError, "F4 [4, 3], whose rows do not end on a byte"),
    "values not on a byte": (
        lambda f: f.header.update(b={"dtype": "F6_E2M3", "shape": [3], "data_offsets": [24, 32]}),
        MalformedHeaderError, "F6_E2M3 [3], whose rows do not end on a byte"),
    "space first": (json_text(f" {{{B}}}"), MalformedHeaderError, "but with white space; to read the file"),
    "lower-case dtype": (entry(dtype="f16"), UnsupportedTensorTypeError, "'f16'"),
    "dtype number": (entry(dtype=1), UnsupportedTensorTypeError, "'1'"),
    "shape with true": (entry(shape=[True, 4]), MalformedHeaderError, "shape is not a list"),
    "shape negative": (entry(shape=[-4]), MalformedHeaderError, "shape is not a list"),
    "shape float": (entry(shape=[4.0]), MalformedHeaderError, "shape is not a list"),
    "shape null": (entry(shape=None), MalformedHeaderError, "shape is not a list"),
    "shape overflows": (entry(shape=[1 << 40, 1 << 40]), MalformedHeaderError, "2^63 or more"),
    "shape of 33": (entry(shape=[4, *[1] * 32]), MalformedHeaderError, "33 dimensions"),
    "shape too large": (entry(shape=[5]), MalformedHeaderError, "F16 [5], which is 10 bytes, but spans 8"),
    "offsets reversed": (entry(data_offsets=[32, 24]), MalformedHeaderError, "begin <= end"),
    "offsets of three": (entry(data_offsets=[24, 32, 32]), MalformedHeaderError, "begin <= end"),
    "offsets negative": (entry(data_offsets=[-8, 0]), MalformedHeaderError, "data_offsets is not a list"),
    "offsets minus zero": (
        json_text('{"b": {"dtype": "F16", "shape": [16], "data_offsets": [-0, 32]}}'),
        MalformedHeaderError, "data_offsets is not a list"),
    "offsets text": (entry(data_offsets=["24", "32"]), MalformedHeaderError, "data_offsets is not a list"),
    "offsets float": (entry(data_offsets=[24.0, 32.0]), MalformedHeaderError, "data_offsets is not a list"),
    "out of file": (entry(data_offsets=[1000, 1008]), TruncatedFileError, "ends at byte 1,008"),
    "overlap": (entry(data_offsets=[20, 28]), MalformedHeaderError, "overlaps"),
    "hole": (
        lambda f: (f.header["b"].update(data_offsets=[28, 36]), vars(f).update(data=bytes(36))),
        MalformedHeaderError, "hole"),
    "trailing bytes": (file(data=bytes(40)), MalformedHeaderError, "8 bytes after the last tensor"),
    "missing bytes": (file(data=bytes(31)), TruncatedFileError, "'b' ends at byte 32"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_is_named(rule: str, safetensors_file: Make, tmp_path: Path) -> None:
    mutate, error, words = BROKEN[rule]
    broken = safetensors_file()
    mutate(broken)
    path = write(tmp_path / "m.safetensors", broken)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            open_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 3 * size
    finally:
        tracemalloc.stop()
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.exit_code == 2
    with pytest.raises(safetensors.SafetensorError) if rule not in STRICTER else nullcontext():
        load_file(path)


# What the library (0.8) accepts and we refuse on purpose; everything else above it refuses, too.
STRICTER = {"space first", "metadata null", "unknown field", "tensor twice", "shape of 33"}

LENIENT = {
    "space first": Leniency.HEADER_SPACE,
    "metadata null": Leniency.NULL_METADATA,
    "unknown field": Leniency.UNKNOWN_FIELDS,
    "tensor twice": Leniency.DUPLICATE_KEYS,
}


@pytest.mark.parametrize("rule", LENIENT)
def test_each_leniency_lets_through_what_it_names(rule: str, safetensors_file: Make, tmp_path: Path) -> None:
    file = safetensors_file()
    BROKEN[rule][0](file)
    path = write(tmp_path / "m.safetensors", file)
    with pytest.raises(MalformedHeaderError, match=f"be lenient about '{LENIENT[rule]}'"):
        open_safetensors(path, lenient=set(Leniency) - {LENIENT[rule]})
    ours, theirs = open_safetensors(path, lenient={LENIENT[rule]}), load_file(path)
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert bytes(ours[name].data) == array.tobytes()


def test_every_dtype_of_the_format_is_read(safetensors_file: Make, tmp_path: Path) -> None:
    """The library says which there are when it is asked for one that there is not."""
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(
            safetensors_file(header={"x": {"dtype": "?", "shape": [], "data_offsets": [0, 0]}}).bytes()
        )
    known = set(re.findall(r"`(\w+)`", str(caught.value)))
    assert known == DTYPES.keys()
    for name in known:
        dtype = DTYPES[name]
        size = dtype.nbytes(24)
        header = {"x": {"dtype": name, "shape": [2, 12], "data_offsets": [0, size]}}
        raw = safetensors_file(header=header, data=bytes(range(size))).bytes()
        (tmp_path / "m").write_bytes(raw)
        [(_, theirs)] = safetensors.deserialize(raw)
        matrix = open_safetensors(tmp_path / "m")["x"]
        assert (matrix.dtype.name, list(matrix.shape)) == (theirs["dtype"], theirs["shape"])
        assert bytes(matrix.data) == bytes(theirs["data"])


def test_every_truncation_is_refused(safetensors_file: Make, scratch_file: Write) -> None:
    raw = safetensors_file().bytes()
    for length in range(len(raw)):
        with pytest.raises(TruncatedFileError):
            open_safetensors(scratch_file(raw[:length], ".safetensors"))


json_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 65), 1 << 65), st.floats(allow_nan=False), st.text(max_size=4),
    st.lists(st.integers(-1, 40), max_size=4), st.sampled_from(["F32", "F16", "I64", "BOOL"]),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_changed_value_is_refused_wherever_the_library_refuses(
    safetensors_file: Make, scratch_file: Write, data: Any
) -> None:
    changed = safetensors_file()
    target = changed.header[data.draw(st.sampled_from(["a", "b"]))]
    field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    if isinstance(target[field], list) and data.draw(st.booleans()):
        target[field][data.draw(st.integers(0, len(target[field]) - 1))] = data.draw(json_values)
    else:
        target[field] = data.draw(json_values)
    path = scratch_file(changed.bytes(), ".safetensors")
    try:
        ours = open_safetensors(path)
    except ModelFileError:
        return
    theirs = load_file(path)  # accepted by us, so it must be accepted there, with the same values
    for name, matrix in ours.tensors.items():
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(matrix.dequantize(), theirs[name].astype(np.float32))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_bytes_loads_or_is_a_typed_error(safetensors_file: Make, scratch_file: Write, data: Any) -> None:
    raw = bytearray(safetensors_file().bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        open_safetensors(scratch_file(bytes(raw), ".safetensors"))
    except ModelFileError:
        return


def test_names_are_only_names(safetensors_file: Make, tmp_path: Path) -> None:
    names = ["../../x", "", "a\0b", "/etc/passwd"]
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, name in enumerate(names)}
    path = write(tmp_path / "m", safetensors_file(header=header, data=b"1234"))
    assert [info.name for info in read_safetensors_header(path).tensors] == names
    assert list(tmp_path.iterdir()) == [path]
