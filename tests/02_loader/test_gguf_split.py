"""One model in several GGUF files: together they are one checkpoint, and parts that do not fit are refused."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aie_loader import MalformedHeaderError, MissingFileError
from aie_loader.formats import open_gguf

Make = Callable[..., Any]
U16, I32 = 2, 5


@pytest.fixture
def split(gguf_file: Make, tmp_path: Path) -> Callable[..., Path]:
    """Two parts, each with one tensor; a part's fields and split keys can be replaced."""

    def write(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Path:
        for number, changes in enumerate((first or {}, second or {})):
            keys = {"no": number, "count": 2, "total": 2, "name": f"w{number}", "file": f"m-0000{number + 1}-of-00002"}
            keys |= changes
            part = gguf_file(data=bytes([number]) * 32)
            part.tensors = part.tensors[:1]
            part.tensors[0].name = keys["name"].encode()
            part.keys += [
                (b"split.no", U16, struct.pack("<H", keys["no"])),
                (b"split.count", U16, struct.pack("<H", keys["count"])),
                (b"split.tensors.count", I32, struct.pack("<i", keys["total"])),
            ]
            (tmp_path / f"{keys['file']}.gguf").write_bytes(part.bytes())
        return tmp_path / "m-00001-of-00002.gguf"

    return write


def test_a_model_in_two_files_is_one_checkpoint(split: Callable[..., Path]) -> None:
    checkpoint = open_gguf(split())
    assert {name: bytes(matrix.data) for name, matrix in checkpoint.items()} == {"w0": bytes(32), "w1": b"\1" * 32}
    assert [path.name for path in checkpoint.files] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert checkpoint.nbytes == 64
    assert checkpoint.mapped_bytes == sum(path.stat().st_size for path in checkpoint.files)
    assert checkpoint.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        ({}, {"file": "elsewhere"}, MissingFileError, "m-00002-of-00002.gguf is missing beside it"),
        ({}, {"no": 0}, MalformedHeaderError, "part 0 of 2 .*but its name says part 1 of 2"),
        ({}, {"count": 3}, MalformedHeaderError, "part 1 of 3"),
        ({"no": 1}, {}, MalformedHeaderError, "part 1 of 2 .*but its name says part 0"),
        ({"count": 3}, {}, MalformedHeaderError, r"its name must end in -00001-of-00003\.gguf"),
        ({"count": 60_000}, {}, MalformedHeaderError, "split.count is 60000"),
        ({"total": 3}, {}, MalformedHeaderError, r"promises 3 tensors .*but its files hold 2"),
        ({}, {"name": "w0"}, MalformedHeaderError, "tensor 'w0' is also in another file"),
    ],
)
def test_parts_that_do_not_fit(
    split: Callable[..., Path], first: dict[str, Any], second: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_gguf(split(first, second))


def test_a_later_part_names_the_first_one(split: Callable[..., Path]) -> None:
    with pytest.raises(MalformedHeaderError, match=r"open m-00001-of-00002\.gguf instead"):
        open_gguf(split().with_name("m-00002-of-00002.gguf"))
