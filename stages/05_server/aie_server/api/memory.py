"""GET /debug/memory[?model=NAME]: what each engine holds and for whom, as `aie memdebug --url` reads it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from urllib.parse import parse_qs

from aie_engine import InvalidInputError
from aie_server.http.messages import Request, Response, json_response
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.served import ModelTable, ServedModel

__all__ = ["MemoryEndpoint"]

_HINT = (
    "Pools and KV blocks are always counted. For the call stacks of everything that is held, start the server with "
    "--memdebug."
)


class MemoryEndpoint:
    """{model name: snapshot}, and {name/process: snapshot} of a predictor with several processes. A snapshot without
    call stacks has a `hint` that says how to get them.

    Needs the API key where there is one: a snapshot names requests and source files.
    """

    def __init__(self, models: ModelTable, predictors: PredictorTable) -> None:
        self._models = models
        self._predictors = predictors

    def __call__(self, request: Request) -> Response:
        names = _asked_for(request.head.query)
        if names is None:
            with self._models.lease_all() as models:
                snapshots = {model.name: _snapshot(model.engine.memory()) for model in models}
            for predictor in self._predictors:
                snapshots |= _of_predictor(predictor)
            return json_response(snapshots)
        snapshots = {}
        with ExitStack() as leases:
            for name in dict.fromkeys(names):
                if name in self._predictors:
                    snapshots |= _of_predictor(self._predictors.get(name))
                else:
                    model: ServedModel = leases.enter_context(self._models.lease(name)).model
                    snapshots[model.name] = _snapshot(model.engine.memory())
        return json_response(snapshots)


def _asked_for(query: str) -> Sequence[str] | None:
    """None: all. Raises `InvalidInputError` for what is no such query."""
    fields = parse_qs(query, keep_blank_values=True)
    if unknown := set(fields) - {"model"}:
        raise InvalidInputError(f"The query may name a model, nothing else: {sorted(unknown)[0][:50]!r}.")
    return fields.get("model")


def _of_predictor(model: ServedPredictor) -> dict[str, dict[str, object]]:
    processes = {name: held for name, held in model.predictor.memory().items() if isinstance(held, Mapping)}
    return {
        model.name if len(processes) == 1 else f"{model.name}/{process}": _snapshot(held)
        for process, held in processes.items()
    }


def _snapshot(held: Mapping[str, object]) -> dict[str, object]:
    snapshot = dict(held)
    if not snapshot.get("sample_every"):
        snapshot["hint"] = _HINT
    return snapshot
