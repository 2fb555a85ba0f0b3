"""From the object in a PyTorch file to named tensors: which entries are weights, and where their bytes lie."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.torch_names import TensorView
from aie_tensor import Matrix

__all__ = ["collect_tensors", "materialize"]

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # the usual names of the weights in a training checkpoint
_MAX_DEPTH = 16
_MAX_NAME = 1024
_MOST_COPIES = 2  # bytes of copies per byte of the file

Bytes = npt.NDArray[np.uint8]


def collect_tensors(root: object, budget: int, where: str) -> tuple[dict[str, TensorView], dict[str, object]]:
    """name → view of every tensor, and the plain values beside them. Names of nested dictionaries are joined by dots.

    Where the root wraps a state dictionary, only that one is taken. `budget` bounds the entries looked at (the bytes
    of the pickle: a tree cannot have more), because dictionaries that are referred to many times can form a tree of
    exponential size.
    """
    if not isinstance(root, dict):
        raise MalformedHeaderError(
            f"{where} holds a {_kind(root)}, not a dictionary of tensors; save model.state_dict() instead"
        )
    if not any(isinstance(value, TensorView) for value in root.values()):
        root = next((root[name] for name in _WRAPPERS if isinstance(root.get(name), dict)), root)
    tensors: dict[str, TensorView] = {}
    plain: dict[str, object] = {}
    waiting: list[tuple[str, object, int]] = [("", root, 0)]
    while waiting:
        prefix, node, depth = waiting.pop()
        if depth > _MAX_DEPTH or not isinstance(node, dict):
            raise MalformedHeaderError(f"{where}: its dictionaries nest deeper than {_MAX_DEPTH} levels")
        budget -= len(node)
        if budget < 0:
            raise MalformedHeaderError(f"{where}: its dictionaries refer to each other, which makes too many entries")
        for key, value in node.items():
            name = f"{prefix}{key}"
            if len(name) > _MAX_NAME:  # a long name of a dictionary is repeated in that of each entry
                raise MalformedHeaderError(f"{where}: {name[:40]!r}… is a name of over {_MAX_NAME} characters")
            if isinstance(value, TensorView):
                tensors[name] = value
            elif isinstance(value, dict):
                waiting.append((f"{name}.", value, depth + 1))
            elif value is None or isinstance(value, str | int | float):
                plain[name] = value
    return tensors, plain


def materialize(
    views: Mapping[str, TensorView], places: Mapping[str, tuple[int, int]], data: Bytes, where: str
) -> dict[str, Matrix]:
    """name → matrix over the mapped file's bytes `data`; `places` says where each storage lies, (offset, bytes)."""
    allowed = _MOST_COPIES * len(data)
    for name, view in views.items():
        _check_storage(name, view, places, where)
        if not view.is_contiguous:
            allowed -= view.num_elements * view.dtype.block_bytes
            if allowed < 0 or view.num_elements * view.dtype.block_bytes > view.storage.num_bytes:
                raise MalformedHeaderError(
                    f"{where}: tensor {name!r} shows the same bytes many times; save it .contiguous() instead"
                )
    return {name: _matrix(view, places[view.storage.key][0], data) for name, view in views.items()}


def _check_storage(name: str, view: TensorView, places: Mapping[str, tuple[int, int]], where: str) -> None:
    storage = view.storage
    if storage.key not in places:
        raise TruncatedFileError(f"{where}: tensor {name!r} lies in storage {storage.key[:40]!r}, which is missing")
    if places[storage.key][1] != storage.num_bytes:
        raise MalformedHeaderError(
            f"{where}: storage {storage.key[:40]!r} of tensor {name!r} should have {storage.num_bytes:,} bytes, "
            f"but has {places[storage.key][1]:,}"
        )


def _matrix(view: TensorView, storage_offset: int, data: Bytes) -> Matrix:
    width = view.dtype.block_bytes
    start = storage_offset + view.offset * width
    if view.is_contiguous:
        return Matrix(view.dtype, view.shape, data[start : start + view.num_elements * width])
    # Bytes are bytes: elements are moved as integers of their width, whatever they mean.
    storage = data[start : storage_offset + view.storage.num_bytes]
    elements = storage[: len(storage) // width * width].view(f"<u{width}")
    strides = [step * width for step in view.stride]
    copy = np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, view.shape, strides, writeable=False))
    return Matrix(view.dtype, view.shape, copy.reshape(-1).view(np.uint8))


def _kind(value: object) -> str:
    return "tensor" if isinstance(value, TensorView) else type(value).__name__
