"""safetensors, searched: sound files with a few rules broken, read by us and by the reference library.

What we accept, the library must accept, with the same bytes. What only the library accepts must be one of the
differences written down here: those that a `Leniency` names (then with it we must see what the library sees), and those
of `ALLOWED`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import ModelFileError
from aie_loader.formats import Checkpoint, Leniency, open_safetensors
from aie_loader.formats.safetensors import DTYPES

Write = Callable[[bytes, str], Path]

# The library accepts these, we never do: they are limits, or bytes that could not be addressed.
ALLOWED = [
    r"has \d+ dimensions; at most 32 are allowed",
    r"whose rows do not end on a byte",  # the library asks it only of the whole tensor
    r"nests deeper than 3 levels",  # inside a field that it does not know
    r"the key '(dtype|shape|data_offsets|__metadata__)' occurs twice",  # as the name of a tensor or inside __metadata__
]

dims = st.integers(0, 4)
shapes = st.lists(dims, max_size=3)
names = st.one_of(st.sampled_from(["a", "b", "w.0", "é", "", "__metadata", "a\0b", "../x"]), st.text(max_size=3))
numbers = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30]),
)
odd_values = st.one_of(
    numbers, st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3),
    st.lists(st.one_of(numbers, st.booleans(), st.none(), st.floats(0, 40)), max_size=4),
    st.sampled_from(sorted(DTYPES)), st.sampled_from(["f32", "F32 ", "", "Q8_0"]),
    st.builds(dict), st.builds(lambda: {"x": [[1]]}),
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], bytes]:
    """Entries of a sound header as pairs, and data of the right length."""
    entries: list[tuple[str, Any]] = []
    begin = 0
    for name in draw(st.lists(names, max_size=4, unique=True)):
        dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
        shape = draw(shapes)
        if dtype.block_size > 1:
            shape = [*shape, dtype.block_size]
        count = 1
        for dim in shape:
            count *= dim
        end = begin + dtype.nbytes(count)
        entries.append((name, {"dtype": dtype.name, "shape": shape, "data_offsets": [begin, end]}))
        begin = end
    if draw(st.booleans()):
        metadata = draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
        entries.insert(draw(st.integers(0, len(entries))), ("__metadata__", metadata))
    return entries, draw(st.binary(min_size=begin, max_size=begin))


def object_text(pairs: list[tuple[str, Any]]) -> str:
    """JSON that can have a key twice."""
    return "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in pairs) + "}"


@st.composite
def files(draw: st.DrawFn) -> bytes:
    entries, data = draw(tables())
    for _ in range(draw(st.integers(0, 2))):
        change_entry(draw, entries)
    text = object_text(entries)
    for _ in range(draw(st.integers(0, 1))):
        text = change_text(draw, text)
    header = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 5)) == 0:
        data = draw(st.sampled_from([data + b"\0", data[:-1], data * 2, b""]))
    size = len(header)
    if draw(st.integers(0, 7)) == 0:
        size += draw(st.sampled_from([-1, 1, -2, 8, 2**32, 2**63, 100_000_001]))
    return (size % 2**64).to_bytes(8, "little") + header + data


def change_entry(draw: st.DrawFn, entries: list[tuple[str, Any]]) -> None:
    if not entries:
        entries.append((draw(names), draw(odd_values)))
        return
    index = draw(st.integers(0, len(entries) - 1))
    name, entry = entries[index]
    kind = draw(st.sampled_from(["field", "element", "name", "copy", "drop", "replace", "add", "metadata"]))
    fields = [field for field in ("dtype", "shape", "data_offsets") if isinstance(entry, dict) and field in entry]
    if kind == "field" and fields:
        entry[draw(st.sampled_from(fields))] = draw(odd_values)
    elif kind == "element" and fields and isinstance(entry[fields[-1]], list) and entry[fields[-1]]:
        values = entry[fields[-1]]
        values[draw(st.integers(0, len(values) - 1))] = draw(st.one_of(numbers, odd_values))
    elif kind == "name":
        entries[index] = (draw(names), entry)
    elif kind == "copy":
        entries.append((name, json.loads(json.dumps(entry))))
    elif kind == "drop":
        del entries[index]
    elif kind == "replace":
        entries[index] = (name, draw(odd_values))
    elif kind == "add" and isinstance(entry, dict):
        entry[draw(st.sampled_from(["strides", "x", "dtype "]))] = draw(odd_values)
    else:
        entries.append(("__metadata__", draw(odd_values)))


def change_text(draw: st.DrawFn, text: str) -> str:
    kind = draw(st.sampled_from(["before", "after", "number", "word", "inside"]))
    if kind == "before":
        return draw(st.sampled_from([" ", "\n", "\t ", "\ufeff", "\0", "["])) + text
    if kind == "after":
        return text + draw(st.sampled_from([" ", "  \n", "\0", "x", "}", ",", "{}"]))
    if kind == "number":
        found = list(re.finditer(r"\d+", text))
        if not found:
            return text
        at = draw(st.sampled_from(found))
        new = draw(st.sampled_from(["0{}", "{}.0", "{}e0", "-{}", "+{}", "0x{}", "{}L", "1{}e-1", '"{}"', "{} "]))
        return text[: at.start()] + new.format(at.group()) + text[at.end() :]
    if kind == "word":
        return text.replace(
            *draw(st.sampled_from([(":", "="), ("[", "[,"), ("]", ",]"), ('"', "'"), ("F", "\\u0046")])), 1
        )
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from([" ", "\\ud800", "\x01", "NaN", "//", "\u2028", '\\"'])) + text[at:]


def theirs(raw: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """What the library sees; None where it refuses."""
    try:
        found = safetensors.deserialize(raw)
    except (safetensors.SafetensorError, OverflowError, MemoryError):
        return None
    return {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"])) for name, entry in found}


def seen(checkpoint: Checkpoint) -> dict[str, tuple[str, list[int], bytes]]:
    return {name: (m.dtype.name, list(m.shape), bytes(m.data)) for name, m in checkpoint.items()}


@settings(settings.get_profile("fuzz"))
@given(files())
def test_fuzz_against_the_reference_library(scratch_file: Write, raw: bytes) -> None:
    path = scratch_file(raw, ".safetensors")
    expected = theirs(raw)
    try:
        ours = open_safetensors(path)
    except ModelFileError as error:
        if expected is None or any(re.search(pattern, str(error)) for pattern in ALLOWED):
            return
        assert "be lenient about" in str(error), error
        try:
            ours = open_safetensors(path, lenient=Leniency)
        except ModelFileError as second:  # one of each kind of difference
            assert any(re.search(pattern, str(second)) for pattern in ALLOWED), second
            return
    assert expected is not None, "we accept what the library refuses"
    assert seen(ours) == expected


@settings(settings.get_profile("fuzz"))
@given(files())
def test_fuzz_leniency_lets_nothing_through_that_the_library_refuses(scratch_file: Write, raw: bytes) -> None:
    try:
        ours = open_safetensors(scratch_file(raw, ".safetensors"), lenient=Leniency)
    except ModelFileError:
        return
    assert seen(ours) == theirs(raw)
