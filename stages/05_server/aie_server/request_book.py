"""When a request reached which point on its way through the server: those that are open and the last that ended.

Only instants are noted here, a handful per request. What the engine did in between it knows itself
(`EngineClient.explain`), and is asked for when somebody wants to see it.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from aie_engine import BatchFacts
from aie_server.access_log import AccessRecord
from aie_server.events import EventHub
from aie_server.http.messages import Request

__all__ = ["MAX_KEPT", "ChoiceTrace", "RequestBook", "RequestTrace"]

MAX_KEPT = 512
_CLIENT_GONE = 499
_TURNED_AWAY = (429, 503)


@dataclass(slots=True, eq=False)
class ChoiceTrace:
    """One choice of a generation, which is one request of the engine."""

    index: int
    engine_id: str
    first_token_s: float | None = None  # seen here, where it becomes text
    done_s: float | None = None
    reason: str | None = None  # how it ended
    num_tokens: int = 0  # of its answer, once it has ended


@dataclass(slots=True, eq=False)
class RequestTrace:
    """Instants are on the clock of `time.monotonic`; None: not there yet."""

    request_id: str  # X-Request-Id
    client_key: str
    path: str
    model: str
    started_s: float  # its first byte
    received_s: float  # its last one
    validated_s: float  # its fields are fine: now it asks to be let in
    is_prediction: bool = False  # by a predictor, which answers at once
    admitted_s: float | None = None
    submitted_s: float | None = None  # tokenized
    prompt_tokens: int = 0  # of all prompts, each counted once; of a predictor's texts
    choices: list[ChoiceTrace] = field(default_factory=list)
    computed_s: float | None = None  # of a predictor: all its inputs
    num_inputs: int = 0  # of a predictor
    batch: BatchFacts | None = None  # of a predictor: that of the input that took longest
    finished_s: float | None = None
    status: int | None = None
    blocked_s: float = 0.0  # that writing waited for the client to read

    @property
    def counts(self) -> dict[str, object]:
        """Of one that has ended: how much it was, and how its choices ended."""
        if not self.choices:
            found = {"inputs": self.num_inputs, "prompt_tokens": self.prompt_tokens}
            return {name: number for name, number in found.items() if number}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": sum(choice.num_tokens for choice in self.choices),
            "finish_reasons": [choice.reason for choice in self.choices],
        }

    def add_choice(self, index: int, engine_id: str) -> ChoiceTrace:
        choice = ChoiceTrace(index, engine_id)
        self.choices.append(choice)
        return choice


class RequestBook:
    """Thread-safe without a lock: every change is one operation on a dictionary or a deque."""

    def __init__(self, *, max_kept: int = MAX_KEPT, events: EventHub | None = None) -> None:
        self.max_kept = max_kept
        self._events = events or EventHub()
        # A client may use its id again, also at the same time; the first byte of two requests is never the same.
        self._open: dict[tuple[str, float], RequestTrace] = {}
        self._kept: deque[RequestTrace] = deque(maxlen=max_kept)  # the one that ended last comes last

    def open(self, request: Request, model: str, *, is_prediction: bool = False) -> RequestTrace:
        """A request for `model` has been found valid. It stays open until `finish`."""
        trace = RequestTrace(
            request.request_id,
            request.client_key,
            request.head.path,
            model,
            request.started_s,
            request.received_s,
            time.monotonic(),
            is_prediction,
        )
        self._open[trace.request_id, trace.started_s] = trace
        if self._events.is_heard:
            facts = {"request_id": trace.request_id, "model": trace.model, "path": trace.path}
            self._events.tell("started", facts, trace.client_key)
        return trace

    def finish(self, record: AccessRecord) -> RequestTrace | None:
        """A request was answered, whatever it was for; gives its trace if it had one."""
        trace = self._open.pop((record.request_id, record.started_s), None)
        if trace is not None:
            trace.finished_s = record.started_s + record.duration_s
            trace.status = record.status
            trace.blocked_s = record.blocked_s
            self._kept.append(trace)
        if self._events.is_heard:
            self._tell_the_end(record, trace)
        return trace

    @property
    def has_open(self) -> bool:
        """Whether any request is open."""
        return bool(self._open)

    def snapshot(self) -> tuple[list[RequestTrace], list[RequestTrace]]:
        """Those that are open, the oldest first, and those that ended, the latest first."""
        return list(self._open.copy().values()), list(reversed(self._kept.copy()))

    def _tell_the_end(self, record: AccessRecord, trace: RequestTrace | None) -> None:
        """Of what went wrong before it was a request to a model, too, but to nobody who may see only a key's own."""
        if trace is None and record.status < 400:
            return
        facts: dict[str, object] = {"request_id": record.request_id, "path": record.target, "status": record.status}
        facts["why"] = record.error or ("the client hung up" if record.status == _CLIENT_GONE else "done")
        facts["duration_ms"] = round(record.duration_s * 1e3, 3)
        if trace is not None:
            facts |= {"model": trace.model, **trace.counts}
            if len(trace.choices) == 1 and trace.choices[0].reason is not None and not record.error:
                facts["why"] = trace.choices[0].reason
        is_rejected = record.status != _CLIENT_GONE and (
            trace is None
            or (record.status >= 400 and trace.submitted_s is None)
            or (record.status in _TURNED_AWAY and not trace.choices)
        )
        self._events.tell("rejected" if is_rejected else "ended", facts, "" if trace is None else trace.client_key)
