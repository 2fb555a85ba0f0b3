"""The open streams of one engine, as its client side keeps them: who may enter, who gets which event, who is told of
the end. Shared by the engine in a thread and the engine in a process.

Admission is decided here, not in the loop, so that `submit` can refuse at once and without asking another process:
every open request has passed through here, so their number is exact. It is bounded by `max_batch_size` (they can all
run) plus `max_queue`.
"""

import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from aie_engine.errors import EngineDeadError
from aie_engine.protocol import EngineInfo
from aie_engine.requests import ErrorInfo, GenerateRequest, TokenEvent
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_scheduler import QueueFullError, RequestTooLongError
from aie_tensor import InvalidInputError

__all__ = ["StreamRegistry", "check_request"]

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class StreamRegistry:
    """Thread-safe."""

    def __init__(
        self, info: EngineInfo, cancel: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = info
        self._cancel = cancel
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, tuple[TokenStream, float]] = {}  # with the time of opening
        self._dead: ErrorInfo | None = None
        self._heard_s = self._busy_s = clock()  # the last sign of life; when the first of those now open was opened
        self._mean_stay_s = 0.0  # how long the requests that ended lately were open, smoothed

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_dead(self) -> bool:
        return self._dead is not None

    def open(self, request: GenerateRequest) -> TokenStream:
        """A stream for `request`. Raises what `EngineClient.submit` promises, and then nothing is left behind."""
        check_request(request, self._info)
        stream = TokenStream(request.request_id, self._cancel)
        with self._lock:
            if self._dead is not None:
                raise EngineDeadError(self._dead.message, retry_after_s=self._dead.retry_after_s)
            limit = self._info.max_batch_size + self._info.max_queue
            if len(self._open) >= limit:
                raise QueueFullError(
                    f"{limit} requests are open, and no more are taken in until one of them ends.",
                    retry_after_s=self._retry_after_s(),
                )
            if request.request_id in self._open:
                raise InvalidInputError(f"Request id {request.request_id!r} is in use.", param="request_id")
            now = self._clock()
            if not self._open:
                self._busy_s = now
            self._open[request.request_id] = stream, now
        return stream

    def forget(self, request_id: str) -> None:
        """Take back an `open` that could not be handed on."""
        with self._lock:
            self._open.pop(request_id, None)

    def deliver(self, events: Iterable[TokenEvent]) -> None:
        self._heard_s = self._clock()
        for event in events:
            entry = self._open.get(event.request_id)
            if entry is None:
                continue  # refused or forgotten while the event was on its way
            if event.finish_reason is not None:
                self._close(event.request_id, entry[1])
            entry[0].put(event)

    def fail_all(self, error: ErrorInfo) -> None:
        """The engine is dead: every open stream ends with `error`, and `open` raises from now on."""
        with self._lock:
            self._dead = error
            orphans, self._open = self._open, {}
        for request_id, (stream, _) in orphans.items():
            stream.put(TokenEvent(request_id, finish_reason="error", error=error))

    def without_answer(self, last: EngineStats) -> EngineStats:
        """`last` as far as it still holds, for an engine that is dead or too busy to say: a step that hangs shows as
        running requests and a growing `last_step_age_s`, also when it is the first after an idle hour."""
        if self._dead is not None:
            return msgspec.structs.replace(last, num_running=0, num_waiting=0, kv_usage=0.0)
        silence_s = self._clock() - max(self._heard_s, self._busy_s if self._open else 0.0)
        num_running = max(last.num_running, min(len(self._open), self._info.max_batch_size))
        return msgspec.structs.replace(last, num_running=num_running, last_step_age_s=silence_s)

    def _close(self, request_id: str, opened_s: float) -> None:
        with self._lock:
            self._open.pop(request_id, None)
            self._mean_stay_s += (self._clock() - opened_s - self._mean_stay_s) / 8

    def _retry_after_s(self) -> float:
        """Half a request's usual stay: by then about half of those open now will have ended."""
        return min(max(self._mean_stay_s / 2, _MIN_RETRY_S), _MAX_RETRY_S)


def check_request(request: GenerateRequest, info: EngineInfo) -> None:
    """Raises `InvalidInputError` or `RequestTooLongError` if `request` could never run on this engine."""
    request.sampling.validated()
    request.sampling.check_vocabulary(info.vocab_size)
    num_prompt, num_wanted, limit = len(request.prompt_ids), request.sampling.max_tokens, info.max_seq_len
    if num_prompt == 0:
        raise InvalidInputError("The prompt is empty.", param="prompt")
    # A kernel would read outside the embedding table: nothing below here checks token ids again.
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= info.vocab_size:
        raise InvalidInputError(f"The prompt's token ids must be from 0 to {info.vocab_size - 1}.", param="prompt")
    if num_prompt >= limit:
        raise RequestTooLongError(
            f"The prompt has {num_prompt} tokens, but prompt and answer together may have at most {limit}.",
            param="prompt",
        )
    if num_prompt + num_wanted > limit:
        raise RequestTooLongError(
            f"The prompt's {num_prompt} tokens and max_tokens {num_wanted} exceed the {limit} tokens of the context; "
            f"at most {limit - num_prompt} tokens can be generated.",
            param="max_tokens",
        )
