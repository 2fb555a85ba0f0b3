"""The methods of the service: a message in, a message out, errors raised. Nothing here knows gRPC's library.

What a method does is what its neighbour under `/v2` does over HTTP: the same limits, the same sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aie_engine.processing import TensorFacts, stacked
from aie_server.api.infer_v2 import find_version
from aie_server.api.inputs import check_tensors
from aie_server.api.predictions import PredictionContext, PredictionRun
from aie_server.api.repository import states
from aie_server.api.status import aie_version
from aie_server.control import ModelControl
from aie_server.errors import RouteError
from aie_server.grpc.options import read_patience, read_priority
from aie_server.grpc.schema import Values
from aie_server.grpc.tensors import infer_response, read_tensors
from aie_server.http.messages import ClientGoneError, Request

__all__ = ["OPEN_METHODS", "InferenceService"]

OPEN_METHODS: Final = ("ServerLive", "ServerReady")  # without a key, as probes ask

Method = Callable[[Values, Request], Values]


@dataclass(frozen=True, slots=True)
class InferenceService:
    """is_well: whether a request would be served. control: none, and the repository's methods are not served."""

    context: PredictionContext
    is_well: Callable[[], bool]
    control: ModelControl | None = None

    def method(self, name: str) -> Method:
        """Raises `RouteError` for a method that is not served, and for one that does not exist."""
        methods: dict[str, Method] = {
            "ServerLive": lambda _, __: {"live": True},
            "ServerReady": lambda _, __: {"ready": self.is_well()},
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
        }
        if self.control is not None:
            methods |= {
                "RepositoryIndex": self._index,
                "RepositoryModelLoad": self._load,
                "RepositoryModelUnload": self._unload,
            }
        found = methods.get(name)
        if found is None:
            raise RouteError(
                f"{name[:100]} is not served here; there is {', '.join(methods)}.", status=501, code="unknown_method"
            )
        return found

    def _server(self, _: Values, __: Request) -> Values:
        return {
            "name": "aie",
            "version": aie_version(),
            "extensions": ["model_repository"] if self.control is not None else [],
        }

    def _model_ready(self, asked: Values, _: Request) -> Values:
        model = find_version(self.context, asked.get("name", ""), asked.get("version") or None)
        return {"ready": model.why_ill(self.context.config.max_batch_age_s) is None}

    def _model(self, asked: Values, _: Request) -> Values:
        model = find_version(self.context, asked.get("name", ""), asked.get("version") or None)
        return {
            "name": model.name,
            "versions": [model.version],
            "platform": "aie",
            "inputs": [_facts(facts) for facts in model.pipeline.inputs],
            "outputs": [_facts(facts) for facts in model.pipeline.outputs],
        }

    def _infer(self, asked: Values, request: Request) -> Values:
        context = self.context
        model = find_version(context, asked.get("model_name", ""), asked.get("model_version") or None)
        timeout_s, priority = read_patience(asked, request), read_priority(asked, context.config)
        with PredictionRun(context, model, request, timeout_s=timeout_s, priority=priority) as run:
            with run.pre():
                tensors = read_tensors(asked, context.config)
                check_tensors(tensors, context.config)
                items = model.pipeline.tensors(tensors)
            outputs = run.compute(items)
            with run.post():
                return infer_response(asked, model.name, model.version, stacked(outputs))

    def _index(self, asked: Values, _: Request) -> Values:
        assert self.control is not None
        found = states(self.control, self.context.predictors, only_ready=asked.get("ready", False))
        return {
            "models": [
                {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason} for one in found
            ]
        }

    def _load(self, asked: Values, request: Request) -> Values:
        """Answers when the new version serves. A client that hangs up gives up waiting, not the load."""
        assert self.control is not None
        pending = self.control.load(asked.get("model_name", ""), _version(asked))
        while not pending.wait(self.context.config.disconnect_poll_s):
            if request.client_gone():
                raise ClientGoneError
        pending.result()
        return {}

    def _unload(self, asked: Values, _: Request) -> Values:
        assert self.control is not None
        self.control.unload(asked.get("model_name", ""))
        return {}


def _version(asked: Values) -> str | None:
    """The parameter `version`, which is ours: one instead of the newest."""
    for parameter in asked.get("parameters", []):
        if parameter.get("key") == "version":
            return parameter.get("value", {}).get("string_param") or None
    return None


def _facts(facts: TensorFacts) -> Values:
    return {"name": facts.name, "datatype": facts.datatype, "shape": list(facts.shape)}
