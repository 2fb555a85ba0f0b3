"""Requests and answers of `/infer`: JSON, and with the binary tensor extension the tensors' bytes behind it.

Inference-Header-Content-Length: 120        so many bytes of JSON come first
{"inputs": [{"name": …, "datatype": …, "shape": […], "parameters": {"binary_data_size": 16}}]}
16 bytes                                    of that input, then those of the next one that has a size
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from aie_engine import InvalidInputError
from aie_engine.processing import Tensor, datatype_of, tensor_from_bytes, tensor_from_json, tensor_to_bytes
from aie_server.api.fields import Fields
from aie_server.api.inputs import check_shape
from aie_server.api.json_body import decode_object
from aie_server.config import ServerConfig
from aie_server.http.messages import Request, Response

__all__ = ["HEADER", "InferRequest", "infer_response", "parse_infer"]

HEADER = "Inference-Header-Content-Length"

_MAX_TENSORS = 64
_MAX_SIZE = 1 << 40
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What was asked, with the tensors still to be read."""

    id: str | None
    inputs: list[Fields]
    binary: memoryview  # what stands behind the JSON
    outputs: dict[str, bool] | None  # name → as bytes; None: all
    all_binary: bool  # for outputs that say nothing else
    timeout_s: float | None  # the client's patience
    level: int | None = None  # of priority, as Triton counts them

    def tensors(self, config: ServerConfig) -> list[Tensor]:
        """Raises `InvalidInputError` naming the input and what does not fit."""
        position, tensors = 0, []
        for fields in self.inputs:
            name, datatype = _required(fields, "name"), _required(fields, "datatype")
            shape = _shape(fields, name)
            check_shape(name, datatype, shape, config)
            parameters = fields.object("parameters") or Fields({})
            _check_parameters(name, parameters)
            size = parameters.integer("binary_data_size", low=0, high=_MAX_SIZE)
            if size is None:
                tensors.append(tensor_from_json(name, datatype, shape, fields.get("data")))
                continue
            if fields.has("data"):
                raise InvalidInputError(f"{name} has both data and binary_data_size.", param=name)
            if position + size > len(self.binary):
                raise InvalidInputError(f"{name}: the body ends before its {size} bytes do.", param=name)
            tensors.append(tensor_from_bytes(name, datatype, shape, self.binary[position : position + size]))
            position += size
        if position != len(self.binary):
            raise InvalidInputError(
                f"The body has {len(self.binary)} bytes behind its JSON; the inputs claim {position}.", param="inputs"
            )
        return tensors


def parse_infer(request: Request) -> InferRequest:
    """Everything but the tensors. Raises `InvalidInputError`."""
    encoding = request.head.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidInputError(f"Bodies are not decompressed here; send it without Content-Encoding {encoding[:20]}.")
    size = _json_size(request)
    fields = Fields(decode_object(request.body[:size]))
    parameters = fields.object("parameters") or Fields({})
    all_binary = parameters.flag("binary_data_output", False)
    outputs: dict[str, bool] | None = None
    if fields.has("outputs") and fields.get("outputs") != []:  # an empty list stands for all, as over gRPC
        outputs = {}
        for output in _objects(fields, "outputs"):
            options = output.object("parameters") or Fields({})
            name = _required(output, "name")
            _check_parameters(name, options)
            outputs[name] = options.flag("binary_data", all_binary)
    timeout_us = parameters.integer("timeout", low=0, high=_MAX_SIZE)  # 0 means none, to Triton's clients
    timeout_s = timeout_us * 1e-6 if timeout_us else None
    binary = memoryview(request.body)[size:]
    level = parameters.integer("priority", low=0, high=_MAX_SIZE)
    return InferRequest(fields.text("id"), _objects(fields, "inputs"), binary, outputs, all_binary, timeout_s, level)


def infer_response(asked: InferRequest, model: str, version: str, arrays: Mapping[str, Any]) -> Response:
    """arrays: the model's outputs by name, [items, …]. Raises `InvalidInputError` for an output that it has not."""
    wanted = asked.outputs if asked.outputs is not None else dict.fromkeys(arrays, asked.all_binary)
    outputs: list[dict[str, object]] = []
    binary: list[bytes] = []
    for name, is_binary in wanted.items():
        if name not in arrays:
            raise InvalidInputError(
                f"There is no output {name[:100]!r}; there is {', '.join(arrays)}.", param="outputs"
            )
        array = arrays[name]
        output: dict[str, object] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if is_binary:
            binary.append(tensor_to_bytes(array))
            output["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    answer: dict[str, object] = {"model_name": model, "model_version": version, "outputs": outputs}
    if asked.id is not None:
        answer["id"] = asked.id
    head = _encoder.encode(answer)
    if not binary:
        return Response(head)
    body = b"".join([head, *binary])
    return Response(body, content_type="application/octet-stream", headers={HEADER: str(len(head))})


def _json_size(request: Request) -> int:
    given = request.head.headers.get(HEADER.lower())
    if given is None:
        return len(request.body)
    if not (given.isascii() and given.isdigit() and len(given) < 16 and int(given) <= len(request.body)):
        raise InvalidInputError(f"{HEADER} must be a number of bytes, at most the {len(request.body)} of the body.")
    return int(given)


def _objects(fields: Fields, field: str) -> list[Fields]:
    value = fields.get(field)
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_TENSORS:
        raise fields.error(field, f"a list of 1 to {_MAX_TENSORS} objects")
    for one in value:
        if not isinstance(one, dict):
            raise fields.error(field, "a list of objects")
    return [Fields(one, f"{field}[{index}]") for index, one in enumerate(value)]


def _check_parameters(name: str, parameters: Fields) -> None:
    """Raises for what would change the answer and is not there. Unknown ones are ignored, as the protocol asks."""
    for key in parameters.names():
        if key == "classification":
            raise parameters.error(key, "left out: /predict gives labels")
        if key.startswith("shared_memory_"):
            raise InvalidInputError(f"{name[:100]}: there is no shared memory here; send the tensor.", param=key)


def _required(fields: Fields, field: str) -> str:
    value = fields.text(field)
    if not value:
        raise fields.error(field, "given")
    return value


def _shape(fields: Fields, name: str) -> list[int]:
    value = fields.get("shape")
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in value):
        raise InvalidInputError(f"{name}: shape must be a list of sizes.", param=name)
    return value
