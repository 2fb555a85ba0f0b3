"""What every checkpoint format comes down to: named matrices, metadata, and where each tensor lies in which file."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from aie_tensor import DType, Matrix

__all__ = ["Checkpoint", "CheckpointFormat", "TensorInfo", "matrices"]

CheckpointFormat = Literal["safetensors", "gguf", "numpy", "torch"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of a file's tensor table, validated: the bytes are inside the file and belong to no other tensor."""

    name: str
    dtype: DType
    shape: tuple[int, ...]  # row-major: a weight is (N, K), its rows are contiguous
    offset: int  # first byte, from the start of the file
    num_bytes: int


def matrices(data: npt.NDArray[np.uint8], tensors: Iterable[TensorInfo]) -> dict[str, Matrix]:
    """name → view of the mapped file's bytes `data`, in the order of `tensors`."""
    return {t.name: Matrix(t.dtype, t.shape, data[t.offset : t.offset + t.num_bytes]) for t in tensors}


@dataclass(slots=True, eq=False)
class Checkpoint(Mapping[str, Matrix]):
    """An opened checkpoint: a mapping from names to matrices, in the order of the file.

    Matrices are views of mapped files, so opening costs the header, not the weights. (Arrays that NumPy compressed or
    laid out column by column are copies: there is nothing in the file to look at.)
    """

    path: Path  # as it was asked for: a file, an index or a folder
    format: CheckpointFormat
    metadata: Mapping[str, object] = field(repr=False)
    tensors: dict[str, Matrix] = field(repr=False)
    files: tuple[Path, ...]  # every file that was opened
    mapped_bytes: int  # address space that the mapped files take; resident is what has been read of them

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored, scales included. Tensors that share their bytes count each."""
        return sum(matrix.nbytes for matrix in self.tensors.values())

    def close(self) -> None:
        """Forget the tensors. A mapping ends when the last matrix that shows it is gone, so this is always safe."""
        self.tensors = {}

    def __getitem__(self, name: str) -> Matrix:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
