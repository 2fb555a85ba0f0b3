"""Where the time of requests went.

    GET /debug/requests[?limit=N]   those that are open, with phase and age, and the last N that ended (20)
    GET /debug/requests/{id}        one of them in full, by the X-Request-Id that its answer had: all its choices

Both need the API key where there is one, and then show the requests of that key alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import parse_qs, unquote

from aie_engine import AieError, InvalidInputError
from aie_server.api.request_names import Names
from aie_server.api.request_view import Engines, full_view, queue_view, short_view
from aie_server.auth import ApiKeys
from aie_server.errors import ModelNotFoundError, RequestNotFoundError
from aie_server.http.messages import Request, Response, json_response
from aie_server.request_book import RequestBook, RequestTrace
from aie_server.served import ModelTable

__all__ = ["PREFIX", "DebugRequests", "ask_engines"]

PREFIX = "/debug/requests/"
_DEFAULT_LIMIT = 20
_MAX_ASKED = 64  # at once: an engine answers between two steps, and the next one waits for that


class DebugRequests:
    """`listing` and `one` are the handlers."""

    def __init__(
        self, book: RequestBook, models: ModelTable, keys: ApiKeys, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._book = book
        self._models = models
        self._keys = keys
        self._clock = clock

    def listing(self, request: Request) -> Response:
        """Raises `InvalidInputError` for a query that is none."""
        limit = self._limit(request.head.query)
        names, mine, ended, num_others = self._snapshot(request)
        shown = ended[:limit]
        engines = ask_engines(self._models, [*mine, *shown], also=[model.name for model in self._models])
        now = self._clock()
        return json_response(
            {
                "open": [short_view(trace, engines, names, now) for trace in mine if trace.finished_s is None],
                "recent": [short_view(trace, engines, names, now) for trace in shown],
                "queues": {
                    model: queue_view(queue, names) for model, queue in engines.queues.items() if queue is not None
                },
                "unanswered": engines.problems,
                "num_open_of_others": num_others,
                "num_kept": len(ended),
                "max_kept": self._book.max_kept,
            }
        )

    def one(self, request: Request) -> Response:
        """Raises `RequestNotFoundError` (404), also for a request of somebody else."""
        request_id = unquote(request.head.path.removeprefix(PREFIX))
        names, mine, ended, _ = self._snapshot(request)
        found = [trace for trace in (*reversed(mine), *ended) if trace.request_id == request_id]
        if not found:
            raise RequestNotFoundError(
                f"No request {request_id[:128]!r} is known here: it never came, its fields were refused, or it is "
                f"forgotten. The last {self._book.max_kept} that ended are kept; of yours there are {len(ended)}."
            )
        engines = ask_engines(self._models, found[:1])
        return json_response({**full_view(found[0], engines, names, self._clock()), "num_of_same_id": len(found)})

    def _snapshot(self, request: Request) -> tuple[Names, list[RequestTrace], list[RequestTrace], int]:
        """Names, open ones and ended ones for who asks, and how many are open of others."""
        open_traces, ended = self._book.snapshot()
        names = Names((*open_traces, *ended), request.client_key if self._keys.are_needed else None)
        mine = [trace for trace in open_traces if names.may_see(trace)]
        return names, mine, [trace for trace in ended if names.may_see(trace)], len(open_traces) - len(mine)

    def _limit(self, query: str) -> int:
        fields = parse_qs(query, keep_blank_values=True)
        if unknown := set(fields) - {"limit"}:
            raise InvalidInputError(f"The query may say limit, nothing else: {sorted(unknown)[0][:50]!r}.")
        text = fields.get("limit", [str(_DEFAULT_LIMIT)])[-1]
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise InvalidInputError(f"limit must be a whole number, not {text[:20]!r}.", param="limit")
        return min(int(text), self._book.max_kept)


def ask_engines(models: ModelTable, traces: Sequence[RequestTrace], *, also: Iterable[str] = ()) -> Engines:
    """The engines of all choices, and of the models `also`. One that is dead or slow spoils nothing."""
    engines = Engines()
    wanted: dict[str, list[str]] = {model: [] for model in also}
    for trace in traces:
        if trace.choices:
            wanted.setdefault(trace.model, []).extend(choice.engine_id for choice in trace.choices)
    for model, engine_ids in wanted.items():
        try:
            with models.lease(model) as lease:
                engines.add(model, [lease.model.engine.explain(some) for some in _pieces(engine_ids)])
        except ModelNotFoundError:
            engines.problems[model] = "The model is served no longer, and what its engine knew is lost."
        except AieError as error:
            engines.problems[model] = str(error)
    return engines


def _pieces(engine_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """One at least, and be it empty: the answer says how the queue stands."""
    for start in range(0, max(1, len(engine_ids)), _MAX_ASKED):
        yield engine_ids[start : start + _MAX_ASKED]
