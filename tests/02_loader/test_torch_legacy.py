"""PyTorch's files from before version 1.6: every truncation and every contradiction is refused.

That the tensors are right is checked in `test_torch_files.py`, with those of the newer format.
"""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from aie_loader import MalformedHeaderError, ModelFileError
from aie_loader.formats import open_torch
from aie_loader.formats.torch_legacy import LEGACY_MAGIC

FILES = Path(__file__).parent / "torch_files"


def save(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_truncations_of_the_old_format_are_refused(scratch_file: Callable[[bytes, str], Path]) -> None:
    raw = (FILES / "legacy.pt").read_bytes()
    for length in [*range(len(LEGACY_MAGIC), len(raw) - 140, 7), *range(len(raw) - 140, len(raw))]:
        with pytest.raises(ModelFileError):
            open_torch(scratch_file(raw[:length], ".pt"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (pickle.dumps(1001, 2), pickle.dumps(1002, 2), "not those of protocol 1001"),
        (b"little_endianq\x02\x88", b"little_endianq\x02\x89", "another byte order"),
        (struct.pack("<q", 24), struct.pack("<q", 25), "says that it has 25 elements, its description 24"),
    ],
)
def test_the_old_format_is_checked(old: bytes, new: bytes, words: str, tmp_path: Path) -> None:
    raw = (FILES / "legacy.pt").read_bytes()
    assert raw.count(old) == 1
    with pytest.raises(MalformedHeaderError, match=words):
        open_torch(save(tmp_path / "a.pt", raw.replace(old, new)))
    with pytest.raises(MalformedHeaderError, match="1 bytes follow the last storage"):
        open_torch(save(tmp_path / "a.pt", raw + b"\0"))
