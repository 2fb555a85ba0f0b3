"""PyTorch's files: tensors as torch itself sees them (files made by `torch_files/make.py`), and nothing else is run."""

import io
import os
import pickle
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_loader import MalformedHeaderError, ModelFileError, TruncatedFileError, load_model
from aie_loader.errors import UnsafePickleError, UnsupportedTensorTypeError
from aie_loader.formats import Checkpoint, open_npz, open_safetensors, open_torch, pickle_machine
from aie_loader.formats.torch_legacy import LEGACY_MAGIC
from aie_tensor import DType

FILES = Path(__file__).parent / "torch_files"


@pytest.fixture(scope="module")
def expected() -> Checkpoint:
    return open_npz(FILES / "expected.npz")


@pytest.mark.parametrize(
    ("file", "key"),
    [("state", "state"), ("types", "types"), ("views", "views"), ("training", "state"), ("legacy", "views")],
)
def test_tensors_are_what_torch_says(file: str, key: str, expected: Checkpoint) -> None:
    ours = open_torch(FILES / f"{file}.pt")
    theirs = {name.removeprefix(f"{key}/"): matrix for name, matrix in expected.items() if name.startswith(f"{key}/")}
    assert list(ours) == list(theirs)
    for name, matrix in theirs.items():
        assert ours[name].shape == matrix.shape, name
        if ours[name].dtype.numpy is None:  # BF16 and FP8: torch's own conversion to float32
            np.testing.assert_array_equal(ours[name].dequantize(), matrix.dequantize())
        else:
            assert ours[name].dtype is matrix.dtype
            np.testing.assert_array_equal(ours[name].array(), matrix.array())


def test_every_type_that_torch_has_here_is_its_own(expected: Checkpoint) -> None:
    ours = open_torch(FILES / "types.pt")
    assert ours["bfloat16"].dtype is DType.BF16
    assert ours["float8_e4m3fn"].dtype is DType.F8_E4M3
    assert ours["float8_e8m0fnu"].dtype is DType.F8_E8M0
    assert len({matrix.dtype for matrix in ours.values()}) == len(ours)


def test_contiguous_tensors_are_views_and_shared_ones_share() -> None:
    ours = open_torch(FILES / "views.pt")
    assert np.shares_memory(ours["base"].data, ours["same"].data)
    assert np.shares_memory(ours["base"].data, ours["rows"].data)
    assert not ours["base"].data.flags.writeable
    assert not np.shares_memory(ours["base"].data, ours["transposed"].data)


# What is refused, and what it says


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        ("whole_model", UnsafePickleError, "asks for '__main__.Net'"),
        ("sparse", UnsafePickleError, "'torch._utils._rebuild_sparse_tensor'"),
        ("script", UnsupportedTensorTypeError, "TorchScript program"),
        ("expanded", MalformedHeaderError, "shows the same bytes many times"),
    ],
)
def test_files_of_torch_that_are_no_state_dictionaries(file: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        open_torch(FILES / f"{file}.pt")
    assert str(FILES / f"{file}.pt") in str(caught.value)


class Harmful:
    """What an attacker would pickle: unpickling it calls a function with arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


def archive(data_pkl: bytes, members: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("m/data.pkl", data_pkl)
        for name, raw in ({"byteorder": b"little", "data/0": bytes(24)} if members is None else members).items():
            file.writestr(f"m/{name}", raw)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch PWNED",), "posix.system"),
        (exec, ("open('PWNED', 'w')",), "builtins.exec"),
        (eval, ("1",), "builtins.eval"),
        (getattr, (dict, "fromkeys"), "builtins.getattr"),
        (__import__, ("os",), "builtins.__import__"),
        (open, ("PWNED", "w"), f"{open.__module__}.open"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_is_never_run(
    function: Callable[..., Any], arguments: tuple[object, ...], name: str, protocol: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    raw = pickle.dumps({"weight": Harmful(function, *arguments)}, protocol)
    asked = name.replace("builtins", "__builtin__") if protocol == 2 else name
    for path, content in (("a.pt", archive(raw)), ("legacy.pt", LEGACY_MAGIC + pickle.dumps(1001, 2) + raw)):
        (tmp_path / path).write_bytes(content)
        with pytest.raises(UnsafePickleError, match=f"asks for '{asked}'.*nothing was run"):
            open_torch(tmp_path / path)
    assert not (tmp_path / "PWNED").exists()


# A pickle by hand: the shortest description of one tensor of 2 × 3 floats.


def text(value: str) -> bytes:
    return b"X" + struct.pack("<L", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def tup(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


HOOKS = b"ccollections\nOrderedDict\n)R"


def storage(
    key: str = "0", count: bytes = number(6), kind: bytes = b"ctorch\nFloatStorage\n", more: bytes = b""
) -> bytes:
    return tup(text("storage"), kind, text(key), text("cpu"), count, more) + b"Q"


def tensor(
    storage: bytes = storage(), offset: bytes = number(0), size: bytes = tup(number(2), number(3)),
    stride: bytes = tup(number(3), number(1)), more: bytes = b"",
) -> bytes:  # fmt: skip
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + tup(storage, offset, size, stride, b"\x89", HOOKS, more) + b"R"


def state(value: bytes = tensor(), key: bytes = text("w")) -> bytes:
    return b"\x80\x02}(" + key + value + b"u."


def save(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_the_pickle_by_hand_is_sound(tmp_path: Path) -> None:
    ours = open_torch(save(tmp_path / "a.pt", archive(state())))
    assert {name: (matrix.dtype, matrix.shape) for name, matrix in ours.items()} == {"w": (DType.F32, (2, 3))}


BROKEN: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty pickle": (archive(b""), TruncatedFileError, "in the middle of an instruction"),
    "cut in a text": (archive(b"\x80\x02X\xff\xff\xff\xffab"), TruncatedFileError, "in the middle of an instruction"),
    "cut in a name": (archive(b"\x80\x02ctorch._ut"), TruncatedFileError, "in the middle of a name"),
    "protocol 9": (archive(b"\x80\x09."), MalformedHeaderError, "protocol 9"),
    "no instruction": (archive(b"\x80\x02\xff."), UnsafePickleError, r"byte b'\xff', which is no instruction"),
    "build class": (archive(b"\x80\x02ctorch\nSize\n)\x81."), UnsafePickleError, "instruction NEWOBJ"),
    "old instance": (archive(b"\x80\x02(iposix\nsystem\n."), UnsafePickleError, "instruction INST"),
    "extension": (archive(b"\x80\x02\x82\x01."), UnsafePickleError, "instruction EXT1"),
    "text identifier": (archive(b"\x80\x02P1\n."), UnsafePickleError, "instruction PERSID"),
    "stack empty": (archive(b"\x80\x02."), MalformedHeaderError, "finds nothing on the stack"),
    "stack left": (archive(b"\x80\x02NN."), MalformedHeaderError, "left on the stack"),
    "no mark": (archive(b"\x80\x02Nt."), MalformedHeaderError, "looks for a mark"),
    "memo": (archive(b"\x80\x02j\xff\xff\xff\x7f."), MalformedHeaderError, "number 2147483647 of its memo"),
    "append to a text": (archive(b"\x80\x02" + text("x") + b"Na."), MalformedHeaderError, "appends to a str"),
    "items of a list": (archive(b"\x80\x02]NNs."), MalformedHeaderError, "sets entries of a list"),
    "odd items": (archive(b"\x80\x02}(Nu."), MalformedHeaderError, "sets entries"),
    "tuple as a key": (archive(b"\x80\x02})Ns."), MalformedHeaderError, "has a tuple as a key"),
    "call a text": (archive(b"\x80\x02" + text("x") + b")R."), MalformedHeaderError, "calls a str"),
    "call a type": (archive(b"\x80\x02ctorch\nint8\n)R."), MalformedHeaderError, "calls a Named"),
    "state of a list": (archive(b"\x80\x02]Nb."), MalformedHeaderError, "sets the state of a list"),
    "bytes after": (archive(state() + b"."), MalformedHeaderError, "1 bytes follow the end"),
    "bad text": (archive(b"\x80\x02X\x01\0\0\0\xff."), MalformedHeaderError, "not valid UTF-8"),
    "a tensor": (archive(b"\x80\x02" + tensor() + b"."), MalformedHeaderError, "holds a tensor, not a dictionary"),
    "a list": (archive(b"\x80\x02]."), MalformedHeaderError, "holds a list"),
    "no storage": (archive(state(tensor(storage=b"N"))), MalformedHeaderError, "not described by a storage"),
    "few arguments": (archive(state(b"ctorch._utils\n_rebuild_tensor_v2\n)R")), MalformedHeaderError, "not described"),
    "size not a tuple": (archive(state(tensor(size=b"N"))), MalformedHeaderError, "not integers"),
    "size true": (archive(state(tensor(size=tup(b"\x88", number(3))))), MalformedHeaderError, "not integers"),
    "size negative": (archive(state(tensor(size=tup(number(-2), number(3))))), MalformedHeaderError, "not integers"),
    "stride missing": (archive(state(tensor(stride=tup(number(1))))), MalformedHeaderError, "as many strides"),
    "stride beyond": (archive(state(tensor(stride=tup(number(4), number(1))))), MalformedHeaderError, "at element 7"),
    "offset beyond": (archive(state(tensor(offset=number(1)))), MalformedHeaderError, "ends at element 7"),
    "offset huge": (archive(state(tensor(offset=number(1 << 62)))), MalformedHeaderError, "ends at element 4,611"),
    "size overflows": (
        archive(state(tensor(size=tup(number(1 << 40), number(1 << 40)), stride=tup(number(0), number(0))))),
        MalformedHeaderError, "2^63 or more"),
    "a bomb of zero strides": (
        archive(state(tensor(size=tup(number(1 << 40)), stride=tup(number(0))))),
        MalformedHeaderError, "shows the same bytes many times"),
    "size of a list": (archive(b"\x80\x02ctorch\nSize\n]\x85R."), MalformedHeaderError, "not made from a tuple of at"),
    "a long name": (archive(state(key=text("w" * 1025))), MalformedHeaderError, "over 1024 characters"),
    "storage missing": (archive(state(tensor(storage("7")))), TruncatedFileError, "storage '7', which is missing"),
    "storage too small": (archive(state(), {"data/0": bytes(20)}), MalformedHeaderError, "24 bytes, but has 20"),
    "storage too large": (archive(state(), {"data/0": bytes(28)}), MalformedHeaderError, "24 bytes, but has 28"),
    "storage of no type": (
        archive(state(tensor(storage(kind=b"ctorch\nSize\n")))), MalformedHeaderError, "not that of a storage"),
    "storage count": (archive(state(tensor(storage(count=b"N")))), MalformedHeaderError, "not that of a storage"),
    "identifier": (archive(state(b"NQ")), MalformedHeaderError, "not that of a storage"),
    "compressed": (archive(state(), method=zipfile.ZIP_DEFLATED), MalformedHeaderError, "PyTorch compresses nothing"),
    "big-endian": (
        archive(state(), {"byteorder": b"big", "data/0": bytes(24)}), MalformedHeaderError, "another byte order"),
    "no pickle": (
        archive(state()).replace(b"data.pkl", b"data.pk1"), MalformedHeaderError, "0 members NAME/data.pkl"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_is_named(rule: str, tmp_path: Path) -> None:
    raw, error, words = BROKEN[rule]
    path = save(tmp_path / "a.pt", raw)
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            open_torch(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # whatever the file claims
    finally:
        tracemalloc.stop()
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert isinstance(caught.value, ModelFileError) and caught.value.exit_code == 2


def test_deep_nesting_is_no_deep_recursion(tmp_path: Path) -> None:
    depth = 60_000
    lists = b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."
    with pytest.raises(MalformedHeaderError, match="holds a list"):
        open_torch(save(tmp_path / "a.pt", archive(lists)))
    dictionaries = b"\x80\x02" + (b"}" + text("x")) * depth + b"N" + b"s" * depth + b"."
    with pytest.raises(MalformedHeaderError, match="nest deeper than 16"):
        open_torch(save(tmp_path / "a.pt", archive(dictionaries)))


def test_dictionaries_that_hold_each_other_many_times(tmp_path: Path) -> None:
    """Ten names for one dictionary, fifteen levels deep: 10^15 entries in 2 KB, if one would look at each."""
    program = b"\x80\x02}(" + text("0") + b"}q\0"
    for level in range(1, 15):
        entries = b"".join(text(f"{i}") + b"h" + bytes([level - 1]) for i in range(10))
        program += text(f"{level}") + b"}(" + entries + b"uq" + bytes([level])
    with pytest.raises(MalformedHeaderError, match="makes too many entries"):
        open_torch(save(tmp_path / "a.pt", archive(program + b"u.")))


def test_training_values_are_metadata(tmp_path: Path) -> None:
    program = b"\x80\x02}(" + text("epoch") + number(3) + text("nested") + b"}" + text("w") + tensor() + b"su."
    ours = open_torch(save(tmp_path / "a.pt", archive(program)))
    assert list(ours) == ["nested.w"] and ours.metadata == {"epoch": 3}


def test_a_model_folder_of_torch_is_the_model(tiny_model: Path, tmp_path: Path) -> None:
    """The tiny model's weights as `pytorch_model.bin`: the same graph over the same numbers."""
    weights = open_safetensors(tiny_model / "model.safetensors")
    program, members = b"\x80\x02}(", {"byteorder": b"little"}
    for key, (name, matrix) in enumerate(weights.items()):
        strides = [int(np.prod(matrix.shape[axis + 1 :])) for axis in range(len(matrix.shape))]
        held = storage(str(key), number(int(np.prod(matrix.shape))), b"ctorch\nFloatStorage\n")
        size, stride = (tup(*map(number, numbers)) for numbers in (matrix.shape, strides))
        program += text(name) + tensor(held, size=size, stride=stride)
        members[f"data/{key}"] = matrix.data.tobytes()
    for path in tiny_model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path / path.name)
    (tmp_path / "pytorch_model.bin").write_bytes(archive(program + b"u.", members))
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        ours, theirs = load_model(path), load_model(tiny_model)
        assert ours.checkpoint.format == "torch"
        assert ours.graph.nodes == theirs.graph.nodes
        for name, matrix in theirs.graph.weights.items():
            assert bytes(ours.graph.weights[name].data) == bytes(matrix.data)


def test_a_pickle_of_millions_of_instructions_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instruction may leave an object of some 60 bytes, so that the length of the file alone bounds too little."""
    monkeypatch.setattr(pickle_machine, "_MAX_INSTRUCTIONS", 1000)
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02" + b"]" * 2000 + b".")
    with pytest.raises(MalformedHeaderError, match="more than 1,000 instructions"):
        open_torch(path)
