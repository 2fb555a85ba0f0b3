"""GET /debug/memory[?model=NAME]: what each engine holds and for whom, as `aie memdebug --url` reads it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from urllib.parse import parse_qs

from aie_engine import InvalidInputError
from aie_server.api.request_names import Names
from aie_server.auth import ApiKeys
from aie_server.http.messages import Request, Response, json_response
from aie_server.predictors import PredictorTable, ServedPredictor
from aie_server.request_book import RequestBook
from aie_server.served import ModelTable, ServedModel

__all__ = ["MemoryEndpoint"]

_HINT = (
    "Pools and KV blocks are always counted. For the call stacks of everything that is held, start the server with "
    "--memdebug."
)

_OF_REQUEST = " of request "  # as stage 1 says whose an allocation is


class MemoryEndpoint:
    """{model name: snapshot}, and {name/process: snapshot} of a predictor with several processes. A snapshot without
    call stacks has a `hint` that says how to get them.

    Needs the API key where there is one: a snapshot names requests and source files. It then names those of that key
    alone.
    """

    def __init__(self, models: ModelTable, predictors: PredictorTable, book: RequestBook, keys: ApiKeys) -> None:
        self._models = models
        self._predictors = predictors
        self._book = book
        self._keys = keys

    def __call__(self, request: Request) -> Response:
        snapshots = self._snapshots(_asked_for(request.head.query))
        if not self._keys.are_needed:
            return json_response(snapshots)
        open_traces, ended = self._book.snapshot()
        return json_response(_masked(snapshots, Names((*open_traces, *ended), request.client_key)))

    def _snapshots(self, names: Sequence[str] | None) -> dict[str, object]:
        snapshots: dict[str, object] = {}
        if names is None:
            with self._models.lease_all() as models:
                snapshots |= {model.name: _snapshot(model.engine.memory()) for model in models}
            for predictor in self._predictors:
                snapshots |= _of_predictor(predictor)
            return snapshots
        with ExitStack() as leases:
            for name in dict.fromkeys(names):
                if name in self._predictors:
                    snapshots |= _of_predictor(self._predictors.get(name))
                else:
                    model: ServedModel = leases.enter_context(self._models.lease(name)).model
                    snapshots[model.name] = _snapshot(model.engine.memory())
        return snapshots


def _asked_for(query: str) -> Sequence[str] | None:
    """None: all. Raises `InvalidInputError` for what is no such query."""
    fields = parse_qs(query, keep_blank_values=True)
    if unknown := set(fields) - {"model"}:
        raise InvalidInputError(f"The query may name a model, nothing else: {sorted(unknown)[0][:50]!r}.")
    return fields.get("model")


def _of_predictor(model: ServedPredictor) -> dict[str, object]:
    processes = {name: held for name, held in model.predictor.memory().items() if isinstance(held, Mapping)}
    return {
        model.name if len(processes) == 1 else f"{model.name}/{process}": _snapshot(held)
        for process, held in processes.items()
    }


def _masked(held: object, names: Names) -> object:
    """A snapshot with the requests' names as its reader may know them: in the words for an owner (`kv of request r-1`)
    and in the lists of requests."""
    if isinstance(held, str):
        what, of_request, engine_id = held.partition(_OF_REQUEST)
        return f"{what}{of_request}{names.of(engine_id)}" if of_request else held
    if isinstance(held, Mapping):
        return {
            key: list(dict.fromkeys(map(names.of, value))) if key == "requests" else _masked(value, names)
            for key, value in held.items()
        }
    return [_masked(one, names) for one in held] if isinstance(held, list | tuple) else held


def _snapshot(held: Mapping[str, object]) -> dict[str, object]:
    snapshot = dict(held)
    if not snapshot.get("sample_every"):
        snapshot["hint"] = _HINT
    return snapshot
