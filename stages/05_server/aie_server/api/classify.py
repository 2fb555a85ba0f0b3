"""POST /classify: labels of texts with scores, in vLLM's shape, with all that it leaves out."""

import time
import uuid

from aie_server.api.embeddings import token_usage
from aie_server.api.fields import Fields
from aie_server.api.inputs import parse_inputs, parse_priority
from aie_server.api.json_body import decode_object
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.http.messages import Request, Response

__all__ = ["ClassifyEndpoint"]

_MAX_LABELS = 1_000_000


class ClassifyEndpoint:
    """`{model?, input, top_k?}` → for each input its best label and the `top_k` best with their scores. With
    independent labels, those that reach the model's threshold."""

    def __init__(self, context: PredictionContext) -> None:
        self._context = context

    def __call__(self, request: Request) -> Response:
        fields = Fields(decode_object(request.body))
        model = self._context.predictors.find(
            fields.text("model"),
            lambda one: one.reader.gives_labels and one.pipeline.reads in ("text", "tokens"),
            "labels of text",
        )
        top_k = fields.integer("top_k", low=1, high=_MAX_LABELS)
        inputs = parse_inputs(fields, self._context.config)
        priority = parse_priority(fields, self._context.config)
        with PredictionRun(self._context, model, request, priority=priority) as run:
            with run.pre():
                items, num_truncated = inputs.items(model)
            outputs = run.compute(items)
            with run.post():
                found = model.reader.labels(outputs, top_k)
            return run.respond(
                {
                    "id": f"classify-{uuid.uuid4().hex}",
                    "object": "list",
                    "created": int(time.time()),
                    "model": model.name,
                    "data": [
                        {
                            "index": index,
                            "label": labels[0].label if labels else None,
                            "score": labels[0].score if labels else None,
                            "labels": labels,
                            "num_classes": model.pipeline.width,
                        }
                        for index, labels in enumerate(found)
                    ],
                    "usage": token_usage(items, num_truncated),
                }
            )
