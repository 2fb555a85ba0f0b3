"""`ModelInfer`: tensors of its request, and its response.

A tensor's elements come in one of two ways, and the answer goes the way the request came:

    raw_input_contents   for each input in its order, its bytes; what Triton's client sends
    contents             a list of numbers in the field of their type; floats are packed, and so are their bytes, too
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

from aie_engine import InvalidInputError
from aie_engine.processing import Tensor, datatype_of, tensor_from_bytes, tensor_from_json, tensor_to_bytes
from aie_server.api.inputs import check_shape
from aie_server.config import ServerConfig
from aie_server.grpc.schema import Values

__all__ = ["infer_response", "read_tensors"]

_MAX_TENSORS: Final = 64
_FIELDS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_PACKED: Final = {"INT64": "q", "UINT64": "Q"}  # of the list's own width: no element can be out of range
_AS_BYTES: Final = ("FP32", "FP64")  # what the list is on the wire, the tensor is in memory


def read_tensors(request: Values, config: ServerConfig) -> list[Tensor]:
    """Raises `InvalidInputError` naming the input and what does not fit."""
    inputs, raw = request.get("inputs", []), request.get("raw_input_contents", [])
    if not 1 <= len(inputs) <= _MAX_TENSORS:
        raise InvalidInputError(f"inputs must have 1 to {_MAX_TENSORS} entries, not {len(inputs)}.", param="inputs")
    if raw and len(raw) != len(inputs):
        raise InvalidInputError(
            f"raw_input_contents must have an entry for each of the {len(inputs)} inputs; it has {len(raw)}.",
            param="raw_input_contents",
        )
    tensors: list[Tensor] = []
    for index, given in enumerate(inputs):
        name = given.get("name")
        if not name:
            raise InvalidInputError(f"inputs[{index}] must have a name.", param="inputs")
        _check_parameters(name, given)
        datatype, shape = given.get("datatype", ""), given.get("shape", [])
        check_shape(name, datatype, shape, config)
        contents = given.get("contents", {})
        if not raw:
            tensors.append(_typed(name, datatype, shape, contents))
        elif contents:
            raise InvalidInputError(f"{name} has contents beside raw_input_contents; send one of them.", param=name)
        else:
            tensors.append(tensor_from_bytes(name, datatype, shape, raw[index]))
    return tensors


def infer_response(request: Values, model: str, version: str, arrays: Mapping[str, Any]) -> Values:
    """arrays: the model's outputs by name, [items, …]. Raises `InvalidInputError` for an output that it has not."""
    names = list(dict.fromkeys(output.get("name", "") for output in request.get("outputs", []))) or list(arrays)
    for name in names:
        if name not in arrays:
            raise InvalidInputError(
                f"There is no output {name[:100]!r}; there is {', '.join(arrays)}.", param="outputs"
            )
    for output in request.get("outputs", []):
        _check_parameters(output.get("name", ""), output)
    outputs: list[Values] = [
        {"name": name, "datatype": datatype_of(arrays[name]), "shape": list(arrays[name].shape)} for name in names
    ]
    answer: Values = {"model_name": model, "model_version": version, "id": request.get("id", ""), "outputs": outputs}
    if request.get("raw_input_contents") or any(output["datatype"] not in _FIELDS for output in outputs):
        answer["raw_output_contents"] = [tensor_to_bytes(arrays[name]) for name in names]
        return answer
    for output in outputs:
        array, datatype = arrays[output["name"]], output["datatype"]
        elements = tensor_to_bytes(array) if datatype in _AS_BYTES else array.ravel().tolist()
        output["contents"] = {_FIELDS[datatype]: elements}
    return answer


def _typed(name: str, datatype: str, shape: list[int], contents: Values) -> Tensor:
    field = _FIELDS.get(datatype)
    if field is None and datatype == "FP16":
        raise InvalidInputError(f"{name}: FP16 has no list of its own; send it as raw_input_contents.", param=name)
    others = contents.keys() - {field}
    if field is not None and others:
        raise InvalidInputError(f"{name}: {datatype} comes in {field}, not in {min(others)}.", param=name)
    elements = contents.get(field, []) if field is not None else []
    if datatype in _AS_BYTES:
        return tensor_from_bytes(name, datatype, shape, bytes(elements))
    if datatype == "BYTES":
        framed = b"".join(struct.pack("<I", len(element)) + element for element in elements)
        return tensor_from_bytes(name, datatype, shape, framed)
    if datatype in _PACKED:
        packed = struct.pack(f"<{len(elements)}{_PACKED[datatype]}", *elements)
        return tensor_from_bytes(name, datatype, shape, packed)
    return tensor_from_json(name, datatype, shape, elements)


def _check_parameters(name: str, tensor: Values) -> None:
    """Raises for what would change the answer and is not there. Unknown ones are ignored, as the protocol asks."""
    for parameter in tensor.get("parameters", []):
        key = parameter.get("key", "")
        if key == "classification":
            raise InvalidInputError(f"{name[:100]}: classification is left out: /predict gives labels.", param=key)
        if key.startswith("shared_memory_"):
            raise InvalidInputError(f"{name[:100]}: there is no shared memory here; send the tensor.", param=key)
