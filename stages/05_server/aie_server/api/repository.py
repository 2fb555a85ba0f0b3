"""The model repository protocol of KServe and Triton:

    GET or POST /v2/repository/index                {"ready": bool}?  →  [{name, version, state, reason}]
    POST /v2/repository/models/{name}/load          {"parameters": {version?, wait?}}?
    POST /v2/repository/models/{name}/unload

Errors are `{"error": sentence, "code": …}` with their status, as the protocol has it, not OpenAI's object. Two
parameters are ours: `version` names one instead of the newest, and `wait: false` answers 202 at once instead of when
the version serves. Unknown parameters are ignored, as the protocol asks.
"""

from urllib.parse import unquote

from aie_server.api.fields import Fields
from aie_server.api.json_body import decode_object
from aie_server.control import ModelControl, VersionState
from aie_server.http.messages import ClientGoneError, Handler, Request, Response, json_response
from aie_server.predictors import PredictorTable, ServedPredictor

__all__ = ["PREFIX", "index_endpoint", "load_endpoint", "states", "unload_endpoint"]

PREFIX = "/v2/repository/models/"


def index_endpoint(control: ModelControl, predictors: PredictorTable) -> Handler:
    """All versions, or with `{"ready": true}` those that serve. Predictors are listed, though they stay as they are."""

    def handler(request: Request) -> Response:
        fields = _fields(request)
        only_ready = fields.flag("ready", False)
        return json_response(
            [
                {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
                for entry in states(control, predictors, only_ready=only_ready)
            ]
        )

    return handler


def states(control: ModelControl, predictors: PredictorTable, *, only_ready: bool) -> list[VersionState]:
    """What the index lists."""
    found = [*control.index(), *map(_state, predictors)]
    return [entry for entry in found if entry.state == "READY" or not only_ready]


def load_endpoint(control: ModelControl, poll_s: float) -> Handler:
    """Answers when the new version serves, or with the reason why the old one still does. A client that hangs up gives
    up waiting, not the load."""

    def handler(request: Request) -> Response:
        parameters = _fields(request).object("parameters") or Fields({})
        version, waits = parameters.text("version"), parameters.flag("wait", True)
        pending = control.load(_model_name(request, "/load"), version)
        if not waits:
            body = {"name": pending.name, "version": pending.version, "state": "LOADING", "reason": ""}
            return json_response(body, status=202)
        while not pending.wait(poll_s):
            if request.client_gone():
                raise ClientGoneError
        report = pending.result()
        return json_response(
            {
                "name": report.name,
                "version": report.version,
                "state": "READY",
                "reason": "",
                "previous_version": report.previous_version,
                "load_s": round(report.seconds, 3),
            }
        )

    return handler


def unload_endpoint(control: ModelControl) -> Handler:
    """Answers when no new request can reach the model any more."""

    def handler(request: Request) -> Response:
        _fields(request)
        control.unload(_model_name(request, "/unload"))
        return json_response({})

    return handler


def _state(model: ServedPredictor) -> VersionState:
    is_alive = model.predictor.is_alive
    return VersionState(
        model.name, model.version, *(("READY", "") if is_alive else ("UNAVAILABLE", "its predictor is not running"))
    )


def _model_name(request: Request, suffix: str) -> str:
    return unquote(request.head.path.removeprefix(PREFIX).removesuffix(suffix))


def _fields(request: Request) -> Fields:
    return Fields(decode_object(request.body) if request.body else {})
