"""What every checkpoint format comes down to: named matrices, metadata, and where each tensor lies in which file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aie_tensor import DType, Matrix

__all__ = ["Checkpoint", "TensorInfo", "matrices"]


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


class Checkpoint(Protocol):
    """An opened checkpoint. Matrices are views of mapped files, so opening costs the header, not the weights."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, object]: ...

    @property
    def tensors(self) -> Mapping[str, Matrix]: ...

    @property
    def mapped_bytes(self) -> int:
        """Bytes of address space that the mapped files take; resident is what has been read of them."""
        ...

    def close(self) -> None:
        """Forget the tensors. A mapping ends when the last matrix that shows it is gone, so this is always safe."""
