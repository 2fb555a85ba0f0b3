"""GET /v1/models."""

from aie_server.http.messages import Request, Response, json_response
from aie_server.served import ModelTable, ServedModel

__all__ = ["ModelsEndpoint"]


class ModelsEndpoint:
    def __init__(self, models: ModelTable) -> None:
        self._models = models

    def __call__(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [_model_object(model) for model in self._models]})


def _model_object(model: ServedModel) -> dict[str, object]:
    """OpenAI's object, and vLLM's `max_model_len`, which clients use to size their prompts."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "aie",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_seq_len,
    }
