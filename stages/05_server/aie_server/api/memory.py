"""GET /debug/memory[?model=NAME]: what each engine holds and for whom, as `aie memdebug --url` reads it."""

from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import parse_qs

from aie_engine import InvalidInputError
from aie_server.http.messages import Request, Response, json_response
from aie_server.served import ModelTable, ServedModel

__all__ = ["MemoryEndpoint"]

_HINT = (
    "Pools and KV blocks are always counted. For the call stacks of everything that is held, start the server with "
    "--memdebug."
)


class MemoryEndpoint:
    """{model name: snapshot}. A snapshot without call stacks has a `hint` that says how to get them.

    Needs the API key where there is one: a snapshot names requests and source files.
    """

    def __init__(self, models: ModelTable) -> None:
        self._models = models

    def __call__(self, request: Request) -> Response:
        names = _asked_for(request.head.query)
        if names is None:
            with self._models.lease_all() as models:
                return json_response({model.name: _snapshot(model) for model in models})
        with ExitStack() as leases:
            asked = [leases.enter_context(self._models.lease(name)).model for name in names]
            return json_response({model.name: _snapshot(model) for model in dict.fromkeys(asked)})


def _asked_for(query: str) -> Sequence[str] | None:
    """None: all. Raises `InvalidInputError` for what is no such query."""
    fields = parse_qs(query, keep_blank_values=True)
    if unknown := set(fields) - {"model"}:
        raise InvalidInputError(f"The query may name a model, nothing else: {sorted(unknown)[0][:50]!r}.")
    return fields.get("model")


def _snapshot(model: ServedModel) -> dict[str, object]:
    snapshot = dict(model.engine.memory())
    if not snapshot.get("sample_every"):
        snapshot["hint"] = _HINT
    return snapshot
