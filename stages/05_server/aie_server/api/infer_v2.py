"""The open inference protocol, version 2, over HTTP, as KServe and Triton speak it:

    GET  /v2                                     this server
    GET  /v2/health/live, /v2/health/ready       200, or 503
    GET  /v2/models/{name}[/versions/{v}]        inputs and outputs of a model
    GET  /v2/models/{name}[/versions/{v}]/ready  200, or 503
    POST /v2/models/{name}[/versions/{v}]/infer  tensors in, tensors out, as JSON or as bytes (infer_wire.py)

The first axis of every tensor counts the items, and each item joins the batcher by itself. A model with a tokenizer
takes `text` (BYTES), cleaned and truncated as everywhere, or `token_ids` as they are. The parameter `timeout`, in
microseconds, is the client's patience: what waits for longer is not computed. The parameter `priority` is 1 for what
runs first; see `of_level`.
"""

from collections.abc import Callable
from urllib.parse import unquote

from aie_engine.processing import TensorFacts, stacked
from aie_server.api.infer_wire import infer_response, parse_infer
from aie_server.api.inputs import check_tensors, of_level
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.errors import ModelNotFoundError
from aie_server.http.messages import Handler, Request, Response, json_response
from aie_server.predictors import ServedPredictor

__all__ = [
    "PREFIX",
    "find_version",
    "health_endpoint",
    "infer_endpoint",
    "metadata_endpoint",
    "ready_endpoint",
    "server_endpoint",
]

PREFIX = "/v2/models/"


def server_endpoint(version: str, extensions: list[str]) -> Handler:
    """Name, version and what is spoken beyond the protocol."""
    return lambda _: json_response({"name": "aie", "version": version, "extensions": extensions})


def health_endpoint(key: str, is_well: Callable[[], bool]) -> Handler:
    """`{"live": true}`, or with 503 `{"ready": false}`."""

    def handler(_: Request) -> Response:
        well = is_well()
        return json_response({key: well}, status=200 if well else 503)

    return handler


def metadata_endpoint(context: PredictionContext) -> Handler:
    """What the model takes and gives."""

    def handler(request: Request) -> Response:
        model = _model(context, request, "")
        return json_response(
            {
                "name": model.name,
                "versions": [model.version],
                "platform": "aie",
                "inputs": [_facts(facts) for facts in model.pipeline.inputs],
                "outputs": [_facts(facts) for facts in model.pipeline.outputs],
            }
        )

    return handler


def ready_endpoint(context: PredictionContext) -> Handler:
    """Whether the model's predictor takes requests."""

    def handler(request: Request) -> Response:
        model = _model(context, request, "/ready")
        ready = model.why_ill(context.config.max_batch_age_s) is None
        return json_response({"name": model.name, "ready": ready}, status=200 if ready else 503)

    return handler


def infer_endpoint(context: PredictionContext) -> Handler:
    """Runs the model on every item."""

    def handler(request: Request) -> Response:
        model = _model(context, request, "/infer")
        asked = parse_infer(request)
        priority = of_level(asked.level, context.config)
        with PredictionRun(context, model, request, timeout_s=asked.timeout_s, priority=priority) as run:
            with run.pre():
                tensors = asked.tensors(context.config)
                check_tensors(tensors, context.config)
                items = model.pipeline.tensors(tensors)
            outputs = run.compute(items)
            with run.post():
                response = infer_response(asked, model.name, model.version, stacked(outputs))
            response.headers = {**response.headers, **run.headers}
            return response

    return handler


def find_version(context: PredictionContext, name: str, version: str | None) -> ServedPredictor:
    """version: None for the one there is. Raises `ModelNotFoundError`."""
    model = context.predictors.get(name)
    if version is not None and version != model.version:
        raise ModelNotFoundError(
            f"{model.name} has no version {version[:100]!r} here; it has {model.version}.", param="version"
        )
    return model


def _model(context: PredictionContext, request: Request, suffix: str) -> ServedPredictor:
    path = unquote(request.head.path.removeprefix(PREFIX).removesuffix(suffix))
    name, versions, version = path.rpartition("/versions/")
    return find_version(context, name, version) if versions else find_version(context, path, None)


def _facts(facts: TensorFacts) -> dict[str, object]:
    return {"name": facts.name, "datatype": facts.datatype, "shape": list(facts.shape)}
