"""The names that a pickle of tensors may use, and what we make of each: descriptions, never tensors.

A tensor in a PyTorch file is a view of a storage: `_rebuild_tensor_v2(storage, offset, size, stride, …)`, and the
storage is named by a persistent identifier `("storage", FloatStorage, key, device, number of elements)`. Both become
plain records here; whether the bytes exist is looked at when all of the pickle has been read.

Names: PyTorch's `torch/_utils.py` and `torch/serialization.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeGuard

from aie_loader.errors import MalformedHeaderError
from aie_loader.formats.pickle_machine import Named
from aie_tensor import DType

__all__ = ["Storage", "TensorView", "read_storage_id", "torch_names"]

_MAX_DIMS = 32
_MAX_VALUES = 1 << 63

_STORAGE_TYPES = {
    "FloatStorage": DType.F32, "HalfStorage": DType.F16, "BFloat16Storage": DType.BF16, "DoubleStorage": DType.F64,
    "ComplexFloatStorage": DType.C64, "CharStorage": DType.I8, "ShortStorage": DType.I16, "IntStorage": DType.I32,
    "LongStorage": DType.I64, "ByteStorage": DType.U8, "BoolStorage": DType.BOOL, "UntypedStorage": DType.U8,
}  # fmt: skip
_ELEMENT_TYPES = {
    "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float64": DType.F64, "complex64": DType.C64,
    "int8": DType.I8, "int16": DType.I16, "int32": DType.I32, "int64": DType.I64, "uint8": DType.U8,
    "uint16": DType.U16, "uint32": DType.U32, "uint64": DType.U64, "bool": DType.BOOL,
    "float8_e4m3fn": DType.F8_E4M3, "float8_e5m2": DType.F8_E5M2, "float8_e4m3fnuz": DType.F8_E4M3FNUZ,
    "float8_e5m2fnuz": DType.F8_E5M2FNUZ, "float8_e8m0fnu": DType.F8_E8M0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of elements under a key; where its bytes lie is known to whoever reads the file."""

    key: str
    dtype: DType
    num_elements: int

    @property
    def num_bytes(self) -> int:
        return self.dtype.nbytes(self.num_elements)


@dataclass(frozen=True, slots=True)
class TensorView:
    """Element [i, j, …] is element offset + i · stride[0] + j · stride[1] + … of the storage, read as `dtype`."""

    storage: Storage
    dtype: DType
    offset: int  # in elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Row by row without gaps, so that the bytes can be used where they lie."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True


def read_storage_id(identifier: object, where: str) -> Storage:
    """A persistent identifier of five parts (files of the old format add a sixth, which must be empty)."""
    if isinstance(identifier, tuple) and len(identifier) in {5, 6} and identifier[0] == "storage":
        kind, key, _, num_elements = identifier[1:5]
        dtype = kind.value if isinstance(kind, Named) and kind.name in _STORAGE_TYPES else None
        whole = len(identifier) == 5 or identifier[5] is None
        if isinstance(dtype, DType) and whole and isinstance(key, str) and _is_size(num_elements):
            return Storage(key, dtype, num_elements)
    raise MalformedHeaderError(f"{where}: an identifier in its pickle is not that of a storage")


def torch_names(where: str) -> Mapping[tuple[str, str], Named]:
    """The allow-list. `where` names the file in the errors of its rules."""

    def dictionary(arguments: tuple[object, ...]) -> object:
        if arguments:
            raise MalformedHeaderError(f"{where}: an OrderedDict is made from arguments")
        return {}

    def tensor(arguments: tuple[object, ...]) -> object:
        return _tensor(arguments, where)

    def tensor_of_type(arguments: tuple[object, ...]) -> object:
        if len(arguments) not in {7, 8} or not isinstance(arguments[6], Named):
            raise MalformedHeaderError(f"{where}: a tensor's description has no element type")
        return _tensor(arguments[:6], where, arguments[6].value)

    def parameter(arguments: tuple[object, ...]) -> object:
        if len(arguments) != 3 or not isinstance(arguments[0], TensorView):
            raise MalformedHeaderError(f"{where}: a parameter is not made from a tensor")
        return arguments[0]

    def size(arguments: tuple[object, ...]) -> object:
        # Nothing is copied: one long list that is asked for a million times would be a million long copies.
        if len(arguments) != 1 or not _are_sizes(arguments[0]):
            raise MalformedHeaderError(
                f"{where}: a torch.Size is not made from a tuple of at most {_MAX_DIMS} integers"
            )
        return arguments[0]

    names = {
        ("collections", "OrderedDict"): Named("OrderedDict", build=dictionary),
        ("torch._utils", "_rebuild_tensor_v2"): Named("_rebuild_tensor_v2", build=tensor),
        ("torch._utils", "_rebuild_tensor_v3"): Named("_rebuild_tensor_v3", build=tensor_of_type),
        ("torch._utils", "_rebuild_parameter"): Named("_rebuild_parameter", build=parameter),
        ("torch", "Size"): Named("Size", build=size),
    }
    for name, dtype in _STORAGE_TYPES.items():
        module = "torch.storage" if name == "UntypedStorage" else "torch"
        names[module, name] = Named(name, dtype)
    return names | {("torch", name): Named(name, dtype) for name, dtype in _ELEMENT_TYPES.items()}


def _tensor(arguments: tuple[object, ...], where: str, dtype: object = None) -> TensorView:
    """(storage, offset, size, stride, requires_grad, hooks[, metadata]): the first four say where the elements are."""
    storage = arguments[0] if len(arguments) in {6, 7} else None
    if not isinstance(storage, Storage):
        raise MalformedHeaderError(f"{where}: a tensor is not described by a storage, an offset, sizes and strides")
    offset, shape, stride = arguments[1:4]
    dtype = storage.dtype if dtype is None else dtype
    if not isinstance(dtype, DType):
        raise MalformedHeaderError(f"{where}: a tensor's element type is not one")
    if not _are_sizes(shape) or not _are_sizes(stride) or len(shape) != len(stride) or not _is_size(offset):
        raise MalformedHeaderError(
            f"{where}: a tensor's offset, sizes and strides are not integers, as many strides as sizes, "
            f"at most {_MAX_DIMS} of each"
        )
    if prod(shape) >= _MAX_VALUES:
        raise MalformedHeaderError(f"{where}: a tensor has 2^63 or more values")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    end = offset if 0 in shape else last + 1
    if end * dtype.block_bytes > storage.num_bytes:
        raise MalformedHeaderError(
            f"{where}: a tensor of {list(shape)} ends at element {end:,} of storage {storage.key[:40]!r}, "
            f"which has {storage.num_bytes // dtype.block_bytes:,}"
        )
    return TensorView(storage, dtype, offset, shape, stride)


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MAX_VALUES


def _are_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and len(value) <= _MAX_DIMS and all(_is_size(item) for item in value)
