"""Writing a safetensors file tensor by tensor, so that a model larger than memory can be written.

The reference library's writer wants all arrays at once. The header needs only names and shapes, so it can go first and
each tensor can be made, written and forgotten. The file appears under its name only when it is complete.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aie_tensor import EnvironmentLacksError

__all__ = ["PendingTensor", "write_safetensors"]


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A float32 tensor that `make` produces when its turn comes."""

    shape: tuple[int, ...]
    make: Callable[[], npt.NDArray[np.float32]]


def write_safetensors(path: Path, tensors: Mapping[str, PendingTensor]) -> Path:
    """Write all tensors as F32, in the order given, to a temporary file beside `path`, and rename it.

    EnvironmentLacksError when the disk is full or the folder cannot be written; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            header = _header(tensors)
            file.write(len(header).to_bytes(8, "little") + header)
            for name, tensor in tensors.items():
                array = tensor.make()
                assert array.shape == tensor.shape and array.dtype == np.float32, (name, array.shape, array.dtype)
                file.write(np.ascontiguousarray(array, dtype="<f4").data)
        os.replace(temporary, path)
    except OSError as error:
        raise EnvironmentLacksError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _header(tensors: Mapping[str, PendingTensor]) -> bytes:
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + 4 * prod(tensor.shape)
        table[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # data starts aligned, so that it can be used where it is mapped
