"""Our pickle machine, searched: whatever it accepts, Python's own machine makes the same of.

Two ways: objects that Python pickles, and programs that are put together from instructions. Python's machine runs here
with our allow-list as the only names, and only on programs that ours has accepted.
"""

import io
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import ModelFileError
from aie_loader.errors import UnsafePickleError
from aie_loader.formats import open_torch
from aie_loader.formats.pickle_machine import Named, PickleMachine

Write = Callable[[bytes, str], Path]
TORCH_FILES = Path(__file__).parent / "torch_files"

NAMES = {
    ("made", "value"): Named("value", "a value"),
    ("made", "pair"): Named("pair", build=lambda arguments: ["pair", *arguments]),
}

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.text(min_size=256, max_size=300),
)
objects = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(-300, 70_000)), inner, max_size=4),
    ),
    max_leaves=12,
)


def ours(raw: bytes) -> object:
    machine = PickleMachine(raw, "file", NAMES, lambda identifier: ("outside", identifier))
    result = machine.run()
    assert machine.position <= len(raw)
    return result


class Pythons(pickle.Unpickler):
    """Python's machine with our names."""

    def find_class(self, module: str, name: str) -> Any:
        named = NAMES[module, name]
        return named if named.build is None else lambda *arguments: named.build(arguments)

    def persistent_load(self, identifier: object) -> object:
        return ("outside", identifier)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@settings(settings.get_profile("fuzz"))
@given(value=objects)
def test_fuzz_what_python_pickles_is_read(protocol: int, value: object) -> None:
    assert repr(ours(pickle.dumps(value, protocol))) == repr(value)  # by `repr`, since NaN is not itself


small = st.integers(0, 3)
INSTRUCTIONS = st.one_of(
    st.sampled_from([b"N", b"\x88", b"\x89", b"(", b"}", b"]", b")", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e", b"s",
                     b"u", b"R", b"Q", b"\x94", b"\x80\x02", b"\x80\x04", b"b"]),
    st.sampled_from([b"cmade\npair\n", b"cmade\nvalue\n", b"X\4\0\0\0made\x8c\4pair\x93"]),
    small.map(lambda index: b"q" + bytes([index])),
    small.map(lambda index: b"h" + bytes([index])),
    small.map(lambda index: b"r" + struct.pack("<L", index)),
    small.map(lambda index: b"j" + struct.pack("<L", index)),
    st.integers(0, 255).map(lambda value: b"K" + bytes([value])),
    st.integers(0, 65535).map(lambda value: b"M" + struct.pack("<H", value)),
    st.integers(-(2**31), 2**31 - 1).map(lambda value: b"J" + struct.pack("<i", value)),
    st.binary(max_size=9).map(lambda raw: b"\x8a" + bytes([len(raw)]) + raw),
    st.floats(allow_nan=False).map(lambda value: b"G" + struct.pack(">d", value)),
    st.sampled_from(["", "key", "é"]).map(lambda text: b"X" + struct.pack("<L", len(text.encode())) + text.encode()),
    st.sampled_from(["", "key", "é"]).map(lambda text: b"\x8c" + bytes([len(text.encode())]) + text.encode()),
)  # fmt: skip


@settings(settings.get_profile("fuzz"), max_examples=settings.get_profile("fuzz").max_examples * 4)
@given(st.lists(INSTRUCTIONS, max_size=14))
def test_fuzz_programs_mean_what_they_mean_in_python(program: list[bytes]) -> None:
    raw = b"".join(program) + b"."
    try:
        result = ours(raw)
    except ModelFileError:
        return
    if b"b" in program:  # sets attributes in Python; ours passes over it, and only on dictionaries
        return
    assert shown(result) == shown(Pythons(io.BytesIO(raw)).load())


def shown(value: object) -> str:
    """The `repr`, in which functions are only functions."""
    return re.sub(
        r"Named\(name='pair', value=None, build=.*? at 0x\w+>\)|<function .*? at 0x\w+>", "function", repr(value)
    )


# Whole files


@st.composite
def changed_files(draw: st.DrawFn) -> bytes:
    """A file of torch in whose description a few instructions are changed."""
    name = draw(st.sampled_from(["state", "views", "types", "training"]))
    with zipfile.ZipFile(TORCH_FILES / f"{name}.pt") as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    raw = bytearray(members[f"{name}/data.pkl"])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        kind = draw(st.sampled_from(["set", "insert", "cut", "drop", "number"]))
        if kind == "set" and raw:
            raw[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            raw[at:at] = draw(INSTRUCTIONS)
        elif kind == "drop":
            del raw[at : at + draw(st.integers(1, 12))]
        elif kind == "cut":
            del raw[max(at, 1) :]
        elif kind == "number":
            found = [position for position, byte in enumerate(raw[:-1]) if byte == ord("K")]
            if found:
                raw[draw(st.sampled_from(found)) + 1] = draw(st.sampled_from([0, 1, 2, 7, 255]))
    members[f"{name}/data.pkl"] = bytes(raw)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


@settings(settings.get_profile("fuzz"))
@given(changed_files())
def test_fuzz_files_load_or_are_a_typed_error(scratch_file: Write, raw: bytes) -> None:
    path = scratch_file(raw, ".pt")
    try:
        checkpoint = open_torch(path)
    except ModelFileError as error:
        assert isinstance(error, UnsafePickleError) or str(path) in str(error)
        return
    for matrix in checkpoint.values():
        assert len(matrix.data) == matrix.dtype.nbytes(int(matrix.nbytes / matrix.dtype.block_bytes))
        bytes(matrix.data)  # inside the file
    assert checkpoint.nbytes <= 100 * len(raw)
