"""POST /v1/embeddings: a vector per text, in OpenAI's shape."""

from collections.abc import Sequence

from aie_engine.processing import Item, vector_base64
from aie_server.api.fields import Fields
from aie_server.api.inputs import parse_inputs, parse_priority
from aie_server.api.json_body import decode_object
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.http.messages import Request, Response

__all__ = ["EmbeddingsEndpoint", "token_usage"]

_MAX_DIMENSIONS = 1 << 16


class EmbeddingsEndpoint:
    """`{model?, input, encoding_format?, dimensions?}`. What is longer than the model can read is cut, as its own
    tokenizer does; `usage.truncated_inputs` says how many were."""

    def __init__(self, context: PredictionContext) -> None:
        self._context = context

    def __call__(self, request: Request) -> Response:
        fields = Fields(decode_object(request.body))
        model = self._context.predictors.find(
            fields.text("model"),
            lambda one: one.reader.gives_vectors and one.pipeline.reads in ("text", "tokens"),
            "embeddings of text",
        )
        encoding = fields.text("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise fields.error("encoding_format", "float or base64")
        dimensions = fields.integer("dimensions", low=1, high=model.pipeline.width or _MAX_DIMENSIONS)
        inputs = parse_inputs(fields, self._context.config)
        priority = parse_priority(fields, self._context.config)
        with PredictionRun(self._context, model, request, priority=priority) as run:
            with run.pre():
                items, num_truncated = inputs.items(model)
            outputs = run.compute(items)
            with run.post():
                vectors = model.reader.vectors(outputs, dimensions)
                values: list[object] = [vector_base64(v) for v in vectors] if encoding == "base64" else vectors.tolist()
            return run.respond(
                {
                    "object": "list",
                    "data": [
                        {"object": "embedding", "index": index, "embedding": value}
                        for index, value in enumerate(values)
                    ],
                    "model": model.name,
                    "usage": token_usage(items, num_truncated),
                }
            )


def token_usage(items: Sequence[Item], num_truncated: int) -> dict[str, int]:
    """OpenAI's `usage`, and how many inputs lost their end."""
    total = sum(item.length for item in items)
    return {"prompt_tokens": total, "total_tokens": total, "truncated_inputs": num_truncated}
