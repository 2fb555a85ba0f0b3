"""POST /predict/{model}: whatever the model reads, as plain JSON or as the bytes of an image.

    {"input": "a text"} or ["texts", …]         a model that reads text
    {"input": [1.0, 2.0, …]} or [[…], …]        rows, or arrays of the shape that the model takes
    {"input": "base64 of an image"} or a list   a model that looks at images; or the file itself as the body
    {"inputs": {"name": […], …}}                several inputs; the first axis counts the items

The answer's `predictions` has an entry for each item: `labels`, `boxes`, `embedding`, or the model's `outputs` by name.
"""

import base64
import binascii
from urllib.parse import parse_qs, unquote

from aie_engine import InvalidInputError
from aie_engine.processing import Item
from aie_server.api.fields import Fields
from aie_server.api.inputs import check_count, parse_inputs, parse_priority
from aie_server.api.json_body import decode_object
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.http.messages import Request, Response
from aie_server.predictors import ServedPredictor

__all__ = ["PREFIX", "PredictEndpoint"]

PREFIX = "/predict/"
_MAX_LABELS = 1_000_000
_MAX_QUERY_FIELDS = 16


class PredictEndpoint:
    """`top_k` (in the object, or after a question mark beside an image) says how many labels."""

    def __init__(self, context: PredictionContext) -> None:
        self._context = context

    def __call__(self, request: Request) -> Response:
        model = self._context.predictors.get(unquote(request.head.path.removeprefix(PREFIX)))
        is_image = _is_image(request, model)
        fields = Fields(_query(request.head.query) if is_image else decode_object(request.body))
        top_k = fields.integer("top_k", low=1, high=_MAX_LABELS)
        priority = parse_priority(fields, self._context.config)
        with PredictionRun(self._context, model, request, priority=priority) as run:
            with run.pre():
                items = [self._image(model, request.body, "body", 1)] if is_image else self._items(fields, model)
            outputs = run.compute(items)
            with run.post():
                predictions = model.reader.plain(outputs, top_k)
            return run.respond({"model": model.name, "predictions": predictions})

    def _items(self, fields: Fields, model: ServedPredictor) -> list[Item]:
        config, pipeline = self._context.config, model.pipeline
        by_name = fields.object("inputs")
        if (by_name is None) == (fields.get("input") is None):
            raise fields.error("input", "given, or inputs with an array for each of the model's inputs")
        if by_name is not None:
            items = pipeline.arrays({name: by_name.get(name) for name in by_name.names()})
        elif pipeline.reads in ("text", "tokens"):
            return parse_inputs(fields, config).items(model)[0]
        elif pipeline.reads == "image" and (files := _base64_texts(fields.get("input"))):
            check_count("input", len(files), config)
            return [
                self._image(model, _decoded(text, index), f"input[{index}]", len(files))
                for index, text in enumerate(files)
            ]
        elif len(pipeline.inputs) > 1:
            names = ", ".join(facts.name for facts in pipeline.inputs)
            raise fields.error("inputs", f"an object with an array for each of {names}")
        else:
            items = pipeline.arrays({pipeline.inputs[0].name: fields.get("input")})
        check_count("input", len(items), config)
        return items

    def _image(self, model: ServedPredictor, data: bytes, param: str, num_images: int) -> Item:
        config = self._context.config
        most = max(1, min(config.max_image_pixels, config.max_request_pixels // num_images))
        return model.pipeline.image(data, max_pixels=most, param=param)


def _is_image(request: Request, model: ServedPredictor) -> bool:
    """Whether the body is a file: by what its header says, or where that is a client's default, by how it begins."""
    kind = request.head.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind.startswith("multipart/"):
        raise InvalidInputError(
            "Forms are not read here; send the file as the body, such as with curl --data-binary @FILE.", param="body"
        )
    if kind.startswith("image/") or kind == "application/octet-stream":
        return True
    return model.pipeline.reads == "image" and kind != "application/json" and not request.body.lstrip().startswith(b"{")


def _query(text: str) -> dict[str, object]:
    """The fields after the question mark; whole numbers as such."""
    values: dict[str, object] = {}
    try:
        given = parse_qs(text, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        raise InvalidInputError(f"There may be at most {_MAX_QUERY_FIELDS} fields after the question mark.") from None
    for name, found in given.items():
        values[name] = (
            int(found[-1]) if found[-1].isascii() and found[-1].isdigit() and len(found[-1]) < 10 else found[-1]
        )
    return values


def _base64_texts(value: object) -> list[str]:
    """The texts, if it is a text or a list of nothing else."""
    values = [value] if isinstance(value, str) else value
    if isinstance(values, list) and all(isinstance(one, str) for one in values):
        return values
    return []


def _decoded(text: str, index: int) -> bytes:
    try:
        return base64.b64decode(text.rpartition("base64,")[2], validate=True)  # a data: address is understood, too
    except (binascii.Error, ValueError):
        raise InvalidInputError(f"input[{index}] is not base64.", param=f"input[{index}]") from None
