"""POST /v1/rerank: documents by how well they answer a query, in the shape of Cohere and Jina.

A cross-encoder (one number for a pair of texts) reads query and document together; with any other model of vectors it
is the cosine of their embeddings. `method` says which it was.
"""

import uuid

from aie_engine import InvalidInputError
from aie_server.api.embeddings import token_usage
from aie_server.api.fields import Fields
from aie_server.api.inputs import check_count, check_text, parse_priority
from aie_server.api.json_body import decode_object
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.config import ServerConfig
from aie_server.http.messages import Request, Response

__all__ = ["RerankEndpoint"]

_MAX_TOP = 1 << 31  # more than there are means all


class RerankEndpoint:
    """`{model?, query, documents, top_n?, return_documents?}`."""

    def __init__(self, context: PredictionContext) -> None:
        self._context = context

    def __call__(self, request: Request) -> Response:
        config = self._context.config
        fields = Fields(decode_object(request.body))
        model = self._context.predictors.find(fields.text("model"), lambda one: one.can_rerank, "order of documents")
        query = check_text("query", fields.get("query"), config)
        documents = _documents(fields, config)
        top_n = fields.integer("top_n", low=1, high=_MAX_TOP)
        returns_documents = fields.flag("return_documents", False)
        is_cross = model.reader.scores_pairs
        if is_cross:
            _check_pairs(query, documents, config)
        priority = parse_priority(fields, self._context.config)
        with PredictionRun(self._context, model, request, priority=priority) as run:
            with run.pre():
                items, num_truncated = model.pipeline.texts(
                    [(query, document) for document in documents] if is_cross else [query, *documents]
                )
            outputs = run.compute(items)
            with run.post():
                scores = model.reader.pair_scores(outputs) if is_cross else model.reader.cosines(outputs)
                order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
            return run.respond(
                {
                    "id": f"rerank-{uuid.uuid4().hex}",
                    "model": model.name,
                    "method": "cross-encoder" if is_cross else "cosine",
                    "results": [
                        {
                            "index": index,
                            "relevance_score": scores[index],
                            **({"document": {"text": documents[index]}} if returns_documents else {}),
                        }
                        for index in order
                    ],
                    "usage": token_usage(items, num_truncated),
                }
            )


def _check_pairs(query: str, documents: list[str], config: ServerConfig) -> None:
    """A long query for many documents is a small body and a lot to read."""
    total = len(query) * len(documents) + sum(map(len, documents))
    if total > config.max_pair_chars:
        raise InvalidInputError(
            f"query is read with each of the {len(documents)} documents: {total} characters; at most "
            f"{config.max_pair_chars} are read for one request. Shorten the query, or send fewer documents.",
            param="query",
        )


def _documents(fields: Fields, config: ServerConfig) -> list[str]:
    """Texts, or objects with a `text`."""
    value = fields.get("documents")
    if not isinstance(value, list):
        raise InvalidInputError("documents must be a list of strings, or of objects with a text.", param="documents")
    check_count("documents", len(value), config)
    return [
        check_text(f"documents[{index}]", one.get("text") if isinstance(one, dict) else one, config)
        for index, one in enumerate(value)
    ]
