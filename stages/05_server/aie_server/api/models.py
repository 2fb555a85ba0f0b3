"""GET /v1/models and /v1/models/{model}: those that generate text, then those that answer at once."""

from urllib.parse import unquote

from aie_server.http.messages import Request, Response, json_response
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.served import ModelTable, ServedModel

__all__ = ["ModelEndpoint", "ModelsEndpoint"]


class ModelsEndpoint:
    """All models, the default one first."""

    def __init__(self, models: ModelTable, predictors: PredictorTable) -> None:
        self._models = models
        self._predictors = predictors

    def __call__(self, _: Request) -> Response:
        with self._models.lease_all() as models:
            data = [_model_object(model) for model in models]
        return json_response({"object": "list", "data": data + [_predictor_object(one) for one in self._predictors]})


class ModelEndpoint:
    """One model by its name, which may contain slashes."""

    def __init__(self, models: ModelTable, predictors: PredictorTable) -> None:
        self._models = models
        self._predictors = predictors

    def __call__(self, request: Request) -> Response:
        name = unquote(request.head.path.removeprefix("/v1/models/"))
        if name in self._predictors:
            return json_response(_predictor_object(self._predictors.get(name)))
        with self._models.lease(name) as lease:
            return json_response(_model_object(lease.model))


def _model_object(model: ServedModel) -> dict[str, object]:
    """OpenAI's object; vLLM's `max_model_len`, which clients use to size prompts; the version, if there is one."""
    version = {} if model.version is None else {"version": model.version}
    return _object(model.name, model.created, model.max_seq_len) | version


def _predictor_object(model: ServedPredictor) -> dict[str, object]:
    """The same; no `max_model_len` where no text is read."""
    return _object(model.name, model.created, model.pipeline.max_length) | {"version": model.version}


def _object(name: str, created: int, max_model_len: int | None) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "aie",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
    }
