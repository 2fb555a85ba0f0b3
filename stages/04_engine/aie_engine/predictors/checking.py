"""What `submit` checks before a request may wait: a bad input is refused alone, and never reaches a batch."""

from collections.abc import Mapping

import numpy as np

from aie_engine.predictors.protocol import ArrayInfo, PredictorInfo
from aie_engine.predictors.requests import Array, PredictRequest
from aie_scheduler import RequestTooLongError
from aie_tensor import InvalidInputError

__all__ = ["checked_item"]


def checked_item(info: PredictorInfo, request: PredictRequest) -> tuple[dict[str, Array], int]:
    """The arrays of one item as the executor takes them, and its length: tokens of a text, else 1.

    InvalidInputError names the input and the limit: missing or unknown, wrong shape or dtype, indices out of range,
    NaN and infinity, a text that is empty. RequestTooLongError for one that is too long.
    """
    _check_names(info, request.inputs)
    arrays = {
        array.name: _checked(array, request.inputs[array.name]) for array in info.inputs if array.name in request.inputs
    }
    length = _text_length(info, arrays) if info.reads_text else 1
    if request.length not in (0, length):
        raise InvalidInputError(f"length is {request.length}, but the inputs have {length}", param="length")
    return arrays, length


def _check_names(info: PredictorInfo, inputs: Mapping[str, Array]) -> None:
    known = {array.name for array in info.inputs}
    missing = [array.name for array in info.inputs if array.name not in inputs and not array.is_optional]
    unknown = [name for name in inputs if name not in known]
    if missing or unknown:
        wrong = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
        raise InvalidInputError(
            f"{info.name} takes {', '.join(array.name for array in info.inputs)}; {wrong}",
            param=(missing or unknown)[0],
        )


def _checked(want: ArrayInfo, given: Array) -> Array:
    array = np.asarray(given)
    fits = array.ndim == len(want.shape) and all(
        size in (-1, found) for size, found in zip(want.shape, array.shape, strict=True)
    )
    if not fits:
        shape = ["any" if size < 0 else size for size in want.shape]
        raise InvalidInputError(f"{want.name} must be {shape}, not {list(array.shape)}", param=want.name)
    return _indices(want, array) if want.dtype == "int32" else _numbers(want, array)


def _indices(want: ArrayInfo, array: Array) -> Array:
    if array.size and array.dtype.kind not in "iu":
        raise InvalidInputError(f"{want.name} holds indices, not {array.dtype}", param=want.name)
    if array.size and want.limit is not None and (array.min() < 0 or array.max() >= want.limit):
        raise InvalidInputError(
            f"{want.name} must lie in 0…{want.limit - 1}; given {array.min()}…{array.max()}", param=want.name
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def _numbers(want: ArrayInfo, array: Array) -> Array:
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{want.name} holds numbers, not {array.dtype}", param=want.name)
    numbers = array
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is refused as that
            numbers = np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)
    if not np.isfinite(numbers).all():
        place = [int(axis) for axis in np.argwhere(~np.isfinite(numbers))[0]]
        raise InvalidInputError(
            f"{want.name} must hold finite numbers; at {place} it holds {array[tuple(place)]}", param=want.name
        )
    return numbers


def _text_length(info: PredictorInfo, arrays: Mapping[str, Array]) -> int:
    length = len(arrays["token_ids"])
    if not length:
        raise InvalidInputError("token_ids is empty: a text has at least one token", param="token_ids")
    if info.max_length is not None and length > info.max_length:
        raise RequestTooLongError(
            f"the text has {length} tokens; {info.name} reads at most {info.max_length}", param="token_ids"
        )
    types = arrays.get("token_types")
    if types is not None and len(types) != length:
        raise InvalidInputError(
            f"token_types must have an entry for each of the {length} tokens, not {len(types)}", param="token_types"
        )
    return length
