"""Taking tensors out of a checkpoint by name, strictly: what is missing, misshapen or left over is an error."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import numpy as np

from aie_loader.errors import MissingTensorError, TensorShapeError, UnsupportedModelError, UnsupportedTensorTypeError
from aie_loader.formats.source import shown
from aie_tensor import DType, Matrix

__all__ = ["WeightTaker"]

# Types that stand for numbers with a fraction. The engine expands to F32 what its kernels cannot multiply by.
_FLOATS = (
    DType.F32, DType.F16, DType.BF16, DType.F64, DType.F8_E4M3, DType.F8_E5M2, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ,
    *(dtype for dtype in DType if dtype.is_quantized),
)  # fmt: skip
_MAX_LISTED = 4
_SAMPLE = 4096  # bytes


class WeightTaker:
    """Collects a graph's weights, asked for by their name in the graph; `in_file` says how the file calls them."""

    def __init__(
        self, tensors: Mapping[str, Matrix], where: str, in_file: Callable[[str], str], family: str = "llama"
    ) -> None:
        self._tensors = tensors
        self._where = where
        self._family = family
        self._in_file = in_file
        self._used: set[str] = set()
        self.taken: dict[str, Matrix] = {}

    def has(self, name: str) -> bool:
        return self._in_file(name) in self._tensors

    def differ(self, name: str, other: str) -> bool:
        """Whether both are there and are not the same matrix. Looked at is a sample of the bytes: who has trained two
        matrices finds them different everywhere, and reading all of a large head to find a copy would cost seconds."""
        one, two = (self._tensors.get(self._in_file(each)) for each in (name, other))
        if one is None or two is None:
            return False
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            return True
        step = max(one.nbytes // _SAMPLE, 1) | 1  # odd, so that it meets every byte of an element
        return not np.array_equal(one.data[::step], two.data[::step])

    def take(self, name: str, *shape: int) -> str:
        """`name` again, so that it can be written where a node's input stands. The tensor must have that shape."""
        file_name = self._in_file(name)
        matrix = self._tensors.get(file_name)
        if matrix is None:
            raise MissingTensorError(f"{self._where} has no tensor {file_name!r}{self._nearest(file_name)}")
        if matrix.shape != shape:
            raise TensorShapeError(
                f"{self._where}: tensor {file_name!r} has the shape {list(matrix.shape)}, "
                f"but the model's configuration asks for {list(shape)}"
            )
        if matrix.dtype not in _FLOATS:
            raise UnsupportedTensorTypeError(
                f"{self._where}: weight {file_name!r} is {matrix.dtype.name}; "
                f"weights must be one of {', '.join(dtype.name for dtype in _FLOATS)}"
            )
        self._used.add(file_name)
        self.taken[name] = matrix
        return name

    def check_all_used(self, ignored: Callable[[str], bool]) -> None:
        """A tensor that the graph does not use (a norm, a bias, an expert) would be silently missing in the result."""
        unused = [name for name in self._tensors if name not in self._used and not ignored(name)]
        if unused:
            more = f" and {len(unused) - _MAX_LISTED} more" if len(unused) > _MAX_LISTED else ""
            raise UnsupportedModelError(
                f"{self._where} holds tensors that the {self._family} graph has no place for: "
                f"{', '.join(map(shown, unused[:_MAX_LISTED]))}{more}"
            )

    def _nearest(self, name: str) -> str:
        if not self._tensors:
            return "; it holds no tensors at all"
        near = get_close_matches(name, list(self._tensors)[:5000], n=3, cutoff=0.5) or list(self._tensors)[:3]
        return f"; the nearest of its {len(self._tensors)} are {', '.join(map(shown, near))}"
