"""What a load test sends to models that answer at once: bodies made before the clock starts, from a seed.

    embeddings   a text to /v1/embeddings, vectors back as base64, as OpenAI's own client asks for them
    infer        tensors as bytes to /v2/models/{model}/infer, as Triton's own client sends them
    predict      plain JSON to /predict/{model}

For the last two the server says what the model takes.
"""

import asyncio
import json
import math
import random
import struct
from dataclasses import dataclass
from urllib.parse import quote

from aie.bench.client import Endpoint, describe_error, get_text
from aie.bench.workload import Draw, words
from aie_engine import EnvironmentLacksError, InvalidInputError

__all__ = ["AT_ONCE", "MAX_DIFFERENT", "Question", "Tensor", "ask_inputs", "plan_questions"]

AT_ONCE = ("embeddings", "infer", "predict")
MAX_DIFFERENT = 512  # bodies; a longer test sends them again, in the same order
_MAX_VALUES = 1 << 24  # in one request
_SPECIAL_TOKENS = 2  # that encoders put around a text; the words are one token each
_FORMATS = {
    "FP16": "e", "FP32": "f", "FP64": "d", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B",
    "UINT16": "H", "UINT32": "I", "UINT64": "Q", "BOOL": "?",
}  # fmt: skip
_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input as the protocol's metadata describes it, without the axis that counts the items, if it has one."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    counts_items: bool = True

    @classmethod
    def described(cls, name: str, datatype: str, sizes: list[int]) -> "Tensor":
        """Servers write −1 for a size that may be any; as the first one it counts the items."""
        counts_items = sizes[0] < 0
        return cls(name, datatype, tuple(sizes[1:] if counts_items else sizes), counts_items)


@dataclass(frozen=True, slots=True)
class Question:
    """One request, ready to be sent."""

    path: str
    body: bytes
    headers: tuple[str, ...] = ("Content-Type: application/json",)


def ask_inputs(endpoint: Endpoint, model: str) -> list[Tensor]:
    """What the model takes. Raises `InvalidInputError` for one that the protocol does not serve here."""
    path = f"/v2/models/{quote(model, safe='/')}"
    try:
        status, text = asyncio.run(get_text(endpoint, path))
        answer = json.loads(text)
        if status == 200:
            inputs = [
                Tensor.described(str(one["name"]), str(one["datatype"]), [int(size) for size in one["shape"]])
                for one in answer["inputs"]
            ]
            if inputs:
                return inputs
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        reason = describe_error(error, is_begun=False)
        raise EnvironmentLacksError(f"The server stopped answering: {reason}. Look at its log.") from None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        pass
    raise InvalidInputError(
        f"The server does not say at {path} what {model} takes; name one that answers at once with --model.",
        param="model",
    )


def plan_questions(
    kind: str, model: str, inputs: list[Tensor], count: int, *, length: Draw, seed: int
) -> list[Question]:
    """`count` different ones. inputs: as `ask_inputs` gives them; not looked at for embeddings."""
    draw = random.Random(seed)
    if kind == "embeddings":
        return [_embedding(model, _text(length, draw)) for _ in range(count)]
    for tensor in inputs:
        _check(model, tensor)
    ask = _infer if kind == "infer" else _predict
    return [ask(model, inputs, length, draw) for _ in range(count)]


def _embedding(model: str, text: str) -> Question:
    body = {"model": model, "input": text, "encoding_format": "base64"}
    return Question("/v1/embeddings", json.dumps(body).encode())


def _infer(model: str, inputs: list[Tensor], length: Draw, draw: random.Random) -> Question:
    described, tail = [], b""
    for tensor in inputs:
        if tensor.datatype == "BYTES":
            text = _text(length, draw).encode()
            data = struct.pack("<I", len(text)) + text
        else:
            values = _values(tensor, draw)
            data = struct.pack(f"<{len(values)}{_FORMATS[tensor.datatype]}", *values)
        shape = [1, *tensor.shape] if tensor.counts_items else list(tensor.shape)
        parameters = {"binary_data_size": len(data)}
        described.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "parameters": parameters})
        tail += data
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    headers = ("Content-Type: application/octet-stream", f"{_HEADER}: {len(head)}")
    return Question(f"/v2/models/{quote(model, safe='/')}/infer", head + tail, headers)


def _predict(model: str, inputs: list[Tensor], length: Draw, draw: random.Random) -> Question:
    if inputs[0].datatype == "BYTES":
        body: dict[str, object] = {"input": _text(length, draw)}
    else:
        body = {"inputs": {tensor.name: [_nested(_values(tensor, draw), tensor.shape)] for tensor in inputs}}
    return Question(f"/predict/{quote(model, safe='')}", json.dumps(body).encode())


def _check(model: str, tensor: Tensor) -> None:
    known = tensor.datatype == "BYTES" or (
        tensor.datatype in _FORMATS
        and all(size > 0 for size in tensor.shape)
        and math.prod(tensor.shape) <= _MAX_VALUES
    )
    if not known:
        raise InvalidInputError(
            f"{model} takes {tensor.name} as {tensor.datatype} of shape {list(tensor.shape)}, for which no values can "
            "be made up here; text and tensors of known sizes can.",
            param="endpoint",
        )


def _text(length: Draw, draw: random.Random) -> str:
    return words(length(draw) - _SPECIAL_TOKENS, draw)


def _values(tensor: Tensor, draw: random.Random) -> list[float] | list[int]:
    """Of numbers between 0 and 1, as pixels are; of integers 0 and 1, which every table of embeddings has."""
    count = math.prod(tensor.shape)
    if not tensor.datatype.startswith("FP"):
        return [draw.randint(0, 1) for _ in range(count)]
    return [round(draw.random(), 3) for _ in range(count)]


def _nested(values: list[float] | list[int], shape: tuple[int, ...]) -> object:
    nested: list[object] = list(values)
    for size in reversed(shape[1:]):
        nested = [nested[begin : begin + size] for begin in range(0, len(nested), size)]
    return nested if shape else nested[0]
