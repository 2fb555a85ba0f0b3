"""Dropping pages of a mapped file must never change what is read."""

import mmap
from pathlib import Path

import numpy as np
import psutil
import pytest

from aie_engine.executors.mapped import drop_pages
from aie_tensor import DType, Matrix

SIZE = 64 * mmap.PAGESIZE + 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def matrix_in(mapping: mmap.mmap, offset: int, nbytes: int) -> Matrix:
    data = np.frombuffer(mapping, dtype=np.uint8)[offset:][:nbytes]
    return Matrix(DType.U8, (nbytes,), data)


def test_a_mapped_matrix_reads_the_same_and_is_no_longer_resident(path: Path) -> None:
    with path.open("rb") as file:
        matrix = matrix_in(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), 100, 60 * mmap.PAGESIZE)
    before = matrix.data.copy()
    resident = resident_bytes(path)
    drop_pages(matrix)
    if resident is not None:
        assert resident >= matrix.nbytes
        assert resident_bytes(path) <= 8 * mmap.PAGESIZE
    np.testing.assert_array_equal(matrix.data, before)


def test_writable_memory_keeps_what_was_written(path: Path) -> None:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    matrix = matrix_in(mapping, 0, SIZE)
    matrix.data[:] = 7
    drop_pages(matrix)
    assert (matrix.data == 7).all()


def test_memory_that_is_no_mapping_is_left_alone() -> None:
    matrix = Matrix.from_array(np.arange(20_000, dtype=np.float32))
    drop_pages(matrix)
    assert matrix.dequantize()[-1] == 19_999


def resident_bytes(path: Path) -> int | None:
    """Physical memory under this process's mappings of the file, where the system tells."""
    try:
        return sum(part.rss for part in psutil.Process().memory_maps() if part.path == str(path))
    except (AttributeError, psutil.Error):
        return None
