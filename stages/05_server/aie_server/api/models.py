"""GET /v1/models and /v1/models/{model}."""

from urllib.parse import unquote

from aie_server.http.messages import Request, Response, json_response
from aie_server.served import ModelTable, ServedModel

__all__ = ["ModelEndpoint", "ModelsEndpoint"]


class ModelsEndpoint:
    """All models, the default one first."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models

    def __call__(self, _: Request) -> Response:
        with self._models.lease_all() as models:
            return json_response({"object": "list", "data": [_model_object(model) for model in models]})


class ModelEndpoint:
    """One model by its name, which may contain slashes."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models

    def __call__(self, request: Request) -> Response:
        name = unquote(request.head.path.removeprefix("/v1/models/"))
        with self._models.lease(name) as lease:
            return json_response(_model_object(lease.model))


def _model_object(model: ServedModel) -> dict[str, object]:
    """OpenAI's object; vLLM's `max_model_len`, which clients use to size prompts; the version, if there is one."""
    version = {} if model.version is None else {"version": model.version}
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "aie",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_seq_len,
        **version,
    }
