"""Writing a safetensors file tensor by tensor, so that a model larger than memory can be written.

The reference library's writer wants all arrays at once. The header needs only names, types and shapes, so it can go
first and each tensor can be made, written and forgotten. The file appears under its name only when it is complete.

Tensors lie in the order of falling alignment (F64 before F32 before F16 …), so that each can be used where it is
mapped.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_loader.formats.replacing import replacing
from aie_loader.formats.safetensors import DTYPES
from aie_tensor import DType, InvalidInputError, Matrix

__all__ = ["PendingTensor", "write_safetensors"]

_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor that `make` produces when its turn comes: a matrix of this type, or an array to be converted to it."""

    shape: tuple[int, ...]
    make: Callable[[], npt.NDArray[Any] | Matrix]
    dtype: DType = DType.F32

    @property
    def nbytes(self) -> int:
        """Bytes that it will take."""
        return self.dtype.nbytes(prod(self.shape))

    def matrix(self) -> Matrix:
        """Make it."""
        made = self.make()
        matrix = made if isinstance(made, Matrix) else Matrix.from_array(np.asarray(made), self.dtype)
        assert (matrix.shape, matrix.dtype) == (self.shape, self.dtype), (matrix.shape, matrix.dtype, self)
        return matrix


def write_safetensors(
    path: Path,
    tensors: Mapping[str, PendingTensor | Matrix],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write all tensors to a temporary file beside `path`, and rename it. `metadata`: `{"format": "pt"}` if not given.

    InvalidInputError for a block type (Q8_0 …), which the format does not have. EnvironmentLacksError when the disk is
    full or the folder cannot be written; nothing is left behind then.
    """
    for name, tensor in tensors.items():
        if tensor.dtype.name not in DTYPES:
            raise InvalidInputError(
                f"tensor {name!r} is {tensor.dtype.name}, which safetensors cannot hold; write GGUF, or convert it to "
                "F32, F16 or BF16"
            )
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.block_bytes)
    with replacing(path) as file:
        header = _header(dict(ordered), {"format": "pt"} if metadata is None else metadata)
        file.write(len(header).to_bytes(8, "little") + header)
        for _, tensor in ordered:
            file.write((tensor if isinstance(tensor, Matrix) else tensor.matrix()).data.data)
    return path


def _header(tensors: Mapping[str, PendingTensor | Matrix], metadata: Mapping[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, tensor in tensors.items():
        assert name != "__metadata__", "the format keeps this name for itself"
        end = begin + tensor.nbytes
        table[name] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % _HEADER_ALIGNMENT)
