"""Builders of model files, byte by byte, so that a test can break exactly one rule."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The fuzz tests of the parsers: the same examples at every run of the suite, so that it never fails by chance; a long
# search with fresh examples is `AIE_FUZZ_EXAMPLES=100000 pytest tests/02_loader -k fuzz`.
_EXAMPLES = os.environ.get("AIE_FUZZ_EXAMPLES")
settings.register_profile(
    "fuzz",
    max_examples=int(_EXAMPLES or 150),
    derandomize=_EXAMPLES is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

U32, STRING, ARRAY = 4, 8, 9


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


@dataclass
class GGUFTensor:
    """One row of the tensor table, as it will be written: dims fastest first."""

    name: bytes
    dims: list[int]
    type: int  # 0 F32, 2 Q4_0, 3 Q4_1, 8 Q8_0
    offset: int
    num_dims: int | None = None


@dataclass
class GGUFFile:
    """A valid small file with two keys and two tensors, every part of which can be replaced before `bytes()`."""

    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    keys: list[tuple[bytes, int, bytes]] = field(
        default_factory=lambda: [
            (b"general.architecture", STRING, gguf_string("llama")),
            (b"numbers", ARRAY, struct.pack("<IQ3I", U32, 3, 7, 8, 9)),
        ]
    )
    tensors: list[GGUFTensor] = field(
        default_factory=lambda: [GGUFTensor(b"a", [4, 2], 0, 0), GGUFTensor(b"b", [32, 2], 8, 32)]
    )
    alignment: int = 32
    data: bytes = bytes(range(100))  # a: 32 bytes, b: 2 blocks of 34

    def bytes(self) -> bytes:
        counts = (
            len(self.tensors) if self.num_tensors is None else self.num_tensors,
            len(self.keys) if self.num_keys is None else self.num_keys,
        )
        out = self.magic + struct.pack("<IQQ", self.version, *counts)
        for key, kind, value in self.keys:
            out += gguf_string(key) + struct.pack("<I", kind) + value
        for row in self.tensors:
            out += gguf_string(row.name)
            out += struct.pack("<I", len(row.dims) if row.num_dims is None else row.num_dims)
            out += b"".join(struct.pack("<Q", dim) for dim in row.dims) + struct.pack("<IQ", row.type, row.offset)
        return out + bytes(-len(out) % self.alignment) + self.data


@dataclass
class SafetensorsFile:
    """A valid small file with two tensors; `header` is JSON text or an object that becomes it."""

    header: Any = field(
        default_factory=lambda: {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
        }
    )
    data: bytes = bytes(range(32))
    header_bytes: int | None = None

    def bytes(self) -> bytes:
        header = self.header if isinstance(self.header, bytes) else json.dumps(self.header).encode()
        size = len(header) if self.header_bytes is None else self.header_bytes
        return size.to_bytes(8, "little") + header + self.data


@pytest.fixture(scope="session")
def gguf_file() -> Callable[..., GGUFFile]:
    return GGUFFile


@pytest.fixture(scope="session")
def safetensors_file() -> Callable[..., SafetensorsFile]:
    return SafetensorsFile


@pytest.fixture(scope="session")
def scratch_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, str], Path]:
    """Write bytes to a file that the next call with this suffix overwrites: for hypothesis, which has no tmp_path."""
    folder = tmp_path_factory.mktemp("scratch")

    def write(raw: bytes, suffix: str) -> Path:
        path = folder / f"model{suffix}"
        path.write_bytes(raw)
        return path

    return write
